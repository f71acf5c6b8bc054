"""What the bench of exported models saw, as objects, as tables, and held against its limits.

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


SCENES = {
    scene.name: scene
    for scene in (
        Scene("served", "requests/s", "artifact", "by hand", Limit(0.7)),
        Scene("encode-32", "us", "encode", "ColumnTransformer", Limit(0.1, at_least=False), 1e6),
        Scene("encode-100000", "ms", "encode", "ColumnTransformer", Limit(1.0, at_least=False), 1e3),
    )
}


class ExportRound(msgspec.Struct, frozen=True):
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


class ExportRun(msgspec.Struct, frozen=True):
    """All that was measured in one run, and where."""

    when: datetime
    machine: dict[str, str]
    settings: dict[str, float]
    rounds: list[ExportRound]

    def of(self, scene: str) -> list[ExportRound]:
        """The rounds of one scene; [] if it was not measured."""
        return [r for r in self.rounds if r.scene == scene]

    def met(self) -> bool:
        """Whether every median keeps its limit."""
        return all(
            scene.limit.met([r.ratio() for r in self.of(name)]) for name, scene in SCENES.items() if self.of(name)
        )


def summarise(run: ExportRun) -> bool:
    """Print the tables; True if every limit was kept."""
    where = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    print(f"\n{where}; {run.settings['rounds']:.0f} rounds\n")
    figures, ratios = [], []
    for name, scene in SCENES.items():
        rounds = run.of(name)
        if not rounds:
            continue
        sides = ((scene.ours, [r.ours for r in rounds]), (scene.theirs, [r.theirs for r in rounds]))
        for side, taken in sides:
            medians = [median(turns) * scene.factor for turns in taken]
            figures.append((f"{name}: {side}, {scene.unit}", *spread(medians, ",.1f")))
        values = [r.ratio() for r in rounds]
        ratios.append((f"{name}: {scene.ours} / {scene.theirs}", *spread(values, ".3f"), *scene.limit.judge(values)))
    show(("median of a round's turns", "min", "median", "max"), figures)
    show(RATIO_HEADER, ratios)
    return run.met()
