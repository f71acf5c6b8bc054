"""Find a stage's class in another process by its module and qualified name.  The class is never pickled.

A worker imports the main script under another name, so that a script without a guard does not start itself again.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import runpy
import sys
import types
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.transport.messages import StageRef
from penstock.worker.stage import Stage, called

MAIN_NAME = "__penstock_main__"
GUARD = 'if __name__ == "__main__":'


class ImportState:
    """Whether this process is a worker that is importing user code.  A service cannot be started meanwhile."""

    importing = False


def reference(target: Any) -> StageRef:
    """Where another process finds `target`; ConfigError if it cannot find it."""
    module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module is None or qualname is None:
        raise ConfigError(
            f"stage {target!r} has no name, so a worker process cannot import it: define a function or a class at the "
            "top level of a module, or use inline=True"
        )
    name = f"{module}.{qualname}"
    if qualname.endswith("<lambda>"):
        raise ConfigError(
            f"stage {name} is a lambda, which a worker process cannot import: define a function with `def` at the top "
            "level of a module, or use inline=True"
        )
    if "<locals>" in qualname:
        raise ConfigError(
            f"stage {name} is defined inside a function, where a worker process cannot import it: "
            "move it to the top level of a module, or use inline=True"
        )
    ref = _main_reference(name, qualname) if module in {"__main__", MAIN_NAME} else StageRef(module, qualname)
    if _look_up(sys.modules.get(module), qualname) is not target:
        raise ConfigError(
            f"stage {name} is not the object named {qualname} in `{module}`: a worker would import a different object"
        )
    return ref


def _main_reference(name: str, qualname: str) -> StageRef:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return StageRef("__main__", qualname, main_module=spec.name)
    path = getattr(main, "__file__", None)
    if path is None or not Path(path).is_file():
        raise ConfigError(
            f"stage {name} is defined in an interactive session or notebook, which a worker process cannot import: "
            "put it in a module, or use inline=True"
        )
    return StageRef("__main__", qualname, main_path=os.fsencode(Path(path).resolve()))


def import_target(ref: StageRef) -> Any:
    """Import the target of `ref`, in a worker process."""
    ImportState.importing = True
    try:
        if ref.main_path is not None:
            module = _run_main(os.fsdecode(ref.main_path), None)
        elif ref.main_module is not None:
            module = _run_main(None, ref.main_module)
        else:
            module = importlib.import_module(ref.module)
    finally:
        ImportState.importing = False
    found = _look_up(module, ref.qualname)
    if found is None:
        raise ConfigError(f"{ref.module} has no {ref.qualname} in the worker: is it defined only under `{GUARD}`?")
    return found


def _run_main(path: str | None, module_name: str | None) -> types.ModuleType:
    main = types.ModuleType(MAIN_NAME)
    # The module has both names, while it runs and afterwards: a pickle from either process must find its classes.
    sys.modules["__main__"] = sys.modules[MAIN_NAME] = main
    if path is not None:
        content = runpy.run_path(path, run_name=MAIN_NAME)
    else:
        assert module_name is not None
        content = runpy.run_module(module_name, run_name=MAIN_NAME, alter_sys=True)
    main.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[MAIN_NAME] = main
    return main


def _look_up(module: types.ModuleType | None, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def adopt_main() -> None:
    """Let this process unpickle objects of the main script's classes that workers have made."""
    sys.modules[MAIN_NAME] = sys.modules["__main__"]


def pack_setup(name: str, arguments: dict[str, Any]) -> bytes:
    """The setup arguments as bytes; ConfigError names the one that cannot travel."""
    for key, value in arguments.items():
        try:
            pickle.dumps(value, protocol=5)
        except Exception as error:  # pickling runs user code, which may raise anything
            raise ConfigError(f"stage {name!r}: setup argument {key!r} cannot be sent to a worker: {error}") from error
    return pickle.dumps(arguments, protocol=5)


def check_setup(name: str, target: Any, arguments: dict[str, Any]) -> None:
    """ConfigError if `arguments` do not fit the `setup` of `target`."""
    setup = inspect.getattr_static(target, "setup", Stage.setup)
    if setup is Stage.setup:
        if arguments:
            raise ConfigError(f"stage {name!r} has no setup method for the arguments {sorted(arguments)}")
        return
    call = called(target, "setup")
    if call is None:
        return
    function, first = call
    try:
        takes = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C that does not tell
        return
    if first and not takes.parameters:
        raise ConfigError(f"stage {name!r}: setup has no parameter `self`: write `def setup(self)`")
    try:
        takes.bind(*first, **arguments)
    except TypeError as error:
        names = ", ".join(list(takes.parameters)[len(first) :])
        how = "passed as penstock.stage(..., setup={...}), or to penstock worker run as --setup"
        hint = f"it takes {names}, {how}" if names else "it takes no arguments"
        raise ConfigError(f"stage {name!r}: setup() {error}; {hint}") from None
