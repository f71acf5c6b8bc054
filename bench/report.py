"""What a run of the bench saw, as objects, as tables, and held against the targets.

Figures are minimum, median and maximum over the rounds.  A ratio is first taken within each round, between two
measurements made one soon after the other, and only then summed up: a machine that slows down for a while slows
both, and the ratio hardly moves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from device import Ideal
from loadgen import LoadResult

RESULTS = Path(__file__).resolve().parent / "results"
MB = 1e6
PROMISED_OVER = 256
"""The number of connections that the limits are for, where a target does not name another."""


class Measurement(msgspec.Struct, frozen=True):
    """One server under load for some seconds.  Times named `_us` are microseconds of CPU per request."""

    subject: str
    round: int
    load: LoadResult
    coordinator_us: float
    workers_us: float
    load_us: float
    others_cores: float
    """Cores that other programs kept busy meanwhile: the noise of this measurement."""
    coordinator_rss: int
    workers_rss: int
    pss: int
    connections: int = 0
    ideal: Ideal | None = None
    """What could have been had of the device, where one is simulated."""

    @property
    def of_ideal(self) -> float:
        """The rate by what could have been had with sleeps as long as they were; only where a device is simulated."""
        assert self.ideal is not None
        return self.load.rps / self.ideal.real

    @property
    def server_us(self) -> float:
        """CPU of the whole server per request."""
        return self.coordinator_us + self.workers_us

    def line(self) -> str:
        """The measurement in one line, for whoever watches."""
        return (
            f"{self.subject:21} {self.load.rps:10,.0f} requests/s  p99 {self.load.p99_us / 1000:.1f} ms  "
            f"server {self.server_us:.1f} us/request  others {self.others_cores:.2f} cores"
            + (f"  {self.of_ideal:.3f} of the ideal" if self.ideal else "")
        )


class Run(msgspec.Struct, frozen=True):
    """All measurements of one run, and where they were made."""

    when: datetime
    machine: dict[str, str]
    settings: dict[str, float | list[int]]
    measurements: list[Measurement]

    @property
    def connections(self) -> list[int]:
        """The numbers of connections that each server without loads of its own was measured over."""
        numbers = self.settings["connections"]
        return numbers if isinstance(numbers, list) else [int(numbers)]

    def of(self, subject: str) -> list[Measurement]:
        """The measurements of one server, by round; [] if it was not measured.

        `name@c` is also found where the run had one number of connections, c, and its names are without it.
        """
        found = (m for m in self.measurements if subject in (m.subject, f"{m.subject}@{m.connections}"))
        return sorted(found, key=lambda m: m.round)


def figure_name(subject: str, connections: int, *, several: bool) -> str:
    """What a measurement of a server is called: `name@c` where the server has `several` numbers of connections."""
    return f"{subject}@{connections}" if several else subject


class Limit(msgspec.Struct, frozen=True):
    """A promise about a figure: its median over the rounds is at least, or at most, `bound`."""

    bound: float | None
    """None is no promise, only worth a look."""
    at_least: bool = True

    def met(self, values: Sequence[float]) -> bool:
        """Whether the median keeps the promise."""
        if self.bound is None:
            return True
        return median(values) >= self.bound if self.at_least else median(values) <= self.bound

    def judge(self, values: Sequence[float]) -> tuple[str, str]:
        """What is wanted, and whether that was met, in words; empty where nothing is promised."""
        if self.bound is None:
            return "", ""
        wanted = f"{'at least' if self.at_least else 'at most'} {self.bound:g}"
        return wanted, "met" if self.met(values) else "MISSED"


class Target(msgspec.Struct, frozen=True):
    """A figure made of one round's measurements, and the limit of its median over the rounds."""

    name: str
    subjects: tuple[str, ...]
    value: Callable[..., float]
    """Given one round's measurement of each subject, in their order."""
    limit: Limit

    def values(self, run: Run) -> list[float]:
        """The value of each round; [] if one of the subjects was not measured."""
        return [self.value(*pair) for pair in zip(*map(run.of, self.subjects), strict=False)]

    def over(self, connections: int) -> Target:
        """The same over so many connections of several: a promise over the usual number, worth a look over others."""
        subjects = tuple(figure_name(subject, connections, several=True) for subject in self.subjects)
        limit = self.limit if connections == PROMISED_OVER else Limit(None)
        return Target(f"{self.name}, {connections} connections", subjects, self.value, limit)


