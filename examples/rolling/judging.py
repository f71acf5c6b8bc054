"""Decide what a roll has cost, by what callers were told and what was run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from callers import Callers
from telling import tell

SHOWN = 10
"""Most reasons that are told."""


class Outcome(NamedTuple):
    """What a roll has cost."""

    failed: int
    twice: int

    def __str__(self) -> str:
        return f"{self.failed} failed, {self.twice} run twice"


def judge(name: str, callers: Sequence[Callers], runs: Path) -> Outcome:
    """Compare what callers were told with what was run."""
    ran = Counter(map(int, runs.read_text().split()))
    failed = [f"in {each.language}, {why}" for each in callers for why in each.failed]
    failed += [f"{number} was answered and never ran" for each in callers for number in {*each.answered} - {*ran}]
    twice = [f"{number} ran {count} times" for number, count in ran.items() if count > 1]
    for why in (failed + twice)[:SHOWN]:
        tell(name, why)
    return Outcome(len(failed), len(twice))
