"""Measure how long small requests take beside large bodies, on this tree's build and on another commit's.

    python bench/beside.py HEAD~1                     # seven rounds
    python bench/beside.py HEAD~1 --rounds 3

Each build serves the echo and a service for bodies of 16 MB, as one server.  While 8 connections send such bodies, one
after the other, 32 others echo eight floats.  Both builds are measured in each round, in turns, so that what else the
machine does hits both.  The exit status is 1 where the median of the ratio misses its limit.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from builds import COMPILED, Build, BuildFailed, build_commit
from loadgen import LoadFailed, LoadResult, run_load
from payload import FLOATS, SIXTEEN_MB
from report import RATIO_HEADER, Limit, keep, show, spread
from run import machine
from servers import Server, ServerFailed, Subject, penstock_command

LARGE_CONNECTIONS, ECHO_CONNECTIONS = 8, 32
P99_LIMIT = Limit(1.0, at_least=False)
SERVED = Subject(
    "beside",
    penstock_command("beside_services:echo", "beside_services:large"),
    "/echo/predict",
    worker_mark="penstock.worker",
)


class Beside(msgspec.Struct, frozen=True):
    """What was seen of one build in one round."""

    echo: LoadResult
    large: LoadResult


class BesideRun(msgspec.Struct, frozen=True):
    """All that was measured: of this tree and of the commit, round by round."""

    when: datetime
    commit: str
    machine: dict[str, str]
    tree: list[Beside]
    other: list[Beside]


def measure(server: Server, seconds: float) -> Beside:
    """The echo under load while large bodies come."""
    with ThreadPoolExecutor(1) as thread:
        large = thread.submit(
            run_load,
            server.port,
            "/large/predict",
            connections=LARGE_CONNECTIONS,
            seconds=seconds + 1.0,
            exchange=SIXTEEN_MB,
        )
        echo = run_load(
            server.port,
            "/echo/predict",
            connections=ECHO_CONNECTIONS,
            seconds=seconds,
            warmup=1.0,
            exchange=FLOATS,
        )
        return Beside(echo, large.result())


def take_all(builds: tuple[Build, Build], rounds: int, seconds: float) -> tuple[list[Beside], list[Beside]]:
    """Measure both builds in each round; which goes first turns."""
    seen: tuple[list[Beside], list[Beside]] = ([], [])
    with ExitStack() as stack:
        servers = []
        for build in builds:
            server = Server(replace(SERVED, build=build))
            stack.callback(server.stop)
            server.wait_ready()
            server.check_build()
            servers.append(server)
        for number in range(rounds):
            for turn in (number % 2, 1 - number % 2):
                taken = measure(servers[turn], seconds)
                seen[turn].append(taken)
                print(
                    f"round {number + 1}/{rounds}  {builds[turn].name:12} echo p99 {taken.echo.p99_us / 1000:.2f} ms, "
                    f"{taken.echo.rps:,.0f}/s; large {taken.large.rps:,.1f}/s",
                    file=sys.stderr,
                    flush=True,
                )
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the echo beside bodies of 16 MB against another commit.")
    parser.add_argument("commit", help="what to measure against: anything that git can find a commit by")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each build (default: 7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (default: 4)")
    chosen = parser.parse_args()
    try:
        commit = build_commit(chosen.commit)
        tree = replace(COMPILED, python=commit.python)
        seen = take_all((tree, commit), chosen.rounds, chosen.seconds)
    except (BuildFailed, LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    ratios = {
        "echo p99": [ours.echo.p99_us / theirs.echo.p99_us for ours, theirs in zip(*seen, strict=True)],
        "echo requests/s": [ours.echo.rps / theirs.echo.rps for ours, theirs in zip(*seen, strict=True)],
        "16 MB requests/s": [ours.large.rps / theirs.large.rps for ours, theirs in zip(*seen, strict=True)],
    }
    show(
        RATIO_HEADER,
        [
            (name, *spread(values, ".3f"), *(P99_LIMIT if name == "echo p99" else Limit(None)).judge(values))
            for name, values in ratios.items()
        ],
    )
    when = datetime.now(UTC)
    run = BesideRun(when, commit.name, machine("uvloop"), *seen)
    print(f"Everything that was measured: {keep(run, f'{when:%Y%m%d-%H%M%S}-beside-{commit.name}')}")
    return 0 if P99_LIMIT.met(ratios["echo p99"]) else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
