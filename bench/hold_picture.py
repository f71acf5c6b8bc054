"""A picture of the simulator's cases: their ratios, sorted, for each number of workers, as SVG."""

from __future__ import annotations

import math
from pathlib import Path

from hold_policies import policy_words
from hold_results import HoldRun, mean_to_never

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 50
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS = ("#1f6fb2", "#c8553d", "#4b8b3b", "#7a5195")
LEAST, MOST = 0.5, 4.0
MARKS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)


def _height(ratio: float) -> float:
    """Where a ratio is drawn; the scale is logarithmic."""
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def draw_ratios(run: HoldRun) -> str:
    """The picture: a curve for each number of workers, the worst case at its left."""
    right = WIDTH - RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22">1 / mean latency, {policy_words(run.policy)} to max_wait 0, by case</text>',
    ]
    for mark in MARKS:
        y = _height(mark)
        colour = "#555" if mark == 1 else "#ddd"
        parts += [
            f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>',
        ]
    for tenth in range(0, 101, 20):
        x = LEFT + tenth / 100 * (right - LEFT)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tenth} %</text>')
    parts.append(
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">cases, the worst first</text>'
    )
    for colour, workers in zip(COLOURS, sorted({p.workers for p in run.played}), strict=False):
        ratios = sorted(mean_to_never(p, run.policy) for p in run.played if p.workers == workers)
        step = (right - LEFT) / max(len(ratios) - 1, 1)
        points = " ".join(f"{LEFT + i * step:.1f},{_height(ratio):.1f}" for i, ratio in enumerate(ratios))
        y = TOP + 16 + 18 * COLOURS.index(colour)
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{LEFT + 16}" y="{y}" fill="{colour}">{workers} worker{"s" * (workers > 1)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def keep_picture(run: HoldRun, path: Path) -> Path:
    """Write the picture into `path`; where that is."""
    path.write_text(draw_ratios(run))
    return path
