"""Lower layers never import higher ones, layers of one level never each other, and heavy libraries stay where named.

No circle of imports, no name for two things, nothing that only the compiled build would refuse, no look at a clock
where the time is told.  Every import counts, also one inside a function or for type checking only.

An exception to a rule is a line in a table, with its reason; one that is no longer needed fails.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from layer_rules import (
    FRONT,
    LEVELS,
    REPOSITORY,
    asks_the_time,
    circles,
    compiled_bases,
    import_graph,
    imported,
    layer_of,
    missing_modules,
    named_as_libraries,
    read_compiled,
    read_tree,
    repeated_docstrings,
    shared_basenames,
    shared_names,
    shortest_path,
    without,
)

TREE = read_tree()
FILES = sorted(TREE)
COMPILED = read_compiled()

GROUND = {
    ("core", "chaos_text"),
    ("core", "config"),
    ("core", "errors"),
    ("chaos_text", "errors"),
    ("config", "chaos_text"),
    ("config", "errors"),
    ("config", "log_level_text"),
    ("config", "option_fields"),
    ("config", "server_names"),
    ("config", "spelling"),
    ("log_level_text", "errors"),
    ("option_fields", "errors"),
    ("server_names", "errors"),
    ("server_names", "option_fields"),
}
"""Level 0 is layers one on the other: the core needs the options, these fields, names, texts, spelling; all errors."""
FACADE = {
    ("service", "blocking"),
    ("service", "calls"),
    ("blocking", "calls"),
    ("blocking", "streaming"),
    ("calls", "streaming"),
}
"""One layer in four files: what people import, its synchronous face, its calls, and its streams."""

HEAVY = {
    "numpy": {"codec/numpy_.py", "testing/graphs.py"},
    "farmhash": {"features/hashing.py"},
    "onnxruntime": {"graphs/onnx_graph.py"},
    "torch": {"export/torch_model.py", "features/torch_dataset.py", "graphs/torch_graph.py"},
    "tensorflow": {
        "export/keras_model.py",
        "features/tensorflow_ids.py",
        "features/tensorflow_ops.py",
        "features/tensorflow_raw.py",
        "features/tensorflow_values.py",
        "graphs/tensorflow_graph.py",
    },
    "keras": {"export/keras_model.py"},
    "sklearn": {"export/sklearn_boosting.py", "export/sklearn_model.py", "export/sklearn_voting.py"},
    "skl2onnx": {"export/sklearn_boosting.py", "export/sklearn_model.py"},
    "onnx": {"export/sklearn_graph.py"},
    "pydantic": {"codec/pydantic_.py"},
    "prometheus_client": {
        "hosting/service_metrics.py",
        "hosting/slab_metrics.py",
        "jobs/job_metrics.py",
        "server/pages/metrics.py",
    },
    "httpx": {"client/httpx_.py"},
    "httptools": {"server/http1/heads.py"},
    "uvloop": {"hosting/loop_thread.py", "hosting/run.py", "cli/reload.py"},
    "obstore": {"transfer/obstore_.py"},
    "rich": {
        "cli/artifact_shown.py",
        "cli/main.py",
        "cli/check.py",
        "cli/doctor.py",
        "cli/jobs_shown.py",
        "cli/jobs_submit.py",
        "cli/printing.py",
        "cli/training_shown.py",
        "cli/worker_check.py",
        "export/progress.py",
        "training/shown_bar.py",
    },
    "argcomplete": {"cli/completion.py"},
    "watchfiles": {"cli/watched.py"},
    "redis": {"jobs/stores/redis_.py"},
}
"""The libraries with weight, and the files that may import each."""
NUMERIC = {"features", "graphs", "artifact", "export"}
"""The layers of trained models, where numpy may be imported anywhere."""
LIGHT = {"msgspec"}
"""Third-party, and everywhere."""

UPWARD = {
    ("cli/main.py", "penstock"): "tells the version",
    ("cli/worker_check.py", "penstock.testing.command_worker"): "what it runs is a suite for tests",
    ("cli/worker_check.py", "penstock.testing.worker_case"): "what it runs is a suite for tests",
    ("cli/worker_check.py", "penstock.testing.workers"): "what it runs is a suite for tests",
}
"""Imports of what does not lie below, or of the front of the package: file and module."""
CIRCULAR: dict[tuple[str, str], str] = {}
"""Imports that close a circle: file and file."""
BASENAMES: dict[str, str] = {}
LIBRARY_NAMES = {"worker/bisect.py": "halves a batch; it is not about Python's module of that name"}
NAMES: dict[str, str] = {}
SUBCLASSES: dict[str, str] = {}
"""Interpreted classes below a compiled one, as ``file:Class``."""
NOT_THERE: dict[str, str] = {}
TIMED: dict[str, str] = {}
"""Files that take the time, or a timer, from the world."""


def offence(file: str, module: str) -> str | None:
    """Why `file` should not import `module`, or None.  The front names everything, and loads the heavy on first use."""
    top = module.partition(".")[0]
    if top == "numpy" and layer_of(file) in NUMERIC:
        return None
    if top in HEAVY:
        return None if file in HEAVY[top] else f"{top} belongs in {sorted(HEAVY[top])}"
    if top != "penstock" or file == FRONT:
        return None
    ours, theirs = layer_of(file), module.removeprefix("penstock").strip(".").partition(".")[0]
    if theirs not in LEVELS:
        return "the front of the package is for those who use it"
    if ours == theirs or (ours, theirs) in GROUND | FACADE:
        return None
    return None if LEVELS[theirs] < LEVELS[ours] else f"{ours} is at level {LEVELS[ours]}, {theirs} at {LEVELS[theirs]}"


def upward_imports() -> dict[tuple[str, str], str]:
    arrows = sorted((file, module) for file, source in TREE.items() for module in imported(source, TREE))
    return {arrow: why for arrow in arrows if (why := offence(*arrow)) is not None}


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_lies_below_it(file):
    found = imported(TREE[file], TREE)
    offences = {module: why for module in sorted(found) if (why := offence(file, module)) is not None}
    assert {module: why for module, why in offences.items() if (file, module) not in UPWARD} == {}


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_in_a_room(file):
    assert file == FRONT or layer_of(file) in LEVELS


def test_every_pair_of_rooms_on_one_level_is_still_needed():
    pairs = {(layer_of(file), layer_of(there)) for file, others in import_graph(TREE).items() for there in others}
    assert pairs >= GROUND | FACADE


def test_third_party_libraries_are_known_here():
    found = {module.split(".")[0] for file in FILES for module in imported(TREE[file], TREE)}
    assert found - set(sys.stdlib_module_names) - {"penstock"} <= {*HEAVY, *LIGHT}


def test_a_build_finds_every_library_that_it_reads_the_types_of():
    """mypyc follows every import from what it compiles, and one library that is not there ends the compilation."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    required = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in project["build-system"]["requires"]}
    ignored = {
        name.removesuffix(".*")
        for override in project["tool"]["mypy"]["overrides"]
        if override.get("ignore_missing_imports")
        for name in override["module"]
    }
    graph = import_graph(TREE)
    read, ahead = set(), [FRONT, *COMPILED]
    while ahead:
        file = ahead.pop()
        if file not in read:
            read.add(file)
            ahead += graph.get(file, ())
    libraries = {module.split(".")[0] for file in read for module in imported(TREE[file], TREE)}
    assert libraries - set(sys.stdlib_module_names) - {"penstock"} <= required | ignored


