"""Tell on stderr what `save` does: a line that changes on a terminal, lines one by one elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from penstock.hosting.stdio import LossyStream, is_terminal, write_stderr_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Progress(Protocol):
    """Hears what is being done."""

    def step(self, words: str) -> None:
        """What is being done from now on."""

    def note(self, words: str) -> None:
        """What the user should know, also when all is done."""


class ProgressLines:
    """Where stderr is a file or a pipe."""

    def step(self, words: str) -> None:
        """Write a line."""
        write_stderr_line(words)

    def note(self, words: str) -> None:
        """Write a line too."""
        write_stderr_line(words)


class ProgressStatus:
    """On a terminal: the step changes in place, and is gone at the end; the notes stay."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status

    def step(self, words: str) -> None:
        """Show it instead of the step before."""
        from rich.text import Text

        self._status.update(Text(words))

    def note(self, words: str) -> None:
        """Print it above the step."""
        self._console.print(f"penstock: {words}", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_shown() -> Iterator[Progress]:
    """Progress on stderr as it is now."""
    if not is_terminal(sys.stderr):
        yield ProgressLines()
        return
    from rich.console import Console

    # This very stream: exporters take `sys.stderr` away for a while.  A closed terminal must not cost the model.
    console = Console(file=cast("TextIO", LossyStream(sys.stderr)))
    with console.status("") as status:
        yield ProgressStatus(console, status)
