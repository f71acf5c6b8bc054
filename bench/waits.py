"""Measure stages that wait: how close to the ideal, beside a plain line, and how soon a caller that leaves is noticed.

    python bench/waits.py                     # five rounds of everything
    python bench/waits.py --only nap --rounds 3
    python bench/waits.py --plain             # the sources, not what an install compiles

Each round starts the servers of a scene anew, and measures them in turns, so that what else the machine does hits all
alike.  LitServe is measured beside `nap` and `async-echo` where `make bench-waiting` has installed it; it has no limit.

The exit status is 1 when a limit is missed, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from against import STEADY
from builds import COMPILED, HERE, SOURCES, Build
from loadgen import Loader, LoadFailed, run_load
from pair_figures import PairRound, PairRun, Scene, summarise
from payload import Exchange, request
from procfs import machine_busy
from report import Limit, keep
from run import machine
from scene_arguments import scene_arguments
from servers import Server, ServerFailed, Subject, penstock_command
from waiting_notes import NOTES_VARIABLE, read_notes
from waiting_services import MAX_SIZE, NAP_SECONDS

CONNECTIONS = 256
NAP_IDEAL = CONNECTIONS / NAP_SECONDS
HOOKS_CALLERS = 64
HOOKS_IDEAL = MAX_SIZE / NAP_SECONDS
CANCEL_SECONDS = 0.3
"""The time in which a caller that has left is noticed, and its task cancelled."""
LEAVERS = 8
FAST_MACHINE = 5000.0
"""Answers a second of a plain stage without a policy, on a machine that is fast enough for the whole limit of `nap`."""
SLOW_LIMIT = Limit(0.5)
"""The limit of `nap` on any other machine."""

_LATE = Limit(1.0, at_least=False)
SCENES = {
    scene.name: scene
    for scene in (
        Scene("nap", "requests/s", "penstock", "ideal", Limit(0.9)),
        Scene("nap-machine", "requests/s", "a plain stage", "a fast machine", Limit(None)),
        Scene("nap-litserve", "requests/s", "penstock", "LitServe", Limit(None)),
        Scene("async-echo", "requests/s", "async", "plain", Limit(0.6)),
        Scene("async-echo-litserve", "requests/s", "penstock", "LitServe", Limit(None)),
        Scene("hooks", "items/s", "penstock", "ideal", Limit(0.9)),
        Scene("leave", "ms", "cancelled", "promised", _LATE, 1e3),
        Scene("leave-metrics", "ms", "none in progress", "promised", _LATE, 1e3),
    )
}
"""Every pair that is printed; a name with another scene's name before it comes with that one."""
CHOICES = ("nap", "async-echo", "hooks", "leave")

