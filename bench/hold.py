"""Compare the policy that decides itself when to wait for company with fixed ones, in many simulated cases.

    python bench/hold.py                               # 300 cases for 1, 2 and 4 workers
    python bench/hold.py --workers 1 --cases 50        # a first look
    python bench/hold.py --policy 1:0.1                # a fixed policy in its place: max_wait a, max_idle_gap 0.1 a
    python bench/hold.py --policy module:function      # a queue of one's own: function(case) makes it
    python bench/hold.py --only-case 1:2:17            # one case, every policy

No time passes: it is the real queue, told a time.  What was found is written, whole, to bench/results/.  With --check
the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial

from hold_cases import CLOSED, KINDS, PLAYS, draw_case, model_words
from hold_picture import keep_picture
from hold_policies import AUTO, YARDSTICKS, queue_maker, tick_of
from hold_results import HoldRun, Played, Shown, average
from hold_scenes import after_change, few_callers, scene_jobs
from hold_sim import draw_for, play
from hold_table import show_case, summarise
from report import keep

Found = Played | tuple[str, int, dict]  # type: ignore[type-arg]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulate when to wait for company, and compare policies.")
    parser.add_argument("--cases", type=int, default=300, help="cases for each number of workers (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="what the cases are drawn with (default: 1)")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers (default: 1,2,4)")
    parser.add_argument("--policy", default=AUTO, help="the policy to judge (default: auto)")
    parser.add_argument("--tick", type=float, help="resolution of all timers, in seconds (default: as in the server)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="cases of this kind alone, and no scenes")
    parser.add_argument("--only-case", metavar="SEED:WORKERS:INDEX", help="show one case")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a target is missed")
    chosen = parser.parse_args()
    chosen.workers = tuple(int(number) for number in chosen.workers.split(","))
    if chosen.cases < 1 or chosen.jobs < 1 or min(chosen.workers) < 1 or (chosen.tick or 1) <= 0:
        parser.error("--cases, --jobs, --workers and --tick must be above 0")
    return chosen


def play_case(name: str, policy: str, tick: float | None) -> Played:
    """All plays of the case `name`, with every policy."""
    seed, workers, index = map(int, name.split(":"))
    shown: dict[str, list[Shown]] = {each: [] for each in (policy, *YARDSTICKS)}
    for number in range(PLAYS):
        case = draw_case(seed, workers, index, number)
        draws = draw_for(case)
        for each, plays in shown.items():
            resolution = tick_of(each, tick)
            found = play(case, queue_maker(each, resolution), draws, tick=resolution)
            plays.append(Shown(found.throughput, found.mean, found.p99, found.batches, found.cuts))
    words = f"{model_words(case)}; {case.words}"
    by_policy = {each: average(plays) for each, plays in shown.items()}
    return Played(name, case.kind, case.kind in CLOSED, workers, words, by_policy)


def play_scene(kind: str, workers: int, policy: str, tick: float | None) -> Found:
    """One scene, or a part of it."""
    if kind == "few":
        return kind, workers, few_callers(policy, tick_of(policy, tick))
    return kind, workers, after_change(kind, workers, policy, tick_of(policy, tick))


def play_all(chosen: argparse.Namespace) -> Iterator[Found]:
    """Everything that is asked for, as it is done."""
    names = [
        f"{chosen.seed}:{workers}:{index}"
        for workers in chosen.workers
        for index in range(chosen.cases)
        if chosen.kind is None or KINDS[index % len(KINDS)] == chosen.kind
    ]
    scenes = [] if chosen.kind else scene_jobs(chosen.workers)
    one = partial(play_case, policy=chosen.policy, tick=chosen.tick)
    with ProcessPoolExecutor(chosen.jobs) as pool:
        todo = [pool.submit(play_scene, *scene, chosen.policy, chosen.tick) for scene in scenes]
        todo += [pool.submit(one, name) for name in names]
        try:
            for number, done in enumerate(as_completed(todo), 1):
                if sys.stderr.isatty():
                    print(f"\r{number} of {len(todo)} cases and scenes", end="", file=sys.stderr, flush=True)
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if sys.stderr.isatty():
        print(file=sys.stderr)


def main() -> int:
    chosen = arguments()
    if chosen.only_case:
        show_case(play_case(chosen.only_case, chosen.policy, chosen.tick))
        return 0
    begin = time.perf_counter()
    run = HoldRun(
        when=datetime.now(UTC),
        policy=chosen.policy,
        settings={
            "cases": chosen.cases,
            "seed": chosen.seed,
            "tick": chosen.tick or "as in the server",
            "kind": chosen.kind or "all",
        },
        played=[],
        few={},
        changes={},
    )
    for found in play_all(chosen):
        if isinstance(found, Played):
            run.played.append(found)
        elif found[0] == "few":
            run.few = found[2]
        else:
            run.changes[f"{found[1]}:{found[0]}"] = found[2]
    run.played.sort(key=lambda p: [int(part) for part in p.name.split(":")])
    met = summarise(run)
    path = keep(run, f"{run.when:%Y%m%d-%H%M%S}-hold")
    print(f"Everything that was found: {path}; a picture: {keep_picture(run, path.with_suffix('.svg'))}")
    print(f"{len(run.played)} cases took {time.perf_counter() - begin:.0f} s.")
    return 1 if chosen.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
