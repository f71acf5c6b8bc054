"""Find what a command line names: a service, a function or a stage.

An error says which half cannot be found, and where it was looked for.

A worker imports the same module: it gets the same `sys.path`, and the module has the same name there.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.cli.model_folders import load_folder, names_folder
from penstock.cli.targets import Target, parse_target
from penstock.cli.user_errors import UserCodeFailed, user_place
from penstock.config import ArtifactOptions
from penstock.errors import ConfigError, PenstockError
from penstock.runtime.spec import StageSpec
from penstock.service import Service
from penstock.worker.loading import GUARD
from penstock.worker.stage import Stage

_IMPORTED_LATE = ("numpy", "pydantic")
"""Libraries that this package imports after the user's module.  A file of that name would take their place."""


def load_service(name: str, artifact: ArtifactOptions) -> Service:
    """The service that `name` says: of a folder, opened as `artifact` says, or what `penstock.cli.targets` reads.

    The current folder is searched first, as `python -m` does; for a file its own folder comes before it.  A package
    that the file belongs to is imported as a package.

    Raises:
        ConfigError: there is no such module or file, or it has no such service.
        ArtifactInvalid: the folder is no artifact.
        UserCodeFailed: the module, or the function that makes the service, raised an error.
    """
    if names_folder(name):
        return load_folder(name, artifact)
    target = parse_target(name)
    module = _import(target)
    found = _attribute(module, target, _named(module, target)) if target.attribute else _only_service(module, target)
    if isinstance(found, Service):
        return found
    return _made_by(found, module, target)


def call_function(name: str) -> Any:
    """What the function that `name` says returns, as ``module:function`` or ``file.py:function``.

    Raises:
        ConfigError: there is no such module, file or function, or it takes arguments.
        UserCodeFailed: the module or the function raised an error.
    """
    target = parse_target(name)
    if not target.attribute:
        raise ConfigError(f"{name!r} does not name a function: write {target.where}:function")
    module = _import(target)
    function = _attribute(module, target, _named(module, target))
    if inspect.isclass(function) or not _takes_nothing(function):
        raise ConfigError(f"{name} is not a function without arguments")
    with running_user_code(f"{name}()", "it is called"):
        return function()


def find_stage(name: str) -> Any:
    """The class or the function that `name` says, as ``module:Stage`` or ``file.py:Stage``: a stage's target.

    Raises:
        ConfigError: there is no such module, file or stage, or what is there is something else.
        UserCodeFailed: the module raised an error.
    """
    if names_folder(name):
        raise ConfigError(f"{name!r} is a directory: a worker needs a stage, as in module:Square or model.py:Square")
    try:
        target = parse_target(name)
    except ConfigError:
        raise ConfigError(f"{name!r} does not name a stage: write module:Square, or model.py:Square") from None
    module = _import(target)
    stages = [f"{target.where}:{stage}" for stage in _stages(module)]
    if not target.attribute:
        raise ConfigError(f"{name!r} does not name a stage: write {' or '.join(stages) or f'{target.where}:Square'}")
    found = _attribute(module, target, stages)
    if isinstance(found, (Service, StageSpec)):
        kind = "a service" if isinstance(found, Service) else "a description of a stage"
        raise ConfigError(f"{target.text} is {kind}: a worker needs the class itself{_file_of(module, target)}")
    return found


def _import(target: Target) -> types.ModuleType:
    """The module of `target`; the current folder is searched first."""
    try:
        here = Path.cwd()
    except OSError as error:
        raise ConfigError(f"cannot use the current directory: {error.strerror}; change to another one") from None
    _search_first(here)
    module = _import_file(target, here) if target.is_file else _import_module(target.where, here)
    _refuse_namesakes()
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_module(name: str, here: Path) -> types.ModuleType:
    with running_user_code(f"module {name!r}", "it is imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            missing = error.name
    raise ConfigError(f"there is no module {missing!r} in {here} or on the Python path{_colon_hint(name)}")


def _colon_hint(name: str) -> str:
    """The end of a sentence about a module that is not there, where a dot stands for the colon before a service."""
    where, _, attribute = name.rpartition(".")
    if where.endswith(".py") or hasattr(sys.modules.get(where), attribute):
        return f"; the service is named after a colon: {where}:{attribute}"
    return ""


def _import_file(target: Target, here: Path) -> types.ModuleType:
    path = (here / target.where).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {target.where!r} in {here}")
    names, folder = [path.stem], path.parent
    if path.stem == "__init__":
        names = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if not all(name.isidentifier() for name in names):
        raise ConfigError(
            f"{target.where} cannot be imported: {'.'.join(names)!r} is not a valid module name; rename it"
        )
    _search_first(folder)
    module = _import_module(".".join(names), here)
    file = module_file(module)
    if file is None or Path(file).resolve() != path:
        raise ConfigError(
            f"{target.where} was named, but Python imports the module {module.__name__!r} from "
            f"{_place(module)}: rename the file"
        )
    return module


def _refuse_namesakes() -> None:
    """Raise ConfigError where a file of the user's has taken the place of a library that this package needs."""
    for name in _IMPORTED_LATE:
        file = module_file(sys.modules.get(name))
        if file is not None and Path(file).name == f"{name}.py":  # the libraries are packages
            raise ConfigError(f"the module {name!r} is {file}, which shadows the library of that name: rename the file")


def module_file(module: types.ModuleType | None) -> str | None:
    """The file that `module` was read from; None where it is built in, or a package without a file."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


def _place(module: types.ModuleType) -> str:
    """Where `module` is from, in words."""
    return module_file(module) or "Python itself"


def _named(module: types.ModuleType, target: Target) -> list[str]:
    """How the services of `module` are named, and the functions that make one."""
    return [f"{target.where}:{name}" for name in (*_services(module), *_makers(module))]


def _attribute(module: types.ModuleType, target: Target, others: Sequence[str]) -> Any:
    """What `target` names in `module`; ConfigError tells of the `others` that are there."""
    found: Any = module
    for part in target.attribute.split("."):
        if not hasattr(found, part):
            hint = f"; it has {', '.join(others)}" if others else ""
            raise ConfigError(f"{target.where} has no {target.attribute!r}{hint}{_file_of(module, target)}")
        found = getattr(found, part)
    return found


def _file_of(module: types.ModuleType, target: Target) -> str:
    """The end of a sentence about a module: its file, which may not be the one that the user thinks of."""
    return "" if target.is_file else f" ({target.where} is {_place(module)})"


def _services(module: types.ModuleType) -> list[str]:
    """What the services of `module` are called in it; one with two names has the first."""
    found: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Service):
            found.setdefault(id(value), name)
    return list(found.values())


def _makers(module: types.ModuleType) -> list[str]:
    """The functions of `module` that say that they return a service."""
    return [name for name, value in vars(module).items() if inspect.isfunction(value) and _says_service(value)]


def _says_service(function: types.FunctionType) -> bool:
    said = function.__annotations__.get("return")
    return said is Service or (isinstance(said, str) and said.rpartition(".")[2] == Service.__name__)


def _stages(module: types.ModuleType) -> list[str]:
    """What may be a stage among the classes that `module` itself has."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Stage) and value.__module__ == module.__name__
    ]


