"""This tree against another commit: the figures of both, their ratios, and the limits these are held against.

A ratio is tree / commit, taken within a round, in which both were measured in turns.  Minimum, median and maximum are
over the rounds, and it is the median that a limit is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import geometric_mean, median

import msgspec

from report import MB, RATIO_HEADER, Limit, show, spread


class Figure(msgspec.Struct, frozen=True):
    """Something that is measured of a build: how it is printed, and the limit of its ratio."""

    name: str
    limit: Limit
    form: str
    factor: float = 1.0
    """From what was measured to what is printed."""


AT_MOST_CPU = Limit(1.02, at_least=False)
AT_MOST_MEMORY = Limit(1.05, at_least=False)
AT_MOST_IMPORT = Limit(1.05, at_least=False)

FIGURES = {
    "rate": Figure("requests/s", Limit(0.98), ",.0f"),
    "cpu": Figure("CPU, us per request", AT_MOST_CPU, ",.1f", 1e6),
    "coordinator": Figure("memory of the coordinator, MB", AT_MOST_MEMORY, ".1f", 1 / MB),
    "workers": Figure("memory of the workers, MB", AT_MOST_MEMORY, ".1f", 1 / MB),
    "penstock": Figure("penstock, ms", AT_MOST_IMPORT, ".1f", 1e3),
    "penstock.server.serve": Figure("penstock.server.serve, ms", AT_MOST_IMPORT, ".1f", 1e3),
}


LIMITS = {
    # Against a commit without tenants and urgency, for which they are two header fields more.
    ("terms-256", "cpu"): Limit(1.25, at_least=False),
    ("terms-256", "rate"): Limit(0.80),
    # A worker's RSS has the shared pages that it mapped.  They are the coordinator's, and are held to a limit there.
    ("large-32", "workers"): Limit(None),
    ("large-256", "workers"): Limit(None),
}
"""The limits of works that have their own."""


def limit_of(work: str, figure: str) -> Limit:
    """The limit of the ratio of one figure of one work."""
    return LIMITS.get((work, figure), FIGURES[figure].limit)


def steady_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times theirs ours is, measured in turns: the mean of the middle half of what each turn says.

    The two measurements of a turn are made within a second, and a turn in which other programs got hold of the
    machine is left out at either end.  On a busy machine this came closer to 1 for equal builds than a ratio of
    sums, of medians or of the best turns.
    """
    turns = sorted(mine / yours for mine, yours in zip(ours, theirs, strict=True))
    outside = len(turns) // 4
    return geometric_mean(turns[outside : len(turns) - outside])


class Round(msgspec.Struct, frozen=True):
    """Both builds at one work, measured in turns: what each turn saw of each build, by the names in FIGURES."""

    work: str
    number: int
    tree: dict[str, list[float]]
    commit: dict[str, list[float]]

    def ratio(self, figure: str) -> float:
        """How many times the commit's figure the tree's is."""
        return steady_ratio(self.tree[figure], self.commit[figure])

    def line(self) -> str:
        """The ratios in one line, for whoever watches."""
        return f"{self.work:12}" + "".join(f"  {name} {self.ratio(name):.3f}" for name in self.tree)


class Comparison(msgspec.Struct, frozen=True):
    """All that was measured in one run, and where."""

    when: datetime
    commit: str
    machine: dict[str, str]
    settings: dict[str, float]
    rounds: list[Round]

    def rows(self) -> list[tuple[str, str]]:
        """Each work with each of its figures, in the order they were measured."""
        return list(dict.fromkeys((r.work, name) for r in self.rounds for name in r.tree))

    def ratios(self, work: str, figure: str) -> list[float]:
        """The ratio of each round."""
        return [r.ratio(figure) for r in self.rounds if r.work == work]

    def met(self) -> bool:
        """Whether every median keeps its limit."""
        return all(limit_of(work, figure).met(self.ratios(work, figure)) for work, figure in self.rows())


def summarise(comparison: Comparison) -> bool:
    """Print the tables; True if every limit was kept."""
    where = ", ".join(f"{name} {value}" for name, value in comparison.machine.items())
    rounds = comparison.settings["rounds"]
    print(f"\n{where}; this tree against {comparison.commit[:12]}, {rounds:.0f} rounds\n")
    figures, ratios = [], []
    for work, name in comparison.rows():
        figure, values = FIGURES[name], comparison.ratios(work, name)
        sides = [(median(r.tree[name]), median(r.commit[name])) for r in comparison.rounds if r.work == work]
        medians = (format(median(side) * figure.factor, figure.form) for side in zip(*sides, strict=True))
        figures.append((f"{work}: {figure.name}", *medians))
        limit = limit_of(work, name)
        ratios.append((f"{work}: {figure.name.partition(',')[0]}", *spread(values, ".3f"), *limit.judge(values)))
    show(("median of the rounds", "tree", comparison.commit[:12]), figures)
    show(RATIO_HEADER, ratios)
    return comparison.met()
