"""The table of the simulator, its worst cases, and the kinds of load one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hold_cases import PLAYS
from hold_policies import YARDSTICKS, policy_words
from hold_results import (
    CHANGE_TARGET,
    FEW_TARGET,
    ROWS,
    HoldRun,
    Played,
    best_fixed,
    geometric_mean,
    mean_to_best_fixed,
    mean_to_never,
    p99_to_never,
    throughput_to_never,
)
from report import show

WORST = 10
REASONS = ("idle", "adaptive", "adaptive_timeout", "full")
"""Why `auto` cuts batches here.  Other policies have others, which are shown behind these."""


def summarise(run: HoldRun) -> bool:
    """Print all of it; True if every target was met."""
    numbers = sorted({p.workers for p in run.played})
    rows, met = [], True

    def cell(value: float | None, target: float | None) -> str:
        nonlocal met
        if value is None:
            return ""
        if target is None:
            return f"{value:.3f}"
        met = met and value >= target
        return f"{value:.3f} of {target:.2f} {'met' if value >= target else 'MISSED'}"

    for row in ROWS:
        cells = [
            cell(row.value([p for p in run.played if p.workers == n], run.policy), row.targets.get(n)) for n in numbers
        ]
        rows.append((row.words, *cells))
    if run.few:
        fewest = min(run.few.values())
        rows.append(
            (
                "2 to 32 callers, of c / (a + b c): least",
                *(cell(fewest if n == 1 else None, FEW_TARGET) for n in numbers),
            )
        )
    if run.changes:
        worst = [_worst_change(run, n) for n in numbers]
        rows.append(("batches 31 to 60 after a change: worst", *(cell(value, CHANGE_TARGET) for value, _ in worst)))
        print("\nThe worst changes: " + "; ".join(f"{n}: {pair}" for n, (_, pair) in zip(numbers, worst, strict=True)))
    show(
        (
            f"{policy_words(run.policy)}: {len(run.played)} cases, {PLAYS} plays each",
            *(_workers_words(n) for n in numbers),
        ),
        rows,
    )
    if run.few:
        print("Callers and what they reach: " + ", ".join(f"{c}: {v:.3f}" for c, v in run.few.items()) + "\n")
    _reasons(run, numbers)
    _kinds(run)
    _policies(run)
    _worst_cases(run, "1 / mean latency, to 0", mean_to_never, run.played)
    closed = [p for p in run.played if p.closed]
    _worst_cases(run, "throughput, to 0, closed", throughput_to_never, closed)
    _worst_cases(run, "1 / p99, to 0, closed", p99_to_never, closed)
    return met


def _worst_change(run: HoldRun, workers: int) -> tuple[float, str]:
    found = [
        (value, f"from {before} to {key.partition(':')[2]}")
        for key, by_before in run.changes.items()
        if int(key.partition(":")[0]) == workers
        for before, value in by_before.items()
    ]
    return min(found)


def _workers_words(workers: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}"


def _reasons(run: HoldRun, numbers: list[int]) -> None:
    """For which reason the policy has cut its batches: the shares of all batches of all cases."""
    counted: dict[int, Counter[str]] = {n: Counter(dict.fromkeys(REASONS, 0)) for n in numbers}
    for p in run.played:
        counted[p.workers].update(p.by_policy[run.policy].cuts)
    reasons = list(dict.fromkeys(reason for cuts in counted.values() for reason in cuts))
    rows = [
        (_workers_words(n), f"{cuts.total():,}", *(f"{cuts[reason] / cuts.total():.1%}" for reason in reasons))
        for n, cuts in counted.items()
    ]
    show(("batches by the reason of their cut", "batches", *reasons), rows)


def _kinds(run: HoldRun) -> None:
    kinds = sorted({(p.workers, p.kind) for p in run.played})
    rows = []
    for workers, kind in kinds:
        cases = [p for p in run.played if (p.workers, p.kind) == (workers, kind)]
        cells = []
        for ratio in (mean_to_never, p99_to_never, throughput_to_never, mean_to_best_fixed):
            values = [ratio(p, run.policy) for p in cases]
            cells += [f"{geometric_mean(values):.3f}", f"{min(values):.3f}"]
        rows.append((f"{workers}, {kind} ({len(cases)})", *cells))
    show(
        (
            "workers, kind of load (cases)",
            "1 / mean",
            "worst",
            "1 / p99",
            "worst",
            "throughput",
            "worst",
            "to best fixed",
            "worst",
        ),
        rows,
    )


def _policies(run: HoldRun) -> None:
    """How every policy compares with 0, and in how many cases it was the best fixed one."""
    best = [best_fixed(p) for p in run.played]
    closed = [p for p in run.played if p.closed]
    rows = [
        (
            policy_words(name),
            f"{geometric_mean([mean_to_never(p, name) for p in run.played]):.3f}",
            f"{min(mean_to_never(p, name) for p in run.played):.3f}",
            f"{geometric_mean([p99_to_never(p, name) for p in run.played]):.3f}",
            f"{min((throughput_to_never(p, name) for p in closed), default=1.0):.3f}",
            str(best.count(name)) if name in YARDSTICKS else "",
        )
        for name in dict.fromkeys((run.policy, *YARDSTICKS))
    ]
    show(("to max_wait 0", "1 / mean", "worst", "1 / p99", "closed throughput, worst", "best fixed in"), rows)


def _worst_cases(run: HoldRun, words: str, ratio: Callable[[Played, str], float], played: list[Played]) -> None:
    print(f"The worst cases by {words}:")
    for p in sorted(played, key=lambda p: ratio(p, run.policy))[:WORST]:
        print(f"  {ratio(p, run.policy):.3f}  {p.name}  {p.words}")
    print()


def show_case(played: Played) -> None:
    """Print one case, with every policy: means of its plays, and their batches together."""
    print(f"{played.name}, {played.kind}: {played.words}\n")
    show(
        ("policy", "answers/s", "mean ms", "p99 ms", "batches", "1 / mean, to 0", "cuts"),
        [
            (
                policy_words(name),
                f"{shown.throughput:,.1f}",
                f"{shown.mean * 1000:.3f}",
                f"{shown.p99 * 1000:.3f}",
                str(shown.batches),
                f"{mean_to_never(played, name):.3f}",
                ", ".join(f"{reason} {count}" for reason, count in sorted(shown.cuts.items())),
            )
            for name, shown in played.by_policy.items()
        ],
    )
