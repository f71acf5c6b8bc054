"""Measure Penstock against the floor and mosec, all interleaved in one run, and say what each request cost.

    python bench/run.py                              # seven rounds of everything
    python bench/run.py --rounds 3 --seconds 1       # a first look
    python bench/run.py --only floor,penstock --check

Every server is started once and measured once a round, in an order that turns from round to round, so that what
else the machine does hits all alike.  Ratios are taken between the measurements of one round and then summed up.
What was seen is written, whole, to bench/results/.  With --check the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from loadgen import LoadFailed, run_load
from procfs import machine_busy
from report import Measurement, Run, keep, summarise
from servers import LARGE, SUBJECTS, Server, ServerFailed

EVERYTHING = {**SUBJECTS, **LARGE}
SCENES = {"large": list(LARGE)}
"""What `--only` takes besides the names of servers: those of several."""


def measure(server: Server, number: int, *, connections: int, seconds: float, warmup: float) -> Measurement:
    """Load one server for `seconds` and say what it cost.  Raises LoadFailed if an answer was wrong."""
    subject = server.subject
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
    coordinator, workers = server.costs()
    coordinator_cpu = coordinator.cpu - coordinator_before.cpu
    worker_cpu = workers.cpu - workers_before.cpu
    others = machine_busy() - busy_before - coordinator_cpu - worker_cpu - load.load_cpu_seconds
    return Measurement(
        subject=f"{subject.name}@{connections}" if subject.loads else subject.name,
        round=number,
        load=load,
        coordinator_us=coordinator_cpu / load.completed * 1e6,
        workers_us=worker_cpu / load.completed * 1e6,
        load_us=load.load_cpu_seconds / load.completed * 1e6,
        others_cores=max(0.0, others / (time.monotonic() - begin)),
        coordinator_rss=coordinator.rss,
        workers_rss=workers.rss,
        pss=coordinator.pss + workers.pss,
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Penstock, the floor and mosec in one run.")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each server (default: 7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (default: 4)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before each, not counted (default: 0.5)")
    parser.add_argument("--connections", type=int, default=256, help="keep-alive connections (default: 256)")
    parser.add_argument("--only", default=",".join(EVERYTHING), help=f"of: large, {', '.join(EVERYTHING)}")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    chosen = parser.parse_args()
    chosen.only = [name for word in chosen.only.split(",") for name in SCENES.get(word, [word])]
    unknown = [name for name in chosen.only if name not in EVERYTHING]
    if unknown or chosen.rounds < 1 or chosen.seconds <= 0:
        parser.error(f"no server {unknown[0]!r}" if unknown else "--rounds and --seconds must be above 0")
    return chosen


def take_all(chosen: argparse.Namespace) -> list[Measurement]:
    """Start every server, measure each once a round, stop them."""
    taken = []
    with ExitStack() as stack:
        servers = []
        for name in chosen.only:
            server = Server(EVERYTHING[name])
            stack.callback(server.stop)
            server.wait_ready()
            servers.append(server)
        for number in range(chosen.rounds):
            turn = number % len(servers)
            for server in servers[turn:] + servers[:turn]:
                for connections in server.subject.loads or (chosen.connections,):
                    measurement = measure(
                        server, number, connections=connections, seconds=chosen.seconds, warmup=chosen.warmup
                    )
                    taken.append(measurement)
                    print(f"round {number + 1}/{chosen.rounds}  {measurement.line()}", file=sys.stderr, flush=True)
    return taken


def main() -> int:
    chosen = arguments()
    try:
        taken = take_all(chosen)
    except (LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    settings = {name: float(getattr(chosen, name)) for name in ("rounds", "seconds", "warmup", "connections")}
    where = machine("uvloop", "httptools", "msgspec", "mosec")
    run = Run(when=datetime.now(UTC), machine=where, settings=settings, measurements=taken)
    met = summarise(run)
    print(f"\nEverything that was measured: {keep(run, f'{run.when:%Y%m%d-%H%M%S}')}")
    return 1 if chosen.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
