"""Have nobody in this process wait for a reader of its output: a log that nobody reads costs lines and nothing else.

While it lasts, `sys.stdout` and `sys.stderr` are `LineStream`s, log handlers are kept from blocking, and one thread
writes.  What C code writes by itself may still block.

At the end everything is written, and everything is as before.  If what waits cannot be written in time, nothing is put
back: what is printed later finds no reader either, and must not block.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

from penstock.hosting.line_streams import LineStream
from penstock.hosting.line_writer import GATHER_SECONDS, LineWriter
from penstock.hosting.log_handlers import RecordsHandedOver, leave_alone
from penstock.hosting.printed_objects import Marks

LAST_LINES_SECONDS = 1.0
"""How long an end waits for the lines written last."""

_NAMES = ("stdout", "stderr", "__stdout__", "__stderr__")


class HandingOver:
    """From `begin` to `end`, lines are handed over to a thread.

    Args:
        notice: makes the line that tells how many lines were dropped.
        gather: seconds for which lines gather, see `GATHER_SECONDS`.
        loop_thread: the thread of an event loop, where not even a user's own handler may block; None: there is none.
        erases: whether another process has a line at the bottom of the terminal, see `LineWriter`.
    """

    def __init__(
        self,
        notice: Callable[[int], str],
        *,
        gather: float = GATHER_SECONDS,
        loop_thread: int | None = None,
        erases: bool = False,
    ) -> None:
        originals = {id(stream): stream for name in _NAMES if _is_a_file(stream := getattr(sys, name))}
        error = sys.stderr.fileno() if id(sys.stderr) in originals else None
        self.writer = LineWriter(notice, notice_fd=error, gather=gather, erases=erases)
        self._streams = {
            key: LineStream(stream, self.writer, hurried=loop_thread is None) for key, stream in originals.items()
        }
        self._records = RecordsHandedOver(self.writer, self._streams, loop_thread)
        self._writes_objects = False
        self.given_up = False
        """Whether an end was tried in vain."""

    def begin(self) -> None:
        """Take the place of the streams."""
        self.writer.start()
        for stream in self._streams.values():
            self.writer.run(stream.original.flush)  # what was printed before comes first
        for name in _NAMES:
            if (ours := self._streams.get(id(getattr(sys, name)))) is not None:
                setattr(sys, name, ours)
        self._records.begin()

    def write_objects(self, make: Callable[[str, str, Marks], str], marks: Callable[[], Marks]) -> None:
        """Make an object of each line that is printed from now on.

        `make` is given the stream's name, the line, and what `marks` returned in the thread that printed it.
        """
        self._writes_objects = True
        for name in ("stdout", "stderr"):
            if isinstance(stream := getattr(sys, name), LineStream):
                stream.write_objects(partial(make, name), marks)

    def end(self, within: float = LAST_LINES_SECONDS, *, last: bool = False) -> bool:
        """Write all and put the streams back, within so many seconds; otherwise put nothing back.  Whether it did.

        With `last` the process ends: streams whose lines are made objects stay, and what is still printed goes through
        them, without a thread.
        """
        self._flush()
        if not self.writer.end(within):
            leave_alone(self.writer.stuck_job)
            self.given_up = True
            return False
        self._records.end()
        if not (last and self._writes_objects):
            self._put_back()
        return True

    def write_last(self, within: float = LAST_LINES_SECONDS) -> None:
        """Write all and shut logging down, for a process that ends by `os._exit`."""
        self._flush()
        self.writer.set_foot(b"")
        self.writer.run(logging.shutdown)
        self.writer.flush(within)

    def forked(self) -> None:
        """In a fork, which has no thread: write as before."""
        self.writer.forked()
        if not self._writes_objects:
            self._put_back()

    def _flush(self) -> None:
        for stream in self._streams.values():
            with contextlib.suppress(ValueError):  # closed
                stream.write_rest()

    def _put_back(self) -> None:
        for name in _NAMES:
            if isinstance(stream := getattr(sys, name), LineStream) and stream.writer is self.writer:
                stream.write_plain()
                setattr(sys, name, stream.original)


def _is_a_file(stream: object) -> bool:
    """Whether `stream` writes to a descriptor and does nothing else with what it is given."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed:
        return False
    try:
        stream.fileno()
    except OSError:  # it writes to memory
        return False
    return True


class _Process:
    """What is handed over in this process."""

    now: HandingOver | None = None


def begin_handing_over(
    notice: Callable[[int], str],
    *,
    gather: float = GATHER_SECONDS,
    loop_thread: int | None = None,
    erases: bool = False,
) -> HandingOver:
    """Begin for the rest of this process, or until `end`."""
    _Process.now = HandingOver(notice, gather=gather, loop_thread=loop_thread, erases=erases)
    _Process.now.begin()
    return _Process.now


@contextlib.contextmanager
def lines_handed_over(notice: Callable[[int], str], *, erases: bool = False) -> Iterator[HandingOver]:
    """Hand over lines in a process whose event loop runs, or will run, in this thread; nothing more within another.

    `erases` is as for `HandingOver`.
    """
    if _Process.now is not None:
        yield _Process.now
        return
    handing_over = begin_handing_over(notice, loop_thread=threading.get_ident(), erases=erases)
    try:
        yield handing_over
    finally:
        if handing_over.end():
            _Process.now = None


def write_last_lines() -> None:
    """Write what waits, within a second, and shut logging down: the process ends by `os._exit`."""
    if _Process.now is not None:
        _Process.now.write_last()
    else:
        logging.shutdown()


def dropped_lines() -> int:
    """How many lines of this process were dropped, since lines were handed over."""
    return 0 if _Process.now is None else _Process.now.writer.backlog.dropped


def _forked() -> None:
    if _Process.now is not None:
        _Process.now.forked()
        _Process.now = None


def _exiting() -> None:
    if _Process.now is not None and not _Process.now.given_up:
        _Process.now.end()


atexit.register(_exiting)
os.register_at_fork(after_in_child=_forked)
