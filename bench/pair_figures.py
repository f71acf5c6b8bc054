"""What a bench of pairs saw, as objects, as tables, and held against the limits of its scenes.

A ratio is ours / theirs, taken within a round, in which both were measured in turns.  Minimum, median and maximum are
over the rounds, and it is the median that a limit is for.
"""

from __future__ import annotations

from datetime import datetime
from statistics import median

import msgspec

from comparison import steady_ratio
from report import RATIO_HEADER, Limit, show, spread


class Scene(msgspec.Struct, frozen=True):
    """Something that is measured of two subjects: how it is printed, and the limit of its ratio."""

    name: str
    unit: str
    ours: str
    theirs: str
    limit: Limit
    factor: float = 1.0
    """From what was measured to what is printed."""


class PairRound(msgspec.Struct, frozen=True):
    """One scene in one round: what each turn saw of each side."""

    scene: str
    number: int
    ours: list[float]
    theirs: list[float]

    def ratio(self) -> float:
        """How many times theirs ours is."""
        return steady_ratio(self.ours, self.theirs)

    def line(self) -> str:
        """The round in one line, for whoever watches."""
        return f"{self.scene:14} {self.ratio():.3f}"


class PairRun(msgspec.Struct, frozen=True):
    """All that was measured in one run, and where."""

    when: datetime
    machine: dict[str, str]
    settings: dict[str, float]
    scenes: list[Scene]
    rounds: list[PairRound]

    def of(self, scene: str) -> list[PairRound]:
        """The rounds of one scene."""
        return [r for r in self.rounds if r.scene == scene]

    def met(self) -> bool:
        """Whether every median keeps its limit."""
        return all(scene.limit.met([r.ratio() for r in self.of(scene.name)]) for scene in self.scenes)


def summarise(run: PairRun) -> bool:
    """Print the tables; True if every limit was kept."""
    where = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    numbers = {name: f"{value:,.{0 if float(value).is_integer() else 2}f}" for name, value in run.settings.items()}
    settings = ", ".join(f"{number} {name}" for name, number in numbers.items())
    print(f"\n{where}; {settings}\n")
    figures, ratios = [], []
    for scene in run.scenes:
        name, rounds = scene.name, run.of(scene.name)
        sides = ((scene.ours, [r.ours for r in rounds]), (scene.theirs, [r.theirs for r in rounds]))
        for side, taken in sides:
            medians = [median(turns) * scene.factor for turns in taken]
            figures.append((f"{name}: {side}, {scene.unit}", *spread(medians, ",.1f")))
        values = [r.ratio() for r in rounds]
        ratios.append((f"{name}: {scene.ours} / {scene.theirs}", *spread(values, ".3f"), *scene.limit.judge(values)))
    show(("median of a round's turns", "min", "median", "max"), figures)
    show(RATIO_HEADER, ratios)
    return run.met()