PEER = HERE / "build" / "litserve" / "bin" / "python"
"""The interpreter that has LitServe, where there is one."""
LITSERVE = "LitServe"
IN_FLIGHT = re.compile(r"^penstock_stage_in_flight_items\{[^}]*\} (\S+)$", re.MULTILINE)
PATIENCE_SECONDS = 30.0


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured in a round."""

    nap_turns: int = 2
    nap_seconds: float = 3.0
    plain_seconds: float = 1.0
    echo_turns: int = 16
    echo_requests: int = 4 * CONNECTIONS
    """Requests of a turn."""
    hooks_seconds: float = 6.0
    leave_turns: int = 16


def litserve_version() -> str | None:
    """The version of LitServe in its environment; None where it is not installed."""
    asking = "from importlib.metadata import version; print(version('litserve'))"
    try:
        done = subprocess.run([PEER, "-c", asking], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def ours(name: str, build: Build) -> Subject:
    """The service of `waiting_services.py` with this name."""
    return Subject(name, penstock_command(f"waiting_services:{name}"), worker_mark="penstock.worker", build=build)


def litserve(seconds: float) -> Subject:
    """The echo behind LitServe, after so many seconds."""
    program = str(HERE / "litserve_waiting.py")
    return Subject(LITSERVE, lambda port: [program, str(port), str(seconds)], build=Build("litserve", str(PEER), HERE))


@contextmanager
def served(*subjects: Subject) -> Iterator[list[Server]]:
    """Start them side by side; yields their servers when all are ready, and run what they should."""
    with ExitStack() as stack:
        servers = []
        for subject in subjects:
            servers.append(Server(subject))
            stack.callback(servers[-1].stop)
        for server in servers:
            server.wait_ready()
            if server.subject.build is COMPILED:
                server.check_build()
        yield servers


def take_turns(number: int, turns: int, sides: Sequence[Callable[[], float]]) -> list[list[float]]:
    """Measure each side once a turn, and return its figures; another side is first in each turn."""
    seen: list[list[float]] = [[] for _ in sides]
    for turn in range(number, number + turns):
        for place in range(len(sides)):
            at = (turn + place) % len(sides)
            seen[at].append(sides[at]())
    return seen


def measure_nap(number: int, sizes: Sizes, build: Build, peers: Sequence[Subject]) -> Iterator[PairRound]:
    """One round of naps of 256 callers, of a plain stage, and of LitServe."""

    def rate(server: Server, seconds: float) -> float:
        return run_load(server.port, "/predict", connections=CONNECTIONS, seconds=seconds).rps

    with served(ours("nap", build), ours("plain", build), *peers) as (nap, plain, *others):
        sides = [partial(rate, nap, sizes.nap_seconds), partial(rate, plain, sizes.plain_seconds)]
        sides += [partial(rate, other, sizes.nap_seconds) for other in others]
        naps, plains, *theirs = take_turns(number, sizes.nap_turns, sides)
    yield PairRound("nap", number, naps, [NAP_IDEAL] * len(naps))
    yield PairRound("nap-machine", number, plains, [FAST_MACHINE] * len(plains))
    for rates in theirs:
        yield PairRound("nap-litserve", number, naps, rates)


def measure_echo(number: int, sizes: Sizes, build: Build, peers: Sequence[Subject]) -> Iterator[PairRound]:
    """One round of the echo with `async`, without it, and of LitServe."""
    with served(ours("waits", build), ours("plain", build), *peers) as servers, ExitStack() as stack:
        loaders = [stack.enter_context(Loader(server.port, "/predict", connections=CONNECTIONS)) for server in servers]

        def rate(loader: Loader) -> float:
            return sizes.echo_requests / loader.run(sizes.echo_requests).seconds

        for loader in loaders:
            rate(loader)  # a warm-up
        waits, plains, *theirs = take_turns(number, sizes.echo_turns, [partial(rate, loader) for loader in loaders])
    yield PairRound("async-echo", number, waits, plains)
    for rates in theirs:
        yield PairRound("async-echo-litserve", number, waits, rates)


def measure_hooks(number: int, sizes: Sizes, build: Build) -> Iterator[PairRound]:
    """One round of hooks that wait around a batch."""
    with served(ours("hooks", build)) as (server,):
        seen = run_load(
            server.port, "/predict", connections=HOOKS_CALLERS, seconds=sizes.hooks_seconds, warmup=10 * NAP_SECONDS
        )
    yield PairRound("hooks", number, [seen.rps], [HOOKS_IDEAL])


class Metrics:
    """The metrics of a server, over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)

    def in_flight(self) -> float:
        """Items that the one stage has in progress.  Raises LoadFailed if the server does not say."""
        self._connection.request("GET", "/metrics")
        found = IN_FLIGHT.search(self._connection.getresponse().read().decode())
        if found is None:
            raise LoadFailed("the metrics do not say how many items the stage has")
        return float(found[1])

    def close(self) -> None:
        self._connection.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return when it is so.  Raises LoadFailed if it is not within PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise LoadFailed(f"{what}: not within {PATIENCE_SECONDS:g} s")
        time.sleep(0.001)


