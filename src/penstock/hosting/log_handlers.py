"""Keep log handlers from blocking where nobody may wait: their records are handed over to a `LineWriter`.

What a handler does with a record depends on the handler, and on the thread:

* One that writes to a `LineStream`, or to memory, runs where it is: it cannot block.  Where it has the stream that a
  `LineStream` stands for, it gets the `LineStream`.
* Any other of Python's own that writes (to a file, a socket, a stream) never runs where it is.
* Any other whatsoever runs where it is, unless that is the thread of the event loop: what a user has written may want
  to see its record at once, and only stalls who logs.

Filters run where they are.  The message is made there too, if its arguments may change.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.hosting.line_streams import LineStream
from penstock.hosting.line_writer import LineWriter

RECORD_BYTES = 1024
"""What a record holds besides its texts."""
TRACEBACK_BYTES = 64 * 1024
"""What a record with a traceback holds: its frames keep what they were working on."""

_WRITERS = ("SocketHandler", "SysLogHandler", "SMTPHandler", "HTTPHandler")
"""Those of `logging.handlers`, beside the `StreamHandler`s."""
_PLAIN = (str, int, float, bool, bytes, type(None))


class RecordsHandedOver:
    """While it is begun, handlers are kept from blocking; `streams` has the original stream of each `LineStream`.

    `loop_thread` is the thread of the event loop, or None.
    """

    def __init__(self, writer: LineWriter, streams: Mapping[int, LineStream], loop_thread: int | None) -> None:
        self._writer = writer
        self._streams = streams
        self._loop_thread = loop_thread
        self._redirected: weakref.WeakSet[logging.StreamHandler[Any]] = weakref.WeakSet()
        self._before: Callable[[logging.Handler, logging.LogRecord], Any] = logging.Handler.handle
        self._ours: Any = None

    def begin(self) -> None:
        """Judge each record from now on."""
        # The class, and no handler: those that are added later count too, and so do those that have others behind them.
        before = self._before = logging.Handler.handle

        def handle(handler: logging.Handler, record: logging.LogRecord) -> Any:
            if not self._writer.apart or threading.current_thread() is self._writer.thread or self._may_run(handler):
                return before(handler, record)
            return self._hand_over(handler, record)

        self._ours = handle
        logging.Handler.handle = handle  # type: ignore[method-assign, assignment]

    def end(self) -> None:
        """Leave handlers as they were."""
        if logging.Handler.handle is self._ours:
            logging.Handler.handle = self._before  # type: ignore[method-assign, assignment]
        for handler in list(self._redirected):
            if isinstance(handler.stream, LineStream):
                handler.stream = handler.stream.original

    def _may_run(self, handler: logging.Handler) -> bool:
        if not _writes(handler):
            return threading.get_ident() != self._loop_thread
        if not isinstance(handler, logging.StreamHandler):
            return False
        stream = handler.stream
        if isinstance(stream, LineStream) and stream.writer is not self._writer:
            stream = stream.original  # of an earlier run, which has ended
        ours = self._streams.get(id(stream))
        if ours is not None and ours.original is stream:
            handler.stream = ours  # not by `setStream`, which flushes the old one
            self._redirected.add(handler)
        if type(handler).emit is not logging.StreamHandler.emit:
            return False
        return isinstance(handler.stream, io.StringIO) or (
            isinstance(handler.stream, LineStream) and handler.stream.writer is self._writer
        )

    def _hand_over(self, handler: logging.Handler, record: logging.LogRecord) -> Any:
        kept: Any = handler.filter(record)
        if isinstance(kept, logging.LogRecord):  # since Python 3.12 a filter may replace the record
            record = kept
        if kept:
            try:
                settled, nbytes = settle_record(record)
            except Exception:  # noqa: BLE001  # the arguments do not fit the message, or cannot be written
                handler.handleError(record)
            else:
                self._writer.run(partial(_emit, handler, settled), nbytes)
        return kept


def _writes(handler: logging.Handler) -> bool:
    """Whether it is one of Python's own that writes."""
    if isinstance(handler, logging.StreamHandler):
        return True
    module = sys.modules.get("logging.handlers")  # importing it takes 3 ms, and without it there are none of these
    return module is not None and isinstance(handler, tuple(getattr(module, name) for name in _WRITERS))


def settle_record(record: logging.LogRecord) -> tuple[logging.LogRecord, int]:
    """The record as it is now, whatever its caller changes later, and how many bytes it holds."""
    message = record.getMessage()
    nbytes = RECORD_BYTES + len(message) + (TRACEBACK_BYTES if record.exc_info else 0)
    nbytes += sum(len(value) for value in vars(record).values() if isinstance(value, (str, bytes)))
    settled = copy.copy(record)
    args = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    if isinstance(record.msg, str) and not all(type(value) in _PLAIN for value in args):
        settled.msg, settled.args = message, None
    return settled, nbytes


def _emit(handler: logging.Handler, record: logging.LogRecord) -> None:
    handler.acquire()
    try:
        handler.emit(record)
    finally:
        handler.release()


def leave_alone(job: Callable[[], object] | None) -> None:
    """Have `logging.shutdown` pass by the handler that `job` is stuck in: its lock is held, and will be."""
    if isinstance(job, partial) and job.func is _emit:
        handler = job.args[0]
        for name in ("acquire", "release", "flush", "close"):
            with contextlib.suppress(AttributeError):
                setattr(handler, name, _do_nothing)


def _do_nothing() -> None:
    return
