"""Draw the plots of the documentation from the figures beside them.

    python docs/plots.py --check    # exit 1 where a drawing shows something else than its figures
    python docs/plots.py --write    # draw what is stale

The figures of NAME.svg are in NAME.plot.json, which a bench has written.  A drawing has a background of its own, light
or dark as the reader's system is: on a page that is the other it can be read all the same.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

DOCS = Path(__file__).resolve().parent
FIGURES = ".plot.json"


class Point(msgspec.Struct, frozen=True):
    """What was measured at one place: the least, the median and the most of some rounds."""

    x: int
    low: float
    median: float
    high: float
    note: str = ""
    """What is worth a word about it; shown where the pointer rests."""


class Line(msgspec.Struct, frozen=True):
    """The points of one thing that was measured."""

    name: str
    points: list[Point]


class Plot(msgspec.Struct, frozen=True):
    """Some lines over one scale of powers of two, and where they come from."""

    title: str
    x_label: str
    y_label: str
    caption: str
    command: str
    """What measures this again."""
    when: str
    machine: dict[str, str]
    settings: dict[str, float]
    lines: list[Line]


def read_plot(figures: Path) -> Plot:
    """The figures in a file."""
    return msgspec.json.decode(figures.read_bytes(), type=Plot)


def drawing_of(figures: Path) -> Path:
    """Where figures are drawn."""
    return figures.with_name(figures.name.removesuffix(FIGURES) + ".svg")


def write_plot(plot: Plot, figures: Path) -> None:
    """Write figures, and draw them beside."""
    figures.write_bytes(msgspec.json.format(msgspec.json.encode(plot), indent=1) + b"\n")
    drawing_of(figures).write_text(drawn(plot))


# -- drawing ----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 66, 590, 56, 350
LABEL_GAP = 18
"""Least distance between two labels of lines."""
DODGE = 4
"""How far apart lines are drawn at one place, so that what they have in common does not cover one of them."""
SERIES = 3

STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .title { font-size: 16px; font-weight: 600 }
    .small { font-size: 12px; fill: #59636e }
    .ground { fill: #ffffff; stroke: #d1d9e0 }
    .grid { stroke: #d1d9e0; stroke-width: 1 }
    .line { fill: none; stroke-width: 2; stroke-linejoin: round }
    .bar { stroke-width: 1.5 }
    .leader { stroke-width: 1; stroke-dasharray: 2 2 }
    .label { font-weight: 600 }
    .one { stroke: #0969da } .one.mark, .one.label { fill: #0969da; stroke: none }
    .two { stroke: #bc4c00 } .two.mark, .two.label { fill: #bc4c00; stroke: none }
    .three { stroke: #59636e } .three.mark, .three.label { fill: #59636e; stroke: none }
    .two.line { stroke-dasharray: 7 4 } .three.line { stroke-dasharray: 2 4 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .ground { fill: #0d1117; stroke: #3d444d }
      .grid { stroke: #3d444d }
      .one { stroke: #58a6ff } .one.mark, .one.label { fill: #58a6ff }
      .two { stroke: #f0883e } .two.mark, .two.label { fill: #f0883e }
      .three { stroke: #9198a1 } .three.mark, .three.label { fill: #9198a1 }
    }
"""
NAMED = f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title about"'
CLASSES = ("one", "two", "three")


@dataclass(frozen=True, slots=True)
class Scale:
    """Where figures lie in the drawing: powers of two to the right, tenths upwards."""

    xs: Sequence[int]
    bottom: int
    top: int
    """The lowest and the highest tenth."""

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Scale:
        """One that all the lines fit into."""
        points = [point for line in lines for point in line.points]
        bottom = math.floor(round(min(point.low for point in points) * 10, 6))
        top = max(math.ceil(round(max(point.high for point in points) * 10, 6)), bottom + 1)
        return cls(sorted({point.x for point in points}), bottom, top)

    def x(self, value: float) -> float:
        """Pixels from the left."""
        first, last = math.log2(self.xs[0]), math.log2(self.xs[-1])
        share = (math.log2(value) - first) / (last - first) if last > first else 0.5
        return LEFT + 12 + share * (RIGHT - LEFT - 24)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return BOTTOM - (value * 10 - self.bottom) / (self.top - self.bottom) * (BOTTOM - TOP)


