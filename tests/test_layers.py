"""Lower rooms never import higher ones, rooms of one level never each other, and heavy libraries stay where named.

Every import counts, also one inside a function; what is imported for type checking only does not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py"))

LEVELS = {
    "errors": 0,
    "config": 0,
    "core": 0,
    "codec": 1,
    "transport": 2,
    "hosting": 2,
    "worker": 3,
    "runtime": 4,
    "server": 5,
    "service": 6,
    "blocking": 6,
    "streaming": 6,
    "cli": 7,
    "testing": 7,
}
"""The rooms, by the first part of their name."""

GROUND = {("core", "config"), ("core", "errors"), ("config", "errors")}
"""Level 0 is three rooms, one on the other: the core needs the errors and the options."""
FACADE = {("service", "blocking"), ("service", "streaming")}
"""One room in three files: what people import, its synchronous face, and its streams."""

FRONT = "__init__.py"
"""What `import penstock` gives: it may name everything, and loads what is heavy on first use."""
PACKAGE_ITSELF = {
    "runtime/process.py": "asks where the package lies, so that a worker finds the same one",
    "cli/main.py": "tells the version",
}

HEAVY = {
    "numpy": {"codec/numpy_.py"},
    "pydantic": {"codec/pydantic_.py"},
    "prometheus_client": {"hosting/service_metrics.py", "server/pages/metrics.py"},
    "swagger_ui": set(),  # its assets are read as files
    "httptools": {"server/http1/heads.py"},
    "uvloop": {"hosting/run.py", "blocking.py"},
    "rich": {"cli/main.py", "cli/check.py"},
}
"""The libraries with weight, and the files that may import each."""
LIGHT = {"msgspec"}
"""Third-party, and everywhere."""


def room(module: str) -> str:
    """`core` for ``penstock.core.item``; "" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            yield from (inner for other in node.orelse for inner in (other, *statements(other)))
            continue
        yield node
        yield from statements(node)


def imported(source: str) -> set[str]:
    """The modules `source` imports; for ``from penstock import core`` it is ``penstock.core``."""
    found = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            deep = node.module == "penstock" or (ROOT.parent / Path(*node.module.split("."))).is_dir()
            found.update(f"{node.module}.{alias.name}" for alias in node.names) if deep else found.add(node.module)
    return found


def offence(file: str, module: str) -> str | None:
    """Why `file` may not import `module`, or None."""
    top = module.partition(".")[0]
    if top in HEAVY:
        return None if file in HEAVY[top] else f"{top} belongs in {sorted(HEAVY[top])}"
    if top != "penstock" or file == FRONT:
        return None
    ours, theirs = Path(file).parts[0].removesuffix(".py"), room(module)
    if theirs not in LEVELS:
        return None if file in PACKAGE_ITSELF else "the front of the package is for those who use it"
    if ours == theirs or (ours, theirs) in GROUND | FACADE:
        return None
    return None if LEVELS[theirs] < LEVELS[ours] else f"{ours} is at level {LEVELS[ours]}, {theirs} at {LEVELS[theirs]}"


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_lies_below_it(file):
    found = imported((ROOT / file).read_text())
    offences = {module: why for module in sorted(found) if (why := offence(file, module)) is not None}
    assert offences == {}


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_in_a_room(file):
    assert file == FRONT or Path(file).parts[0].removesuffix(".py") in LEVELS


def test_third_party_libraries_are_known_here():
    found = {module.split(".")[0] for file in FILES for module in imported((ROOT / file).read_text())}
    assert found - set(sys.stdlib_module_names) - {"penstock"} <= {*HEAVY, *LIGHT}


def test_every_heavy_library_is_still_used_where_it_is_allowed():
    used = {(module.split(".")[0], file) for file in FILES for module in imported((ROOT / file).read_text())}
    assert {(library, file) for library, files in HEAVY.items() for file in files} <= used


def test_the_pure_rooms_touch_no_world():
    world = {"asyncio", "threading", "socket", "time", "os", "subprocess", "select", "signal", "multiprocessing"}
    for file in FILES:
        if Path(file).parts[0] in ("core", "errors.py", "config.py", "codec"):
            found = {module.split(".")[0] for module in imported((ROOT / file).read_text())}
            assert not found & world, file


# -- the walk itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b, c", {"a.b", "c"}),
        ("from a.b import c", {"a.b"}),
        ("from penstock import errors, config", {"penstock.errors", "penstock.config"}),
        ("from penstock.codec import pickle_", {"penstock.codec.pickle_"}),
        ("def f():\n    import late", {"late"}),
        ("if TYPE_CHECKING:\n    import never\nelse:\n    import always", {"always"}),
        ("if typing.TYPE_CHECKING:\n    import never", set()),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
    ],
)
def test_every_import_that_runs_is_found(source, found):
    assert imported(source) == found


@pytest.mark.parametrize(
    ("file", "module", "allowed"),
    [
        ("core/item.py", "penstock.errors", True),
        ("errors.py", "penstock.core.item", False),
        ("core/item.py", "penstock.codec.formats", False),
        ("worker/loop.py", "penstock.codec.decode", True),
        ("codec/decode.py", "penstock.transport.framing", False),
        ("server/app.py", "penstock.service", False),
        ("blocking.py", "penstock.service", False),
        ("cli/main.py", "penstock.testing", False),
        ("core/item.py", "penstock", False),
        ("server/app.py", "numpy.linalg", False),
        ("codec/numpy_.py", "numpy", True),
    ],
)
def test_an_offender_would_be_caught(file, module, allowed):
    assert (offence(file, module) is None) is allowed
