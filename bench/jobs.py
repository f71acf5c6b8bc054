"""Measure the job queue: against a floor that only claims and commits, and where it promises something.

    python bench/jobs.py                                     # everything, three rounds
    python bench/jobs.py --rounds 5 --only sqlite,redis      # throughput alone
    python bench/jobs.py --plain                             # the sources, nothing compiled

In each round each scene is played once, one after the other, so that what else the machine does hits all alike.  What
was seen is written, whole, to bench/results/.  The exit status is 1 when a limit is missed, 2 when nothing could be
measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from builds import COMPILED, SOURCES
from job_figures import Figure, JobsRun, Seen, summarise
from job_scenes import (
    LEASE_SECONDS,
    POLL_SECONDS,
    Setting,
    Values,
    beside_http,
    fairness,
    idle,
    overlap,
    reclaim,
    throughput,
)
from loadgen import LoadFailed
from report import Limit, keep
from run import machine
from servers import ServerFailed

THROUGHPUT = (
    Figure("jobs/s", form=",.0f"),
    Figure("jobs/s of the floor", form=",.0f"),
    Figure("jobs/s, penstock / floor", Limit(0.2), ".3f"),
    Figure("consumer CPU, us a job", Limit(60.0, at_least=False), ".1f"),
    Figure("workers' CPU, us a job", form=".1f"),
)
IDLE = (Figure("CPU, of one core", Limit(0.01, at_least=False), ".2%"),)
RECLAIM = (Figure("seconds from the kill to the next claim", Limit(LEASE_SECONDS + POLL_SECONDS, at_least=False)),)

SCENES: dict[str, tuple[Callable[[Setting], Values], Sequence[Figure]]] = {
    "sqlite": (throughput("sqlite"), THROUGHPUT),
    "redis": (throughput("redis"), THROUGHPUT),
    "overlap": (overlap, (Figure("time in which the worker idles", Limit(0.05, at_least=False), ".1%"),)),
    "fairness": (fairness, (Figure("jobs of the busier of two", Limit(0.6, at_least=False), ".1%"),)),
    "http": (
        beside_http,
        (
            Figure("HTTP p99 alone, ms", form=".1f"),
            Figure("HTTP p99 beside jobs, ms", form=".1f"),
            Figure("rise of p99, batch times", Limit(2.0, at_least=False)),
            Figure("requests/s beside jobs", form=",.0f"),
            Figure("jobs/s alone", form=",.0f"),
            Figure("jobs/s beside HTTP", form=",.0f"),
            Figure("jobs, of what HTTP leaves", Limit(0.9)),
        ),
    ),
    "idle-sqlite": (idle("sqlite"), IDLE),
    "idle-redis": (idle("redis"), IDLE),
    "reclaim-sqlite": (reclaim("sqlite"), RECLAIM),
    "reclaim-redis": (reclaim("redis"), RECLAIM),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the job queue, and hold it to what it promises.")
    parser.add_argument("--rounds", type=int, default=3, help="values of each figure (default: 3)")
    parser.add_argument("--jobs", type=int, default=20_000, help="no-op jobs of a round (default: 20000)")
    parser.add_argument("--only", default=",".join(SCENES), help=f"of: {', '.join(SCENES)}")
    parser.add_argument("--plain", action="store_true", help="run the sources instead of the compiled build")
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",")
    unknown = [name for name in chosen.only if name not in SCENES]
    if unknown or chosen.rounds < 1 or chosen.jobs < 1:
        parser.error(f"no scene {unknown[0]!r}" if unknown else "--rounds and --jobs must be above 0")
    return chosen


def play_all(chosen: argparse.Namespace) -> Iterator[Seen]:
    """Every round of every scene asked for."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-jobs-")))
        setting = Setting(folder, SOURCES if chosen.plain else COMPILED, chosen.jobs, stack)
        for number in range(chosen.rounds):
            for name in chosen.only:
                values = SCENES[name][0](setting)
                for figure, value in values.items():
                    yield Seen(name, figure, number, value)
                told = "  ".join(f"{figure} {value:.4g}" for figure, value in values.items())
                print(f"round {number + 1}/{chosen.rounds}  {name:14} {told}", file=sys.stderr, flush=True)


def main() -> int:
    chosen = arguments()
    try:
        seen = list(play_all(chosen))
    except (LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    run = JobsRun(
        when=datetime.now(UTC),
        machine={"build": "plain" if chosen.plain else "compiled", **machine("uvloop", "msgspec", "redis")},
        settings={"rounds": chosen.rounds, "jobs": chosen.jobs},
        seen=seen,
    )
    met = summarise(run, [(name, SCENES[name][1]) for name in chosen.only])
    print(f"Everything that was measured: {keep(run, f'{run.when:%Y%m%d-%H%M%S}-jobs')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
