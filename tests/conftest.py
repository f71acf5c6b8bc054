"""What every test is held to: one whole build of Penstock under it, and nothing it starts outlives it.

Orphans are given to this process instead of to init, so that a child of a worker that lost its parent is seen too.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
import uvloop

TESTS = Path(__file__).parent
# Tests anywhere import the stage classes in integration/ by the name of their module, because a worker process does so:
# it finds a class by module and name, on the sys.path of the process that started it.  The helpers beside them
# (processes, programs, served, waiting, notes_and_gates) are found in the same way.
sys.path.append(str(TESTS / "integration"))
# The rules of the layers, and the program that draws the pictures of the documentation.
sys.path += [str(TESTS), str(TESTS.parent / "docs")]

from night import HANG_SECONDS, NIGHT, examples  # noqa: E402  (the path is set above)

PR_SET_CHILD_SUBREAPER = 36
GRACE = 20.0  # seconds for a child that is on its way out; nothing waits this long when all is well

# A shell without job control starts what runs in the background with the first two ignored, and `nohup` anything with
# the third; programs inherit that.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# By day the same examples in each run: an old fault refuses no new change.  By night new ones, ten times as many; who
# says how many says it by `examples`.  By default an example fails after 200 ms; one may wait for the CPU longer.
hypothesis.settings.register_profile("day", hypothesis.settings(deadline=None, derandomize=True))
hypothesis.settings.register_profile("night", hypothesis.settings(deadline=None, max_examples=examples(100)))
hypothesis.settings.load_profile("night" if NIGHT else "day")

TIMEOUT_REPEAT_SECONDS = 5.0
"""How long after a test's timeout it is raised again.

What is raised within a callback of an event loop is logged by the loop, and the test would then wait for ever.  The
next one comes while the loop sleeps, and ends it.
"""

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

if os.environ.get("PENSTOCK_SHM_BYTES") == "0":
    # `make night-sources`: programs take it from there, services in this process read no variables.
    from penstock.core import slab_sizes

    slab_sizes.DEFAULT_BYTES = 0

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


WITH_PROGRAMS = (
    "tests/acceptance/",
    "tests/faults/",
    "tests/integration/",
    "tests/test_docs.py::test_a_reader_who_does_what_a_page_says_gets_what_it_says",
)
"""Tests that start whole programs, each for a second of CPU: how their names begin."""


def pytest_addoption(parser):
    parser.addoption("--short", action="store_true", help="of the tests with whole programs only those marked `smoke`")


def pytest_collection_modifyitems(config, items):
    """Leave out what `make test` does."""
    if config.option.short:
        left_out = [item for item in items if item.nodeid.startswith(WITH_PROGRAMS) and "smoke" not in item.keywords]
        config.hook.pytest_deselected(items=left_out)
        chosen = {*left_out}
        items[:] = [item for item in items if item not in chosen]


def modules_to_compile() -> set[str]:
    """What `setup.py` hands to the compiler: files below the package."""
    setup = Path(__file__).parents[1] / "setup.py"
    for statement in ast.parse(setup.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name("COMPILED")], value=names):
                return set(ast.literal_eval(names))
    raise AssertionError("setup.py has no list COMPILED")


def extension_modules() -> set[str]:
    """The files below the package that are imported as extension modules; nothing is imported to find out."""
    (root,) = find_spec("penstock").submodule_search_locations
    return {
        path.relative_to(root).as_posix()
        for path in Path(root).rglob("*.py")
        if isinstance(PathFinder.find_spec(path.stem, [str(path.parent)]).loader, ExtensionFileLoader)
    }


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what pytest makes of the test files, also where the environment lets Python write no bytecode.

    To make it takes twelve seconds of CPU, in each process of each run.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


@pytest.hookimpl(trylast=True)  # by then hypothesis is initialised
def pytest_sessionstart() -> None:
    """Have hypothesis look at every character there is.

    On a machine's first run that takes four seconds of CPU, and the result is written to a file.  Here that is no
    test's time: on a loaded machine a test ran into its limit by it.
    """
    hypothesis.strategies.text().validate()


def pytest_configure() -> None:
    """End the run where Penstock is not installed whole: it would test a build that nobody has."""
    found, wanted = extension_modules(), modules_to_compile()
    if found and found != wanted:
        raise pytest.UsageError(
            "penstock is neither sources nor compiled: "
            f"not compiled {sorted(wanted - found)}, compiled without being in setup.py's list {sorted(found - wanted)}"
        )
    (package,) = find_spec("penstock").submodule_search_locations
    if not Path(package, "server/pages/assets").is_dir():
        raise pytest.UsageError(f"no install has put its files into {package}: pip install -e .")


def pytest_report_header() -> str:
    """Say which build of Penstock is tested."""
    count = len(extension_modules())
    return f"penstock: compiled, {count} modules" if count else "penstock: sources"


def pytest_asyncio_loop_factories(config, item):
    """A module says ``LOOPS = ("asyncio", "uvloop")`` to run its tests on each of these; else asyncio's own."""
    names = getattr(getattr(item, "module", None), "LOOPS", ("asyncio",))
    return {name: LOOPS[name] for name in names}


def childless() -> bool:
    """Whether this process has no child at all, not even one that has ended; nothing is reaped to find out."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def children() -> dict[int, str]:
    """Living children of this process and their command lines."""
    if childless():  # as in nearly every unit test; to look through all processes takes milliseconds, twice a test
        return {}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(after_name[1]) == os.getpid() and after_name[0] != "Z":
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
    # One of Python and one of ours for the whole process, kept until it ends.
    return {
        pid: line
        for pid, line in found.items()
        if "multiprocessing.resource_tracker" not in line and not ("penstock-reaper" in line and is_our_reaper(pid))
    }


def is_our_reaper(pid: int) -> bool:
    """Whether process `pid` is told by this process whose groups to end, and not by a server of a test."""
    from penstock.runtime import group_reaper  # here, because this file is also read over what is no whole build

    with contextlib.suppress(OSError):
        told_by = Path(f"/proc/{pid}/fd/0").readlink()
        return any(told_by == Path(f"/proc/self/fd/{fd}").readlink() for fd in group_reaper.reaper.own_descriptors())
    return False


@pytest.fixture(autouse=True)
def no_child_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process running, and end that process."""
    before = children() if sys.platform == "linux" else {}
    yield
    if sys.platform != "linux":
        return
    deadline = time.monotonic() + GRACE
    while left := {pid: line for pid, line in children().items() if pid not in before}:
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pytest.fail(f"processes were left running: {left}")
        time.sleep(0.01)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings):
    """Raise a timeout again and again, until the test has ended."""
    done = yield
    if settings.method == "signal" and settings.timeout:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, TIMEOUT_REPEAT_SECONDS)
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    """Raise no timeout while a report is made, which would end the run; what follows has as much time again."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        return (yield)
    finally:
        if again:
            signal.setitimer(signal.ITIMER_REAL, max(left, HANG_SECONDS), again)
