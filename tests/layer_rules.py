"""The rules that `test_layers.py` holds the package to, as functions over its sources.

A tree is a dict: the path of each file below `src/penstock`, and its text.  So a rule is tried on a tree of two files
as easily as on the real one.  A rule returns all that it objects to, and knows no exceptions: those are in the test.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeAlias

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "penstock"
FRONT = "__init__.py"
"""What `import penstock` gives."""

LEVELS = {
    "errors": 0,
    "spelling": 0,
    "chaos_text": 0,
    "config": 0,
    "log_level_text": 0,
    "option_fields": 0,
    "server_names": 0,
    "core": 0,
    "codec": 1,
    "features": 2,
    "transport": 2,
    "hosting": 2,
    "graphs": 3,
    "transfer": 3,
    "embeddings": 4,
    "artifact": 5,
    "worker": 5,
    "runtime": 6,
    "stages": 6,
    "jobs": 7,
    "server": 7,
    "service": 8,
    "calls": 8,
    "blocking": 8,
    "streaming": 8,
    "client": 8,
    "export": 9,
    "training": 10,
    "cli": 11,
    "testing": 11,
    "__main__": 12,
}
"""The layers, by the first part of their name."""

Tree: TypeAlias = dict[str, str]
Graph: TypeAlias = dict[str, set[str]]
"""For each file, the files it imports."""


def read_tree() -> Tree:
    """The sources of the package as they are in this repository, whatever is installed."""
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def read_compiled() -> list[str]:
    """What `setup.py` has compiled, read without running it."""
    for node in parsed((REPOSITORY / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["COMPILED"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise LookupError("setup.py has no list COMPILED")


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def forget_parsed() -> None:
    """Give back what a look at the whole package has taken: 100 MB, which a run of tests would keep until its end.

    To parse it takes two seconds.  The last of the files of tests that look at it does this: `test_plain_words.py`.
    """
    for cached in (parsed, bindings):
        cached.cache_clear()


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below `node`, at any depth.  Expressions, which are most of a tree, are not looked into."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, part, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from statements(inner)


def layer_of(file: str) -> str:
    """`core` for ``core/item.py``, `service` for ``service.py``."""
    return PurePosixPath(file).parts[0].removesuffix(".py")


# -- imports ----------------------------------------------------------------------------------------------------------


def module_of(file: str) -> str:
    """``penstock.core.item`` for ``core/item.py``; ``penstock.core`` for ``core/__init__.py``."""
    return ".".join(["penstock", *PurePosixPath(file).with_suffix("").parts]).removesuffix(".__init__")


def file_of(name: str, files: Collection[str]) -> str | None:
    """The file that a dotted name is in: of the module itself, or of the module that has the name."""
    parts = name.split(".")
    if parts[0] != "penstock":
        return None
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[1:end])
        for file in (f"{path}.py", f"{path}/{FRONT}" if path else FRONT):
            if file in files:
                return file
    return None


def imported(source: str, files: Collection[str]) -> set[str]:
    """The modules `source` imports, also in a function and also for type checking only.

    What comes out of a package has the package's name before it: ``from penstock import core`` is ``penstock.core``.
    """
    found: set[str] = set()
    for node in statements(parsed(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            file = file_of(node.module, files)
            is_package = file is not None and file.endswith(FRONT)
            found.update({f"{node.module}.{alias.name}" for alias in node.names} if is_package else {node.module})
    return found


def import_graph(tree: Tree) -> Graph:
    """Which file imports which.  To import a module of a package is not to import its `__init__`."""
    return {
        file: {there for name in imported(source, tree) if (there := file_of(name, tree)) is not None}
        for file, source in tree.items()
    }


def shortest_path(graph: Graph, start: str, end: str) -> list[str] | None:
    """The shortest path from `start` to `end` along imports, at least one long; None where there is none."""
    came_from: dict[str, str] = {}
    ahead = deque([start])
    while ahead:
        here = ahead.popleft()
        for there in sorted(graph.get(here, ())):
            if there == end:
                found = [end, here]
                while found[-1] != start:
                    found.append(came_from[found[-1]])
                return found[::-1]
            if there not in came_from and there != start:
                came_from[there] = here
                ahead.append(there)
    return None


def without(graph: Graph, edges: Iterable[tuple[str, str]]) -> Graph:
    """The graph less some of its imports."""
    left_out = set(edges)
    return {file: {there for there in others if (file, there) not in left_out} for file, others in graph.items()}


# -- names ------------------------------------------------------------------------------------------------------------


def module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those under an `if`, `try` or `with`."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody") if isinstance(node, ast.If | ast.Try | ast.With) else ():
            yield from module_level(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from module_level(handler.body)


def shared_names(tree: Tree) -> dict[tuple[str, str], list[str]]:
    """The public classes and functions of one name in two files of one layer; every program may have its `main`."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file, source in sorted(tree.items()):
        nodes = module_level(parsed(source).body)
        names = {n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
        for name in sorted(names):
            if not name.startswith("_") and name != "main":
                found[layer_of(file), name].append(file)
    return {name: there for name, there in found.items() if len(there) > 1}


# -- time -------------------------------------------------------------------------------------------------------------

TOLD_THE_TIME = (
    "core/",
    "jobs/rules/",
    "training/rules/",
    "runtime/",
    "server/http1/",
    "server/app.py",
    "server/asgi.py",
    "server/gateway.py",
    "server/wsgi",
    "calls.py",
)
"""Where nobody asks the world for the time: it comes from a clock that is handed in."""
ASKS_THE_TIME = {"time.monotonic", "time.monotonic_ns", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"}
TIMERS = {"call_later", "call_at"}
CLOCKS = {"clock", "_clock"}
"""What our own clock is called; its timers are welcome."""


def asks_the_time(tree: Tree) -> dict[str, list[str]]:
    """The files that take the time, or a timer, from the world where they should be told; and each place."""
    found = {}
    for file, source in tree.items():
        if file.startswith(TOLD_THE_TIME):
            nodes = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.expr)]
            places = [(node.lineno, why) for node in nodes if (why := time_asked(node, source))]
            if places:
                found[file] = [f"line {line}: {why}" for line, why in sorted(places)]
    return found


@cache
def bindings(source: str) -> dict[str, str]:
    """What the names that `source` imports stand for: ``{"aio": "asyncio", "Item": "penstock.core.item.Item"}``."""
    found = {}
    for node in statements(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]  # `import a.b` binds `a`; `import a.b as c` binds `c` to a.b
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def dotted(node: ast.expr, source: str) -> str:
    """The full name that an expression of names and dots stands for in `source`; "" for any other expression."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, source)
        return f"{before}.{node.attr}" if before else ""
    return bindings(source).get(node.id, node.id) if isinstance(node, ast.Name) else ""


def time_asked(node: ast.expr, source: str) -> str:
    """What `node` asks the world for, as a word for the message; "" when it asks nothing.

    To mention `time.monotonic` is enough: what is not called here is handed on to be called.
    """
    if isinstance(node, ast.Attribute) and node.attr in TIMERS:
        owner = node.value
        owner_name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        return "" if owner_name in CLOCKS else f"{node.attr} of what is not our clock"
    if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        name = dotted(node, source)
        return name if name in ASKS_THE_TIME else ""
    if isinstance(node, ast.Call) and dotted(node.func, source) == "asyncio.wait":
        limits = [word.value for word in node.keywords if word.arg == "timeout"]
        return "asyncio.wait with a timeout" if any(not is_none(limit) for limit in limits) else ""
    return ""


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
