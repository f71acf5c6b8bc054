"""Measure this tree's compiled build against that of another commit, interleaved, and hold the ratios to limits.

    python bench/against.py HEAD               # what the machine cannot tell apart
    python bench/against.py v0.1.0 --rounds 9
    python bench/against.py HEAD~3 --only bytes,import
    python bench/against.py HEAD~3 --only log-1,log-256     # what the access log costs

Both are run by the interpreter that was made for the commit, so from the same libraries; both are loaded by this
tree's load generator and serve this tree's services.  In each round and for each work both are started anew, side by
side: where a process's memory happens to lie changes what a request costs by some per cent, and one start would be
taken for the build.  They are then loaded in turns, in slices of a fixed number of requests that takes the commit
SLICE_SECONDS, now one first and now the other.  So both have the same history when their memory is read, and what
else the machine does hits both alike.

The exit status is 1 when a limit is missed, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from builds import COMPILED, HERE, Build, BuildFailed, build_commit
from comparison import Comparison, Round, summarise
from loadgen import Loader, LoadFailed
from report import keep
from run import machine
from servers import BYTES, LARGE, LOGGED, SUBJECTS, WITH_TERMS, Server, ServerFailed, Subject

SLICE_SECONDS = 0.05
"""How long a slice takes the commit.

Short, so that both builds get the same share of what else the machine does: other guests of a virtual machine take its
cores for tenths of a second.  With equal builds and the same time in all, the ratios of the rounds were 0.88 to 1.05
in slices of 0.25 s, and 0.99 to 1.02 in slices of 0.05 s.
"""

SLICES = 64
"""How often each build is loaded in a round."""

WARMUP_SLICES = 8

IMPORTS = 16
"""How often each build is imported in a round."""

STEADY = {
    "PYTHONHASHSEED": "0",
    # By default malloc gives the top of the heap back to the kernel, unless something small happens to lie above the
    # large buffers: two servers of one build then differ by 10 % in CPU and by 30 % in memory at `bytes`.  With these
    # it gives nothing back, and memory is what was needed at most.  32 MiB is the most that every glibc takes.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
"""In the environment of both builds: what would otherwise be drawn by lot at each start."""

IMPORT = "import"

IMPORTING = """
import time
begin = time.process_time()
import penstock
middle = time.process_time()
import penstock.server.serve
print(middle - begin, time.process_time() - begin, penstock.__file__)
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What both builds are given to do."""

    name: str
    subject: Subject
    connections: int
    one_core: bool = False
    """Whether servers and load generators share one core.

    What an echo costs is CPU alone.  Over several cores the rate would tell where the scheduler put three processes,
    and how deep an idle core slept: it varied twice as much.
    """
    slices: int = SLICES


WORKS = (
    Work("echo-1", SUBJECTS["penstock"], 1, one_core=True),
    Work("echo-32", SUBJECTS["penstock"], 32, one_core=True),
    Work("echo-256", SUBJECTS["penstock"], 256, one_core=True),
    Work("terms-256", WITH_TERMS, 256, one_core=True),
    Work("log-1", LOGGED, 1, one_core=True),
    Work("log-256", LOGGED, 256, one_core=True),
    # Each connection has four requests in a slice, which is 0.2 s here.  The rate hardly varies.
    Work("accelerator", SUBJECTS["accelerator"], 256, slices=SLICES // 4),
    Work("bytes", BYTES, 32),
    Work("large-32", LARGE["large-memoryview"], 32),
    # As `accelerator`: four requests of each connection take most of a second.
    Work("large-256", LARGE["large-memoryview"], 256, slices=SLICES // 4),
)


class Loaded:
    """One build that serves one work, its load generator, and what was seen of it."""

    def __init__(self, server: Server, loader: Loader) -> None:
        self._server = server
        self._loader = loader
        self.seen: dict[str, list[float]] = {"rate": [], "cpu": [], "coordinator": [], "workers": []}
        """The figures of each slice."""
        self._requests = 0

    def load(self, requests: int) -> float:
        """Seconds that so many requests take; not part of what was seen."""
        self._requests += requests
        return self._loader.run(requests).seconds

    def check_log(self) -> None:
        """Raise ServerFailed if the server's log lacks a line that it should have for a request."""
        self._server.check_log(self._requests)

    def measure(self, requests: int) -> None:
        """Send so many requests; see what they took and cost, and the memory after them."""
        before = self._server.cpu_seconds()
        seconds = self.load(requests)
        cpu = self._server.cpu_seconds() - before
        coordinator, workers = self._server.costs()
        self.seen["rate"].append(requests / seconds)
        self.seen["cpu"].append(cpu / requests)
        self.seen["coordinator"].append(coordinator.rss)
        self.seen["workers"].append(workers.rss)