def leave(port: int, notes: Path, metrics: Metrics) -> tuple[float, float]:
    """Have callers leave while their items run; seconds to the last cancel, and until none is in progress."""
    wire = request("/predict", port, Exchange(b"[]"))
    wanted = len(read_notes(notes)[0]) + LEAVERS
    with ExitStack() as stack:
        for _ in range(LEAVERS):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(wire)
        wait_for(lambda: len(read_notes(notes)[0]) == wanted, f"{LEAVERS} items run")
        if metrics.in_flight() != LEAVERS:
            raise LoadFailed(f"{LEAVERS} items run, but the metrics say {metrics.in_flight():g}")
        begin = time.monotonic()
    wait_for(lambda: metrics.in_flight() == 0, "none is in progress")
    idle = time.monotonic() - begin
    wait_for(lambda: len(read_notes(notes)[1]) == wanted, f"{LEAVERS} tasks are cancelled")
    return max(read_notes(notes)[1]) - begin, idle


def measure_leave(number: int, sizes: Sizes, build: Build) -> Iterator[PairRound]:
    """One round of callers that leave; it is the slowest turn that counts."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        notes = Path(folder, "notes")
        notes.touch()
        subject = replace(ours("left", build), variables=((NOTES_VARIABLE, str(notes)),))
        with served(subject) as (server,), closing(Metrics(server.port)) as metrics:
            turns = [leave(server.port, notes, metrics) for _ in range(sizes.leave_turns)]
    cancelled, idle = (max(seconds) for seconds in zip(*turns, strict=True))
    yield PairRound("leave", number, [cancelled], [CANCEL_SECONDS])
    yield PairRound("leave-metrics", number, [idle], [CANCEL_SECONDS])


def measure(choice: str, number: int, sizes: Sizes, build: Build, *, beside: bool) -> Iterator[PairRound]:
    """One round of a scene, and of those that come with it; `beside` LitServe where that is asked for."""
    if choice == "nap":
        return measure_nap(number, sizes, build, [litserve(NAP_SECONDS)] if beside else [])
    if choice == "async-echo":
        return measure_echo(number, sizes, build, [litserve(0)] if beside else [])
    return (measure_hooks if choice == "hooks" else measure_leave)(number, sizes, build)


def scenes_of(taken: Sequence[PairRound]) -> list[Scene]:
    """The scenes that were measured, with their limits on this machine."""
    plain = [one.ours for one in taken if one.scene == "nap-machine"]
    slow = bool(plain) and median(map(median, plain)) < FAST_MACHINE
    measured = {one.scene for one in taken}
    return [
        msgspec.structs.replace(scene, limit=SLOW_LIMIT) if name == "nap" and slow else scene
        for name, scene in SCENES.items()
        if name in measured
    ]


def take_all(chosen: argparse.Namespace, *, beside: bool) -> list[PairRound]:
    """Every round of every scene asked for."""
    build, sizes, taken = SOURCES if chosen.plain else COMPILED, Sizes(), []
    for number in range(chosen.rounds):
        for choice in chosen.only:
            for one in measure(choice, number, sizes, build, beside=beside):
                print(f"round {number + 1}/{chosen.rounds}  {one.line()}", file=sys.stderr, flush=True)
                taken.append(one)
    return taken


def own_cpu() -> float:
    """CPU seconds of this program, and of all that it has started and that has ended."""
    return sum(os.times()[:4])


def main() -> int:
    chosen = scene_arguments(
        "Measure stages that wait.",
        CHOICES,
        rounds="ratios taken of each scene",
        plain="run the sources instead of the compiled build",
    )
    os.environ.update(STEADY)
    peer = litserve_version()
    if peer is None:
        print(f"bench: LitServe is left out: it is not installed in {PEER.parents[1]}", file=sys.stderr)
    begin, busy = time.monotonic(), machine_busy() - own_cpu()
    try:
        taken = take_all(chosen, beside=peer is not None)
    except (LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    others = (machine_busy() - own_cpu() - busy) / (time.monotonic() - begin)
    where = {"build": "plain" if chosen.plain else "compiled"} | machine("uvloop")
    where |= {"litserve": peer or "not installed", "others": f"{max(0.0, others):.2f} cores"}
    run = PairRun(datetime.now(UTC), where, {"rounds": chosen.rounds}, scenes_of(taken), taken)
    met = summarise(run)
    print(f"Everything that was measured: {keep(run, f'waiting-{run.when:%Y%m%d-%H%M%S}')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