def test_every_heavy_library_is_still_used_where_it_is_allowed():
    used = {(module.split(".")[0], file) for file in FILES for module in imported(TREE[file], TREE)}
    assert {(library, file) for library, files in HEAVY.items() for file in files} <= used


PURE_LAYERS = {
    "core",
    "codec",
    *(f"{name}.py" for name in ("chaos_text", "config", "errors", "log_level_text", "option_fields", "server_names")),
}
PURE_FILES = {
    *(f"transfer/{name}.py" for name in ("addresses", "allowed_places", "part_names", "place_rules", "places")),
    "transfer/web_body.py",
    *(f"artifact/{name}.py" for name in ("current_file", "manifest_json", "strict_json")),
}
"""What decides in rooms that touch the world."""
LOCKS = {"codec/type_cache.py": {"threading"}}
"""A lock around what msgspec keeps for all threads of the process."""


def test_the_pure_rooms_touch_no_world():
    world = {"asyncio", "threading", "socket", "time", "os", "subprocess", "select", "signal", "multiprocessing"}
    for file in FILES:
        pure = Path(file).parts[0] in PURE_LAYERS or file.startswith(("jobs/rules/", "cli/config_files/"))
        if pure or file in PURE_FILES:
            found = {module.split(".")[0] for module in imported(TREE[file], TREE)}
            assert found & world == LOCKS.get(file, set()), file


# -- circles, names, the compiled build, time -------------------------------------------------------------------------

DOCSTRINGS = {"Service.state": "users read it where they look for it: the class is public"}
"""Methods that say again what a Protocol says."""

RULES = {
    "levels": (upward_imports, UPWARD),
    "basenames": (lambda: shared_basenames(FILES), BASENAMES),
    "names_of_libraries": (lambda: named_as_libraries(FILES, {*HEAVY, *LIGHT}), LIBRARY_NAMES),
    "public_names": (lambda: shared_names(TREE), NAMES),
    "docstrings": (lambda: repeated_docstrings(TREE), DOCSTRINGS),
    "compiled_bases": (lambda: compiled_bases(TREE, COMPILED), SUBCLASSES),
    "compiled_modules": (lambda: missing_modules(TREE, COMPILED), NOT_THERE),
    "time": (lambda: asks_the_time(TREE), TIMED),
}
"""What each rule objects to in the tree, and what is let pass."""


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_each_rule(rule):
    find_offences, exceptions = RULES[rule]
    found = find_offences()
    assert set(found) - set(exceptions) == set(), found


@pytest.mark.parametrize("rule", RULES)
def test_every_exception_to_a_rule_is_still_needed(rule):
    find_offences, exceptions = RULES[rule]
    assert set(exceptions) - set(find_offences()) == set()


def test_no_imports_go_in_a_circle():
    assert circles(without(import_graph(TREE), CIRCULAR)) == set()


def test_every_import_that_may_close_a_circle_still_closes_one():
    graph = import_graph(TREE)
    for edge in CIRCULAR:
        others = without(graph, set(CIRCULAR) - {edge})
        assert edge[1] in graph.get(edge[0], ()), edge
        assert shortest_path(others, edge[1], edge[0]) is not None, edge


# -- the walk itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b, c", {"a.b", "c"}),
        ("from a.b import c", {"a.b"}),
        ("from penstock import errors, config", {"penstock.errors", "penstock.config"}),
        ("from penstock.codec import pickle_", {"penstock.codec.pickle_"}),
        ("def f():\n    import late", {"late"}),
        ("if TYPE_CHECKING:\n    import never\nelse:\n    import always", {"never", "always"}),
        ("if typing.TYPE_CHECKING:\n    import never", {"never"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
    ],
)
def test_every_import_is_found(source, found):
    assert imported(source, TREE) == found


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