@contextmanager
def on_cores(*, one_core: bool) -> Iterator[None]:
    """Keep this program, and what it starts meanwhile, on the cores it has, or on `one_core` of them."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)} if one_core else allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def side_by_side(*subjects: Subject, connections: int, compiled: bool = True) -> Iterator[list[Loaded]]:
    """Start `subjects` side by side; yields each when all are ready and run what they should."""
    with ExitStack() as stack:
        servers = []
        for subject in subjects:
            servers.append(Server(subject))
            stack.callback(servers[-1].stop)
        for server in servers:
            server.wait_ready()
            if compiled:
                server.check_build()
        yield [
            Loaded(
                server,
                stack.enter_context(
                    Loader(server.port, subject.path, connections=connections, exchange=subject.exchange)
                ),
            )
            for server, subject in zip(servers, subjects, strict=True)
        ]


@contextmanager
def serving(work: Work, *builds: Build) -> Iterator[list[Loaded]]:
    """Start `builds` side by side at `work`, on the cores that are meant for it."""
    subjects = [replace(work.subject, build=build) for build in builds]
    with on_cores(one_core=work.one_core), side_by_side(*subjects, connections=work.connections) as sides:
        yield sides


def in_turns(first: int, times: int) -> Iterator[int]:
    """0 and 1, each `times` times, one after the other in an order that turns: 0 1, 1 0, 0 1 ... if `first` is 0."""
    for number in range(times):
        one = (first + number) % 2
        yield one
        yield 1 - one


def slice_size(work: Work, build: Build) -> int:
    """How many requests take `build` about SLICE_SECONDS."""
    with serving(work, build) as (loaded,):
        return slice_of(loaded, work.connections)


def slice_of(loaded: Loaded, connections: int) -> int:
    """How many requests take a server about SLICE_SECONDS: a multiple of the connections, four for each at least."""
    requests = connections
    while (seconds := loaded.load(requests)) < SLICE_SECONDS:
        requests *= 2
    seconds = min(seconds, loaded.load(requests))
    each = round(requests / seconds * SLICE_SECONDS / connections)
    return connections * max(4, each)


def measure_work(work: Work, number: int, builds: tuple[Build, Build], requests: int) -> Round:
    """One round of one work, in slices of so many requests."""
    with serving(work, *builds) as sides:
        for turn in in_turns(number, WARMUP_SLICES):
            sides[turn].load(requests)
        for turn in in_turns(number, work.slices):
            sides[turn].measure(requests)
        for side in sides:
            side.check_log()
    return Round(work.name, number, *(side.seen for side in sides))


def measure_import(number: int, builds: tuple[Build, Build]) -> Round:
    """One round of imports, each in a new process."""
    seen: list[dict[str, list[float]]] = [{"penstock": [], "penstock.server.serve": []} for _ in builds]
    for turn in in_turns(number, IMPORTS):
        for module, seconds in zip(seen[turn], import_seconds(builds[turn]), strict=True):
            seen[turn][module].append(seconds)
    return Round(IMPORT, number, *seen)


def import_seconds(build: Build) -> tuple[float, float]:
    """CPU seconds in which a new process imports `penstock`, and in which it has imported its server too."""
    done = subprocess.run(
        [build.python, "-c", IMPORTING], cwd=HERE, env=build.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerFailed(f"{build.name} cannot be imported:\n{done.stderr}")
    package, server, file = done.stdout.split(maxsplit=2)
    if file.strip() != str(build.packages / "penstock" / "__init__.py"):
        raise ServerFailed(f"{build.name} was to be imported from {build.packages}, but came from {file}")
    return float(package), float(server)


def arguments() -> argparse.Namespace:
    names = [*(work.name for work in WORKS), IMPORT]
    parser = argparse.ArgumentParser(description="Measure this tree's compiled build against another commit's.")
    parser.add_argument("commit", help="what to measure against: anything that git can find a commit by")
    parser.add_argument("--rounds", type=int, default=5, help="ratios taken of each figure (default: 5)")
    parser.add_argument("--only", default=",".join(names), help=f"of: {', '.join(names)}")
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",")
    unknown = [name for name in chosen.only if name not in names]
    if unknown or chosen.rounds < 1:
        parser.error(f"no work {unknown[0]!r}" if unknown else "--rounds must be above 0")
    return chosen


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def take_all(chosen: argparse.Namespace, builds: tuple[Build, Build]) -> list[Round]:
    """Every round of every work asked for."""
    works = [work for work in WORKS if work.name in chosen.only]
    sizes = {work.name: slice_size(work, builds[1]) for work in works}
    taken = []
    for number in range(chosen.rounds):
        for work in works:
            taken.append(measure_work(work, number, builds, sizes[work.name]))
            tell(f"round {number + 1}/{chosen.rounds}  {taken[-1].line()}")
        if IMPORT in chosen.only:
            taken.append(measure_import(number, builds))
            tell(f"round {number + 1}/{chosen.rounds}  {taken[-1].line()}")
    return taken


def main() -> int:
    chosen = arguments()
    os.environ.update(STEADY)
    try:
        tell(f"building {chosen.commit}, unless it is there")
        commit = build_commit(chosen.commit)
        begin = time.monotonic()
        taken = take_all(chosen, (replace(COMPILED, python=commit.python), commit))
    except (BuildFailed, LoadFailed, ServerFailed) as failure:
        tell(f"bench: {failure}")
        return 2
    comparison = Comparison(
        when=datetime.now(UTC),
        commit=commit.name,
        machine=machine("uvloop", "httptools", "msgspec"),
        settings={"rounds": chosen.rounds, "slices": SLICES, "seconds of a slice": SLICE_SECONDS},
        rounds=taken,
    )
    met = summarise(comparison)
    print(f"It took {time.monotonic() - begin:.0f} s.")
    print(f"Everything that was measured: {keep(comparison, f'{comparison.when:%Y%m%d-%H%M%S}-against-{commit.name}')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