def _rate(ours: Measurement, theirs: Measurement) -> float:
    return ours.load.rps / theirs.load.rps


def _cpu(ours: Measurement, theirs: Measurement) -> float:
    return ours.server_us / theirs.server_us


def _coordinator(ours: Measurement, theirs: Measurement) -> float:
    return ours.coordinator_us / theirs.coordinator_us


def _workers(ours: Measurement, theirs: Measurement) -> float:
    return ours.workers_us / theirs.workers_us


def _of_ideal(ours: Measurement) -> float:
    return ours.of_ideal


OF_IDEAL = {1: 0.95, 8: 0.88, 32: 0.87, 256: 0.95}
"""The least of the ideal that the default policy gets of the accelerator, by the number of connections."""


def _accelerator_targets() -> Iterator[Target]:
    for connections, bound in OF_IDEAL.items():
        name = f"requests/s, accelerator / ideal, {connections} connections"
        yield Target(name, (figure_name("accelerator", connections, several=True),), _of_ideal, Limit(bound))


def _large_targets() -> Iterator[Target]:
    """Those of the scene `large`, over each number of connections."""
    look = (None, None)
    for ours, theirs, bounds in (
        ("large-memoryview", "large-mosec", (2.5, 2.3)),
        ("large-npy", "large-mosec", (2.5, 2.3)),
        ("large-bytes", "large-mosec", (1.6, 1.6)),
        ("large-memoryview", "large-mosec-malloc", look),
        ("large-bytes", "large-mosec-malloc", look),
        ("large-memoryview", "large-receive", (0.5, 0.5)),
        ("large-out", "large-out-mosec", (3.0, 3.0)),
        ("large-out", "large-out-receive", (0.6, 0.6)),
        ("large-two", "large-two-mosec", (3.0, 3.0)),
    ):
        for connections, bound in zip((32, 256), bounds, strict=True):
            pair = f"{ours}@{connections}", f"{theirs}@{connections}"
            yield Target(f"requests/s, {ours} / {theirs}, {connections} connections", pair, _rate, Limit(bound))


OUTSIDE = ("penstock-external", "penstock")
"""The echo with a worker that attached from outside, beside the echo with one of ours."""

TARGETS = (
    Target("requests/s, penstock / floor", ("penstock", "floor"), _rate, Limit(0.5)),
    Target("requests/s, penstock-external / penstock", OUTSIDE, _rate, Limit(0.9)),
    Target("coordinator CPU, penstock-external / penstock", OUTSIDE, _coordinator, Limit(None)),
    Target("worker CPU, penstock-external / penstock", OUTSIDE, _workers, Limit(None)),
    Target("requests/s, penstock-ids / floor", ("penstock-ids", "floor"), _rate, Limit(None)),
    Target("requests/s, penstock-plain / floor", ("penstock-plain", "floor"), _rate, Limit(None)),
    Target("requests/s, penstock / floor-blind", ("penstock", "floor-blind"), _rate, Limit(None)),
    Target("requests/s, penstock / mosec", ("penstock", "mosec"), _rate, Limit(1.5)),
    Target("requests/s, penstock / mosec-128", ("penstock", "mosec-128"), _rate, Limit(1.5)),
    Target("server CPU, penstock / floor", ("penstock", "floor"), _cpu, Limit(3.0, at_least=False)),
    *_accelerator_targets(),
    *_large_targets(),
)