def drawn(plot: Plot) -> str:
    """A plot as SVG.  Raises ValueError where it has more lines than can be told apart."""
    if not 0 < len(plot.lines) <= SERIES:
        raise ValueError(f"a plot has 1 to {SERIES} lines, got {len(plot.lines)}")
    scale = Scale.of(plot.lines)
    names = ", ".join(line.name for line in plot.lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {NAMED}>',
        f'  <title id="title">{escape(plot.title)}</title>',
        f'  <desc id="about">{escape(f"{plot.y_label} by {plot.x_label}: {names}.")}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
        _text(LEFT, 30, plot.title, "title", "start"),
        *_axes(scale, plot),
    ]
    ends = []
    for at, (line, kind) in enumerate(zip(plot.lines, CLASSES, strict=False)):
        shift = (at - (len(plot.lines) - 1) / 2) * DODGE
        parts += _line(line, kind, scale, shift)
        ends.append((scale.x(line.points[-1].x) + shift, scale.y(line.points[-1].median)))
    for line, kind, (x, y), label in zip(plot.lines, CLASSES, ends, spaced([y for _, y in ends]), strict=False):
        parts.append(f'  <line class="{kind} leader" x1="{x + 6:.1f}" y1="{y:.1f}" x2="{RIGHT + 4}" y2="{label:.1f}"/>')
        parts.append(_text(RIGHT + 8, label + 4.5, line.name, f"{kind} label", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def spaced(wanted: Sequence[float]) -> list[float]:
    """Heights for labels near those wanted, in their order from the top, none so near another that they touch."""
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    found = [wanted[at] for at in order]
    for at in range(1, len(found)):
        found[at] = max(found[at], found[at - 1] + LABEL_GAP)
    moved = sum(found) / len(found) - sum(wanted) / len(wanted)
    by_place = dict(zip(order, (y - moved for y in found), strict=True))
    return [by_place[at] for at in range(len(wanted))]


def _axes(scale: Scale, plot: Plot) -> Iterator[str]:
    for tenth in range(scale.bottom, scale.top + 1):
        y = scale.y(tenth / 10)
        yield f'  <line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4.5, f"{tenth / 10:.1f}", "small", "end")
    for x in scale.xs:
        yield _text(scale.x(x), BOTTOM + 20, str(x), "small", "middle")
    middle = (TOP + BOTTOM) / 2
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 44, plot.x_label, "", "middle")
    yield _text(20, middle, plot.y_label, "", "middle", f' transform="rotate(-90 20 {middle:.1f})"')
    yield _text(LEFT, HEIGHT - 16, plot.caption, "small", "start")


def _line(line: Line, kind: str, scale: Scale, shift: float) -> Iterator[str]:
    places = [(scale.x(point.x) + shift, point) for point in line.points]
    path = " ".join(f"{x:.1f},{scale.y(point.median):.1f}" for x, point in places)
    yield f'  <polyline class="{kind} line" points="{path}"/>'
    for x, point in places:
        low, high, y = scale.y(point.low), scale.y(point.high), scale.y(point.median)
        note = f" ({point.note})" if point.note else ""
        said = f"{line.name}{note}, {point.x}: {point.median:.3f}, {point.low:.3f} to {point.high:.3f}"
        yield f'  <line class="{kind} bar" x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}"/>'
        yield f'  <circle class="{kind} mark" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(said)}</title></circle>'


def _text(x: float, y: float, text: str, kind: str, anchor: str, more: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'  <text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


# -- files ------------------------------------------------------------------------------------------------------------


def is_stale(figures: Path) -> bool:
    """Whether figures are drawn otherwise than they are, or not at all."""
    drawing = drawing_of(figures)
    return not drawing.exists() or drawing.read_text() != drawn(read_plot(figures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the drawings; the exit status."""
    parser = argparse.ArgumentParser(description="Draw the plots of the documentation from the figures beside them.")
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument("--check", action="store_true", help="exit 1 where a drawing is stale")
    wish.add_argument("--write", action="store_true", help="draw what is stale")
    every = sorted(DOCS.rglob(f"*{FIGURES}"))
    parser.add_argument("figures", nargs="*", type=Path, default=every, help=f"default: each *{FIGURES} of docs/")
    options = parser.parse_args(arguments)
    stale = [figures for figures in options.figures if is_stale(figures)]
    for figures in stale:
        print(f"{drawing_of(figures)}: {'stale, draw it with `make pictures`' if options.check else 'drawn anew'}")
        if options.write:
            drawing_of(figures).write_text(drawn(read_plot(figures)))
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
