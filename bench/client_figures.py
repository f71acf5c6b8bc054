"""What the bench of the clients saw, as objects, as tables, and held against its limits.

Goodput is right answers a second, and stands over the capacity of the stage: what the load generator in C, which asks
for no more than there is room for, had of the same server just before and just after.  Minimum, median and maximum are
over the rounds, and it is the median that a limit is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

import msgspec

from client_load import ClientsSeen
from report import Limit, show, spread

CLIENTS = ("python", "typescript")


class ClientRound(msgspec.Struct, frozen=True):
    """One scene through one client, in one round."""

    scene: str
    client: str
    number: int
    seen: ClientsSeen
    others_cores: float
    """Cores that others than the load generator and the server kept busy meanwhile."""
    capacity: float = 0.0
    """Answers a second that the stage could give; 0 where that was not measured."""

    @property
    def goodput(self) -> float:
        """Right answers, as a share of the capacity."""
        return self.seen.rate / self.capacity

    def line(self) -> str:
        """The round in one line, for whoever watches."""
        of_capacity = f"{self.goodput:.3f} of capacity  " if self.capacity else ""
        return (
            f"{self.scene:15} {self.client:11} {self.seen.rate:6.1f} right answers/s  {of_capacity}"
            f"{self.seen.tries_per_answer:.3f} tries per answer  {self.seen.answered:.4f} answered  "
            f"client {self.seen.cores:.2f}, others {self.others_cores:.2f} cores"
        )


class Figure(msgspec.Struct, frozen=True):
    """A figure of a scene, and its limit."""

    scene: str
    name: str
    value: Callable[[ClientRound], float]
    limit: Limit


def _goodput(taken: ClientRound) -> float:
    return taken.goodput


def _tries(taken: ClientRound) -> float:
    return taken.seen.tries_per_answer


def _answered(taken: ClientRound) -> float:
    return taken.seen.answered


FIGURES = (
    Figure("chaos", "answered / calls", _answered, Limit(0.99)),
    Figure("chaos", "tries per answer", _tries, Limit(None)),
    Figure("flow", "goodput / capacity", _goodput, Limit(0.95)),
    Figure("flow", "tries per answer", _tries, Limit(1.3, at_least=False)),
    Figure("flow", "answered / calls", _answered, Limit(None)),
    Figure("no-flow-control", "goodput / capacity", _goodput, Limit(None)),
    Figure("no-flow-control", "tries per answer", _tries, Limit(None)),
    Figure("no-flow-control", "answered / calls", _answered, Limit(None)),
)


class ClientRun(msgspec.Struct, frozen=True):
    """All that was measured in one run, and where."""

    when: datetime
    machine: dict[str, str]
    settings: dict[str, float]
    rounds: list[ClientRound]

    def of(self, scene: str, client: str) -> list[ClientRound]:
        """The rounds of one scene through one client; [] if it was not measured."""
        return [r for r in self.rounds if (r.scene, r.client) == (scene, client)]

    def met(self) -> bool:
        """Whether every median keeps its limit."""
        return all(
            figure.limit.met([figure.value(r) for r in rounds])
            for figure in FIGURES
            for client in CLIENTS
            if (rounds := self.of(figure.scene, client))
        )


def summarise(run: ClientRun) -> bool:
    """Print the tables; True if every limit was kept."""
    where = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    print(f"\n{where}; {run.settings['rounds']:.0f} rounds\n")
    figures, costs = [], []
    for client in CLIENTS:
        for figure in FIGURES:
            rounds = run.of(figure.scene, client)
            if rounds:
                values = [figure.value(r) for r in rounds]
                name = f"{client}, {figure.scene}: {figure.name}"
                figures.append((name, *spread(values, ".3f"), *figure.limit.judge(values)))
        for scene in dict.fromkeys(figure.scene for figure in FIGURES):
            rounds = run.of(scene, client)
            if rounds:
                errors = sum((Counter(r.seen.errors) for r in rounds), Counter())
                told = ", ".join(f"{name} {number}" for name, number in sorted(errors.items())) or "none"
                cores = spread([r.seen.cores for r in rounds], ".2f")
                others = spread([r.others_cores for r in rounds], ".2f")
                costs.append((f"{client}, {scene}", *cores, *others, told))
    show(("within a round", "min", "median", "max", "wanted (median)", ""), figures)
    show(
        ("cores", "client: min", "median", "max", "others: min", "median", "max", "errors, all rounds"),
        costs,
    )
    return run.met()
