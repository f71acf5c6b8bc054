"""Lower layers never import higher ones, layers of one level never each other, and heavy libraries stay where named.

No circle of imports, no name for two things in a layer, nothing that only the compiled build would refuse, no look at a
clock where the time is told.  Every import counts, also one inside a function or for type checking only.

Each rule is one test over the whole tree, whose failure names every offender.  An exception is a line in a table, with
its reason; one that is no longer needed fails.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from inspect import isclass
from pathlib import Path

from layer_rules import (
    FRONT,
    LEVELS,
    REPOSITORY,
    Graph,
    Tree,
    asks_the_time,
    import_graph,
    imported,
    layer_of,
    module_of,
    read_compiled,
    read_tree,
    shared_names,
)

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
    ("errors", "spelling"),
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
    "numpy": {"codec/numpy_.py", "testing/graphs.py", "testing/row_stores.py", "testing/training_stores.py"},
    "farmhash": {"features/hashing.py"},
    "onnxruntime": {"graphs/onnx_graph.py"},
    "torch": {
        "embeddings/torch_layers.py",
        "export/torch_lookups.py",
        "export/torch_model.py",
        "features/torch_dataset.py",
        "graphs/torch_graph.py",
    },
    "tensorflow": {
        "embeddings/keras_layers.py",
        "export/keras_lookups.py",
        "export/keras_model.py",
        "features/tensorflow_ids.py",
        "features/tensorflow_ops.py",
        "features/tensorflow_raw.py",
        "features/tensorflow_values.py",
        "graphs/tensorflow_graph.py",
    },
    "keras": {"embeddings/keras_layers.py", "export/keras_lookups.py", "export/keras_model.py"},
    "sklearn": {
        "export/sklearn_boosting.py",
        "export/sklearn_model.py",
        "export/sklearn_refusals.py",
        "export/sklearn_selection.py",
        "export/sklearn_voting.py",
    },
    "skl2onnx": {
        "export/sklearn_boosting.py",
        "export/sklearn_conversion.py",
        "export/sklearn_model.py",
        "export/sklearn_refusals.py",
        "export/sklearn_selection.py",
        "export/sklearn_words.py",
    },
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
    "redis": {"jobs/stores/redis_.py", "jobs/stores/redis_connections.py"},
}
"""The libraries with weight, and the files that may import each."""
NUMERIC = {"features", "graphs", "artifact", "embeddings", "export"}
"""The layers of trained models, where numpy may be imported anywhere."""
LIGHT = {"msgspec"}
"""Third-party, and everywhere."""

UPWARD = {
    ("cli/main.py", "penstock"): "tells the version",
    ("embeddings/__init__.py", "penstock.artifact.row_stores"): "people import all of embeddings from there",
    ("cli/worker_check.py", "penstock.testing.command_worker"): "what it runs is a suite for tests",
    ("cli/worker_check.py", "penstock.testing.worker_case"): "what it runs is a suite for tests",
    ("cli/worker_check.py", "penstock.testing.workers"): "what it runs is a suite for tests",
}
"""Imports of what does not lie below, or of the front of the package: file and module."""

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
WORLD = {"asyncio", "threading", "socket", "time", "os", "subprocess", "select", "signal", "multiprocessing"}
LOCKS = {"codec/type_cache.py": {"threading"}}
"""A lock around what msgspec keeps for all threads of the process."""


def nobody_offends(found: Iterable[object]) -> None:
    """Fail with every offender, each on a line of its own, of which pytest would leave some out."""
    lines = [f"{name}: {why}" for name, why in found.items()] if isinstance(found, dict) else sorted(map(str, found))
    assert not lines, "\n".join(["offenders:", *lines])


@cache
def tree() -> Tree:
    return read_tree()


@cache
def imports() -> dict[str, set[str]]:
    """For each file, the modules it imports."""
    return {file: imported(source, tree()) for file, source in tree().items()}


@cache
def graph() -> Graph:
    return import_graph(tree())


@cache
def libraries() -> dict[str, set[str]]:
    """For each file, the first part of each module that it imports, without our own."""
    return {file: {name.partition(".")[0] for name in found} - {"penstock"} for file, found in imports().items()}


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


def test_a_file_imports_only_what_lies_below_it():
    arrows = sorted((file, module) for file, found in imports().items() for module in found)
    offences = {arrow: why for arrow in arrows if (why := offence(*arrow)) is not None}
    nobody_offends({arrow: why for arrow, why in offences.items() if arrow not in UPWARD})
    assert [arrow for arrow in UPWARD if arrow not in offences] == [], "exceptions that are no longer needed"


def test_every_file_is_in_a_room():
    nobody_offends(file for file in tree() if file != FRONT and layer_of(file) not in LEVELS)


def test_every_pair_of_rooms_on_one_level_is_still_needed():
    pairs = {(layer_of(file), layer_of(there)) for file, others in graph().items() for there in others}
    nobody_offends((GROUND | FACADE) - pairs)


def test_no_imports_go_in_a_circle():
    TopologicalSorter(graph()).prepare()


def test_third_party_libraries_are_known_here():
    known = {*HEAVY, *LIGHT, *sys.stdlib_module_names}
    nobody_offends({file: found - known for file, found in libraries().items() if found - known})


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
    read, ahead = set(), [FRONT, *read_compiled()]
    while ahead:
        file = ahead.pop()
        if file not in read:
            read.add(file)
            ahead += graph().get(file, ())
    found = set().union(*(libraries()[file] for file in read))
    nobody_offends(found - set(sys.stdlib_module_names) - required - ignored)


def test_every_heavy_library_is_still_used_where_it_is_allowed():
    allowed = {(library, file) for library, files in HEAVY.items() for file in files}
    nobody_offends(allowed - {(library, file) for file, found in libraries().items() for library in found})


def test_the_pure_rooms_touch_no_world():
    pure = {
        file
        for file in tree()
        if Path(file).parts[0] in PURE_LAYERS
        or file in PURE_FILES
        or file.startswith(("jobs/rules/", "cli/config_files/"))
    }
    assert pure >= PURE_FILES
    touched = {file: libraries()[file] & WORLD for file in sorted(pure)}
    nobody_offends({file: found for file, found in touched.items() if found != LOCKS.get(file, set())})


def test_no_layer_has_two_things_of_one_public_name():
    nobody_offends(shared_names(tree()))


def test_no_interpreted_class_inherits_from_a_compiled_one():
    """It would be fine on the sources, and dead in every install: there to define it raises a TypeError."""
    compiled = {module_of(file) for file in read_compiled()}
    found = set()
    for name in {module_of(file) for file in tree()} - compiled:
        with suppress(ImportError):  # a framework is not here: `make test-export` is over a compiled build
            own = [each for each in vars(import_module(name)).values() if getattr(each, "__module__", "") == name]
            ancestors = {(kind, base) for kind in filter(isclass, own) for base in kind.__mro__ if base is not kind}
            found |= {(kind, base) for kind, base in ancestors if base.__module__ in compiled and not is_open(base)}
    nobody_offends(found)


def is_open(kind: type) -> bool:
    """Whether mypyc leaves a class to Python."""
    return issubclass(kind, BaseException | Enum)


def test_every_module_that_is_to_be_compiled_is_there():
    nobody_offends(set(read_compiled()) - set(tree()))


def test_the_time_is_told_and_not_asked_for():
    nobody_offends(asks_the_time(tree()))


def test_an_import_of_what_lies_above_or_is_heavy_would_be_caught():
    for file, module in (
        ("errors.py", "penstock.core.item"),
        ("core/item.py", "penstock.codec.formats"),
        ("codec/decode.py", "penstock.transport.framing"),
        ("server/app.py", "penstock.service"),
        ("blocking.py", "penstock.service"),
        ("cli/main.py", "penstock.testing"),
        ("core/item.py", "penstock"),
        ("server/app.py", "numpy.linalg"),
    ):
        assert offence(file, module) is not None, (file, module)
