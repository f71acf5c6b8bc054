"""Measure Penstock against the floor and mosec, all interleaved in one run, and say what each request cost.

    python bench/run.py                              # seven rounds of everything
    python bench/run.py --rounds 3 --seconds 1       # a first look
    python bench/run.py --only floor,penstock --check
    python bench/run.py --connections 1,8,32,256     # each server over each of them

Every server is started once and measured once a round over each number of connections, in an order that turns from
round to round, so that what else the machine does hits all alike.  Ratios are taken between the measurements of one
round and then summed up.  What was seen is written, whole, to bench/results/.  With --check the exit status is 1 when a
target is missed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from device import Ideal
from loadgen import LoadFailed, run_load
from procfs import machine_busy
from report import PROMISED_OVER, Measurement, Run, figure_name, keep, summarise
from servers import HOLD, LARGE, SUBJECTS, Server, ServerFailed, Subject

PLAIN = {**SUBJECTS, **LARGE}
"""What is measured unless something else is chosen."""
EVERYTHING = {**PLAIN, **HOLD}
SCENES = {"large": list(LARGE), "hold": list(HOLD)}
"""What `--only` takes besides the names of servers: those of several."""


def measure(
    server: Server, number: int, *, connections: int, several: bool, seconds: float, warmup: float
) -> Measurement:
    """Load one server for `seconds` and say what it cost.  Raises LoadFailed if an answer was wrong."""
    subject = server.subject
    slept_before = server.sleeps()
    busy_before, begin = machine_busy(), time.monotonic()
    coordinator_before, workers_before = server.costs()
    load = run_load(
        server.port,
        subject.path,
        connections=connections,
        seconds=seconds,
        warmup=warmup,
        numbered=subject.numbered,
        exchange=subject.exchange,
    )
    slept = server.sleeps()
    coordinator, workers = server.costs()
    coordinator_cpu = coordinator.cpu - coordinator_before.cpu
    worker_cpu = workers.cpu - workers_before.cpu
    others = machine_busy() - busy_before - coordinator_cpu - worker_cpu - load.load_cpu_seconds
    return Measurement(
        subject=figure_name(subject.name, connections, several=several),
        round=number,
        load=load,
        coordinator_us=coordinator_cpu / load.completed * 1e6,
        workers_us=worker_cpu / load.completed * 1e6,
        load_us=load.load_cpu_seconds / load.completed * 1e6,
        others_cores=max(0.0, others / (time.monotonic() - begin)),
        coordinator_rss=coordinator.rss,
        workers_rss=workers.rss,
        pss=coordinator.pss + workers.pss,
        connections=connections,
        ideal=Ideal.of(connections, slept - slept_before) if slept and slept_before else None,
    )


def machine(*libraries: str) -> dict[str, str]:
    """Where this was measured, as far as it matters to a figure; with the versions of `libraries`."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    packages = {}
    for name in libraries:
        try:
            packages[name] = version(name)
        except ModuleNotFoundError:
            packages[name] = "not installed"
    return packages | {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "a sleep of 11.4 ms takes": f"{sleep_takes(0.0114) * 1000:.2f} ms",
    }


def sleep_takes(seconds: float) -> float:
    """How long a sleep really is here: the simulated accelerator cannot be faster than that."""
    begin = time.perf_counter()
    for _ in range(20):
        time.sleep(seconds)
    return (time.perf_counter() - begin) / 20


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was chosen: `only` as a list of servers, `connections` as one of numbers."""
    parser = argparse.ArgumentParser(description="Measure Penstock, the floor and mosec in one run.")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each server (default: 7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (default: 4)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before each, not counted (default: 0.5)")
    parser.add_argument(
        "--connections",
        type=numbers,
        default=[PROMISED_OVER],
        help=f"keep-alive connections, one number or several, as 1,8,32,256 (default: {PROMISED_OVER})",
    )
    parser.add_argument(
        "--only", default=",".join(PLAIN), help=f"of: {', '.join([*SCENES, *EVERYTHING])} (default: all but hold)"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    chosen = parser.parse_args(words)
    names = itertools.chain.from_iterable(SCENES.get(word, [word]) for word in chosen.only.split(","))
    chosen.only = list(dict.fromkeys(names))  # once each: a scene may have what was named beside it
    unknown = [name for name in chosen.only if name not in EVERYTHING]
    if unknown or chosen.rounds < 1 or chosen.seconds <= 0:
        parser.error(f"no server {unknown[0]!r}" if unknown else "--rounds and --seconds must be above 0")
    return chosen


def numbers(text: str) -> list[int]:
    """Numbers of connections between commas, each once.  Raises ValueError where one is below 1."""
    found = list(dict.fromkeys(map(int, text.split(","))))
    if min(found) < 1:
        raise ValueError(text)
    return found


def turns(subjects: Sequence[Subject], connections: Sequence[int], number: int) -> Iterator[tuple[int, int]]:
    """What round `number` measures, one after the other: which of the subjects, and over how many connections.

    A subject follows another over the same number of connections, since ratios are between those.
    """
    turn = number % len(subjects)
    order = [*range(turn, len(subjects)), *range(turn)]
    loads = [subject.loads or connections for subject in subjects]
    for at in range(max(map(len, loads))):
        yield from ((which, loads[which][at]) for which in order if at < len(loads[which]))


def take_all(
    subjects: Sequence[Subject], connections: Sequence[int], *, rounds: int, seconds: float, warmup: float
) -> list[Measurement]:
    """Start every server, measure each once a round over each number of connections, stop them."""
    taken = []
    with ExitStack() as stack:
        servers = []
        for subject in subjects:
            server = Server(subject)
            stack.callback(server.stop)
            server.wait_ready()
            servers.append(server)
        for number in range(rounds):
            for which, over in turns(subjects, connections, number):
                several = len(subjects[which].loads or connections) > 1
                measurement = measure(
                    servers[which], number, connections=over, several=several, seconds=seconds, warmup=warmup
                )
                taken.append(measurement)
                print(f"round {number + 1}/{rounds}  {measurement.line()}", file=sys.stderr, flush=True)
    return taken


def main() -> int:
    chosen = arguments()
    try:
        taken = take_all(
            [EVERYTHING[name] for name in chosen.only],
            chosen.connections,
            rounds=chosen.rounds,
            seconds=chosen.seconds,
            warmup=chosen.warmup,
        )
    except (LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    settings = {name: float(getattr(chosen, name)) for name in ("rounds", "seconds", "warmup")}
    settings["connections"] = chosen.connections
    where = machine("uvloop", "httptools", "msgspec", "mosec")
    run = Run(when=datetime.now(UTC), machine=where, settings=settings, measurements=taken)
    met = summarise(run)
    print(f"\nEverything that was measured: {keep(run, f'{run.when:%Y%m%d-%H%M%S}')}")
    return 1 if chosen.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
