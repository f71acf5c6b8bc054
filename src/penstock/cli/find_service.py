"""Find the services that a command line names as `module:service`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from penstock.errors import ConfigError
from penstock.service import Service
from penstock.worker.loading import GUARD


def load_service(name: str) -> Service:
    """The service `module:attribute`; ConfigError says which half cannot be found.

    The current folder is searched first, as `python -m` does.
    """
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(module_name.split(".")):  # no module has a path for a name
        raise ConfigError(f"{name!r} does not name a service: write module:service")
    try:
        here = str(Path.cwd())
    except OSError as error:
        raise ConfigError(f"the current folder cannot be used: {error.strerror}; change into another one") from None
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"there is no module {error.name!r} in {here} or on the Python path") from None
    except SystemExit as end:
        said = f" with {end.code!r}" if end.code is not None else ""
        raise ConfigError(
            f"module {module_name!r} ends the program{said} while it is imported: put what does that under `{GUARD}`"
        ) from None
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            services = [key for key, value in vars(module).items() if isinstance(value, Service)]
            hint = f"; it has {', '.join(f'{module_name}:{s}' for s in services)}" if services else ""
            raise ConfigError(f"{module_name} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if not isinstance(found, Service):
        raise ConfigError(f"{name} is {type(found).__name__}, not a penstock.Service")
    return found
