"""How much of a device a server gets, by the number of its callers, and by how batches are held for company.

    python bench/hold_callers.py                        # seven rounds, a table: twelve minutes
    python bench/hold_callers.py --rounds 1 --seconds 0.5
    python bench/hold_callers.py --write                # and the plot of docs/explanation/batching.md

It runs the scene `hold` of `run.py` over 1 to 256 connections, every server and number in turn.  The best fixed wait is
chosen for each number of callers afterwards, and 0 is one of them: nobody who sets one number gets as much everywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import penstock as ps
from loadgen import LoadFailed
from report import Measurement, Run, figure_name, keep, show, spread
from run import machine, take_all
from servers import FIXED_WAITS, HOLD, ServerFailed, fixed_name

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

from plots import DOCS, Line, Plot, Point, write_plot

FIGURES = DOCS / "explanation" / "hold-by-callers.plot.json"
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

FIXED, NEVER = "best fixed wait", "max_wait=0"
"""The lines of the plot beside the default policy."""


def default_wait() -> float | str:
    """How long the default policy holds a batch, in seconds, or the word for a wait that is learned."""
    return ps.Batch().max_wait


def default_name() -> str:
    """The line of the default policy: it says what that was, so that no figures pass for those of another."""
    wait = default_wait()
    return f'default, "{wait}"' if isinstance(wait, str) else f"default, {in_words(wait)}"


def point(run: Run, callers: int, name: str, note: str) -> Point:
    """What one server got of the ideal, over so many connections."""
    low, middle, high = shares(run, callers, name)
    return Point(callers, round(low, 4), round(middle, 4), round(high, 4), note)


def shares(run: Run, callers: int, name: str) -> tuple[float, float, float]:
    """The least, the median and the most of the ideal that a server got."""
    found = [m.of_ideal for m in run.of(figure_name(name, callers, several=True))]
    return min(found), median(found), max(found)


def best_wait(run: Run, callers: int) -> float:
    """The fixed wait with the highest median over so many connections, in seconds; the shortest of equal ones."""
    return max(FIXED_WAITS, key=lambda wait: shares(run, callers, fixed_name(wait))[1])


def in_words(wait: float) -> str:
    """A wait as it is printed."""
    return f"{wait * 1000:g} ms" if wait else "0"


def hold_lines(run: Run) -> list[Line]:
    """The three lines of the plot: the default policy, the best fixed wait for each number of callers, and no wait."""
    best = {callers: best_wait(run, callers) for callers in run.connections}
    chosen: dict[str, Callable[[int], tuple[str, str]]] = {
        default_name(): lambda _: ("accelerator", ""),
        FIXED: lambda callers: (fixed_name(best[callers]), in_words(best[callers])),
        NEVER: lambda _: (fixed_name(0.0), ""),
    }
    return [
        Line(name, [point(run, callers, *choice(callers)) for callers in run.connections])
        for name, choice in chosen.items()
    ]


def hold_plot(run: Run) -> Plot:
    """The plot of a run, with where and how it was measured."""
    rounds, seconds = run.settings["rounds"], run.settings["seconds"]
    assert isinstance(rounds, float)
    assert isinstance(seconds, float)
    where = f"{run.machine['cpu']}, {run.machine['cores']} cores"
    return Plot(
        title="How much of a device its callers get, by how batches are held",
        x_label="callers, each with one request in flight",
        y_label="fraction of the ideal requests/s",
        caption=f"Median of {rounds:.0f} rounds of {seconds:g} s; bars from the least to the most. {where}",
        command="python bench/hold_callers.py --write",
        when=f"{run.when:%Y-%m-%d}",
        machine=run.machine,
        settings={"rounds": rounds, "seconds": seconds},
        lines=hold_lines(run),
    )


def print_table(lines: Sequence[Line]) -> None:
    """Each line with minimum, median and maximum, a row for each number of callers."""
    header = ["callers"]
    for line in lines:
        header += [f"{line.name}: min", "median", "max"]
    rows = []
    for points in zip(*(line.points for line in lines), strict=True):
        row = [str(points[0].x)]
        for each in points:
            low, middle, high = spread([each.low, each.median, each.high], ".3f")
            row += [low, f"{middle} ({each.note})" if each.note else middle, high]
        rows.append(row)
    show(header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write where that is wanted; the exit status."""
    parser = argparse.ArgumentParser(description="Measure how batches should be held, by the number of callers.")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each (default: 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (default: 1)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before each, not counted (default: 0.5)")
    parser.add_argument("--write", action="store_true", help="write the figures and the plot of the documentation")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or chosen.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    if chosen.write and default_wait() != "auto":
        parser.error(f'the plot is about max_wait="auto", and the default is {default_wait()!r}')
    try:
        taken: list[Measurement] = take_all(
            list(HOLD.values()), CALLERS, rounds=chosen.rounds, seconds=chosen.seconds, warmup=chosen.warmup
        )
    except (LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    settings: dict[str, float | list[int]] = {
        "rounds": float(chosen.rounds), "seconds": chosen.seconds, "warmup": chosen.warmup, "connections": [*CALLERS],
    }  # fmt: skip
    run = Run(when=datetime.now(UTC), machine=machine("uvloop", "httptools"), settings=settings, measurements=taken)
    plot = hold_plot(run)
    print_table(plot.lines)
    print(f"Everything that was measured: {keep(run, f'hold-{run.when:%Y%m%d-%H%M%S}')}")
    if chosen.write:
        write_plot(plot, FIGURES)
        print(f"The plot of the documentation: {FIGURES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
