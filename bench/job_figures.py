"""What the bench of the job queue saw, as figures, and the limits that these are held against.

A figure has one value for each round; its minimum, median and maximum are over the rounds, and it is the median that a
limit is for.  A ratio is first taken within a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from report import RATIO_HEADER, Limit, show, spread


class Figure(msgspec.Struct, frozen=True):
    """Something that is measured: what it is called, its limit, and how it is printed."""

    name: str
    limit: Limit = Limit(None)
    form: str = ".2f"


class Seen(msgspec.Struct, frozen=True):
    """One value of one figure."""

    scene: str
    figure: str
    round: int
    value: float


class JobsRun(msgspec.Struct, frozen=True):
    """All that one run has seen, and where."""

    when: datetime
    machine: dict[str, str]
    settings: dict[str, float]
    seen: list[Seen]

    def values(self, scene: str, figure: str) -> list[float]:
        """The value of each round."""
        return [each.value for each in self.seen if (each.scene, each.figure) == (scene, figure)]


def rows(run: JobsRun, scene: str, figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """The figures of a scene as rows of a table; those that were not measured are left out."""
    return [
        (f"{scene}: {figure.name}", *spread(values, figure.form), *figure.limit.judge(values))
        for figure in figures
        if (values := run.values(scene, figure.name))
    ]


def summarise(run: JobsRun, scenes: Sequence[tuple[str, Sequence[Figure]]]) -> bool:
    """Print the run's table; True if every limit was kept."""
    where = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    print(f"\n{where}; {run.settings['rounds']:.0f} rounds\n")
    show(("figure", *RATIO_HEADER[1:]), [row for scene, figures in scenes for row in rows(run, scene, figures)])
    return all(
        figure.limit.met(values)
        for scene, figures in scenes
        for figure in figures
        if (values := run.values(scene, figure.name))
    )


def idle_share(calls: Sequence[tuple[float, float]], edge: float = 1.0) -> float:
    """The part of the time in which no call ran, without the first and the last `edge` seconds.

    `calls` are when each began and ended, in any order, of one worker: no two overlap.
    """
    begin, end = min(began for began, _ in calls) + edge, max(ended for _, ended in calls) - edge
    if end <= begin:
        raise ValueError(f"the calls took less than {2 * edge:g} s in all")
    busy = sum(max(0.0, min(ended, end) - max(began, begin)) for began, ended in calls)
    return 1 - busy / (end - begin)


def largest_share(holders: Sequence[str]) -> float:
    """The part of the jobs that the busiest holder has done; `holders` names one for each job."""
    return max(holders.count(holder) for holder in set(holders)) / len(holders)


def share_of_rest(jobs: float, http: float, capacity: float) -> float:
    """The part that jobs get of what HTTP leaves; all are rates, `capacity` that of jobs alone."""
    return jobs / (capacity - http)