def _only_service(module: types.ModuleType, target: Target) -> Service:
    names = _services(module)
    if len(names) == 1:
        service: Service = vars(module)[names[0]]
        return service
    if names:
        choices = ", ".join(f"{target.where}:{name}" for name in names)
        raise ConfigError(f"{target.where} has {len(names)} services: choose from {choices}")
    stages, makers = ", ".join(_stages(module)) or "...", _makers(module)
    raise ConfigError(
        f"{target.where} has no service: write `service = penstock.Service({stages})` in it, or name the function that "
        f"makes one, {target.where}:{makers[0] if makers else 'make'}{_file_of(module, target)}"
    )


def _made_by(make: Any, module: types.ModuleType, target: Target) -> Service:
    """The service that the function `make` returns; ConfigError where it is no such function."""
    if not _takes_nothing(make):
        raise ConfigError(f"{target.text} is {_what_it_is(make, target)}{_file_of(module, target)}")
    with running_user_code(f"{target.text}()", "it makes the service"):
        made = make()
    if inspect.iscoroutine(made):
        made.close()  # or Python warns that nobody awaited it
        raise ConfigError(f"{target.text} is async: write `def`, because a service is made without an event loop")
    if not isinstance(made, Service):
        hint = ": is its `return` missing?" if made is None else ""
        raise ConfigError(f"{target.text}() returned {type(made).__name__}, not a penstock.Service{hint}")
    return made


def _what_it_is(found: Any, target: Target) -> str:
    """What `found` is, which is no service, and what to write to serve it."""
    write = f"write `service = penstock.Service({target.attribute})`, and name {target.where}:service"
    if isinstance(found, StageSpec) or (inspect.isclass(found) and issubclass(found, Stage)):
        return f"a stage, not a service: {write}"
    if inspect.isclass(found):
        return "a class, not a service; a stage is a subclass of `penstock.Stage`"
    if inspect.isroutine(found):
        return f"a function that takes arguments, not a service; to serve it {write}"
    return f"of the type {type(found).__name__}, not a penstock.Service, nor a function that makes one"


def _takes_nothing(make: Any) -> bool:
    """Whether `make` can be called without arguments.  Of classes only a kind of Service can."""
    if not callable(make) or (inspect.isclass(make) and not issubclass(make, Service)):
        return False
    call: Callable[..., Any] = make
    try:
        inspect.signature(call).bind()
    except (TypeError, ValueError):  # ValueError: a built-in one without a signature
        return False
    return True


@contextlib.contextmanager
def running_user_code(what: str, when: str) -> Iterator[None]:
    """Say whose fault it is where the user's code fails: `what` is that code, and `when` what happens just then.

    Raises:
        ConfigError: the code says what is wrong, or ends the program.
        UserCodeFailed: it raised another error.
    """
    try:
        yield
    except ConfigError as error:  # it is a sentence, and says what is wrong
        place = user_place(error)
        raise ConfigError(f"{error} ({place})" if place else str(error)) from None
    except PenstockError:
        raise
    except SystemExit as end:
        said = f" with {end.code!r}" if end.code is not None else ""
        raise ConfigError(
            f"{what} exits the program{said} while {when}: move the code that exits under `{GUARD}`"
        ) from None
    except Exception as error:  # noqa: BLE001  # user code may raise anything
        raise UserCodeFailed(error) from None