def keep(run: msgspec.Struct, name: str) -> Path:
    """Write all of a run into a file of RESULTS; where that is."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run)))
    return path


RATIO_HEADER = ("ratio within a round", "min", "median", "max", "wanted (median)", "")


def summarise(run: Run) -> bool:
    """Print the run's tables; True if every target that could be judged was met."""
    subjects = list(dict.fromkeys(m.subject for m in run.measurements))
    where = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    connections = ", ".join(map(str, run.connections))
    print(f"\n{where}; {connections} connections, {run.settings['rounds']:.0f} rounds\n")
    show(
        ("", "requests/s: min", "median", "max", "p50 ms", "p99 ms", "p99 max"),
        [
            (s, *spread(rates, ",.0f"), *_milliseconds(run.of(s)))
            for s in subjects
            if (rates := [m.load.rps for m in run.of(s)])
        ],
    )
    show(
        ("CPU in us per request", "server: min", "median", "max", "coordinator", "workers", "load generator"),
        [
            (
                s,
                *spread([m.server_us for m in run.of(s)], ".1f"),
                *(
                    f"{median(getattr(m, part) for m in run.of(s)):.1f}"
                    for part in ("coordinator_us", "workers_us", "load_us")
                ),
            )
            for s in subjects
        ],
    )
    show(
        ("memory in MB", "coordinator RSS", "workers RSS", "all PSS"),
        [
            (
                s,
                *(
                    f"{max(getattr(m, part) for m in run.of(s)) / MB:.1f}"
                    for part in ("coordinator_rss", "workers_rss", "pss")
                ),
            )
            for s in subjects
        ],
    )
    _ideals(run, subjects)
    met = _targets(run)
    noise = [m.others_cores for m in run.measurements]
    print(f"Other programs kept {median(noise):.2f} cores busy (median; at most {max(noise):.2f}).")
    return met


def _ideals(run: Run, subjects: Sequence[str]) -> None:
    """The table of what could have been had of a simulated device, where there is one."""
    rows = []
    for subject in subjects:
        taken = [m for m in run.of(subject) if m.ideal]
        if taken:
            ideals = [m.ideal for m in taken if m.ideal]
            rows.append(
                (
                    subject,
                    *spread([m.of_ideal for m in taken], ".3f"),
                    f"{median(ideal.real for ideal in ideals):,.0f}",
                    f"{ideals[0].asked:,.0f}",
                    f"{median(ideal.oversleep for ideal in ideals) * 1000:.3f}",
                    f"{median(ideal.mean_batch for ideal in ideals):.1f}",
                )
            )
    if rows:
        show(
            ("of the ideal", "min", "median", "max", "ideal req/s", "if sleeps were exact", "overslept ms", "batch"),
            rows,
        )


def targets_of(run: Run) -> Iterator[Target]:
    """All that a run may be held to; where it had several numbers of connections, each ratio over each of them."""
    for target in TARGETS:
        if len(run.connections) > 1 and not any("@" in subject for subject in target.subjects):
            yield from map(target.over, run.connections)
        else:
            yield target


def _targets(run: Run) -> bool:
    rows, all_met = [], True
    for target in targets_of(run):
        values = target.values(run)
        if not values:
            continue
        all_met = all_met and target.limit.met(values)
        rows.append((target.name, *spread(values, ".2f"), *target.limit.judge(values)))
    if rows:
        show(RATIO_HEADER, rows)
    return all_met


def _milliseconds(taken: Sequence[Measurement]) -> tuple[str, str, str]:
    p99 = [m.load.p99_us for m in taken]
    return (
        f"{median(m.load.p50_us for m in taken) / 1000:.2f}",
        f"{median(p99) / 1000:.2f}",
        f"{max(p99) / 1000:.2f}",
    )


def spread(values: Sequence[float], form: str) -> tuple[str, str, str]:
    """Minimum, median and maximum, each printed in `form`."""
    return format(min(values), form), format(median(values), form), format(max(values), form)


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn on a terminal, aligned columns elsewhere."""
    if sys.stdout.isatty():
        table = Table()
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        first, *others = (
            cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())
    print()
