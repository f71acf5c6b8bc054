"""Draw what became of a burst: lanes on a terminal, a line for each event elsewhere."""

from typing import NamedTuple

from rich.console import Console
from rich.text import Text

CELLS_PER_SECOND = 10
COLOURS = {200: "green", 400: "yellow", 429: "yellow", 500: "red"}


class Span(NamedTuple):
    """Something that took its time, in seconds after the burst; `side` is whose timeline it is in."""

    side: str
    name: str
    begin: float
    end: float
    what: str
    colour: str


def draw(title: str, spans: list[Span]) -> None:
    """Print the timelines; without colours where NO_COLOR is set, without lanes where this is no terminal."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(title, style="bold")
    for side in dict.fromkeys(span.side for span in spans):
        if console.is_terminal:
            scale = "".join(f"{second} s".ljust(CELLS_PER_SECOND) for second in range(5))
            console.print(f"  {side:<18}{scale}")
        for span in (span for span in spans if span.side == side):
            if console.is_terminal:
                console.print(lane(span))
            else:
                console.print(f"  {side}: {span.begin:.2f} s to {span.end:.2f} s, {span.name}: {span.what}")


def lane(span: Span) -> Text:
    """The span as a bar, and behind it what it was."""
    before = round(span.begin * CELLS_PER_SECOND)
    cells = max(1, round((span.end - span.begin) * CELLS_PER_SECOND))
    line = Text(f"    {span.name:<16}" + " " * before)
    line.append("━" * cells, style=span.colour)
    line.append(f" {span.what}", style=span.colour)
    return line
