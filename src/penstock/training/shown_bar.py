"""Show how far a run is as a bar for each kind, where stderr is a terminal; and choose between that and lines.

Several workers may write to one terminal.  One of them has the bar, by a lock on the terminal itself; the others write
lines.  The bar is drawn by who tells something new, and not by a thread: a fork of the user's code could meet a thread
with a lock of the terminal in its hands, and would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO, cast

from penstock.codec.text import printable
from penstock.hosting.kernel_locks import close_lock, try_lock
from penstock.hosting.stdio import LossyStream, is_terminal
from penstock.training.rules.task_states import Phase
from penstock.training.shown_lines import ShownLines
from penstock.training.task_store import KindProgress
from penstock.training.telling import Shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class ShownBar:
    """The bars of a run, which are gone at the end; notes stay."""

    def __init__(self, name: str, console: Console, bars: Progress) -> None:
        self._name = name
        self._console = console
        self._bars = bars
        self._rows: dict[Phase, TaskID] = {}

    def show(self, kind: Phase, words: str, progress: Sequence[KindProgress]) -> None:
        """Draw the bars anew, with `words` behind that of `kind`."""
        for each, total, left in progress:
            if not total:
                continue
            if each not in self._rows:
                self._rows[each] = self._bars.add_task(str(each), total=total, words="")
            self._bars.update(self._rows[each], completed=total - left, words=words if each is kind else "")
        self._bars.refresh()

    def note(self, words: str) -> None:
        """Print it above the bars."""
        self._console.print(f"penstock: run {self._name}: {words}", markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bars away for a while."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()


@contextlib.contextmanager
def run_shown(name: str) -> Iterator[Shown]:
    """What shows a worker of the run `name` on stderr as it is now."""
    name = printable(name)
    with _terminal_held() as held:
        if not held:
            yield ShownLines(name)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # Rich writes what the functions print too, in place of the stream: a closed terminal must not end them.
        console = Console(file=cast("TextIO", LossyStream(sys.stderr)))
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False),
        )
        same = is_terminal(sys.stdout)  # what is printed goes above the bars then, else where it always went
        with Progress(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=same) as bars:
            yield ShownBar(name, console, bars)


@contextlib.contextmanager
def _terminal_held() -> Iterator[bool]:
    """Whether stderr is a terminal, on which nobody else shows a bar until the end."""
    if not is_terminal(sys.stderr):
        yield False
        return
    with contextlib.ExitStack() as at_end:
        free = True
        with contextlib.suppress(Exception):  # a terminal that has no file, or cannot be locked
            lock = os.open(os.ttyname(sys.stderr.fileno()), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            at_end.callback(close_lock, lock)
            free = try_lock(lock)
        yield free
