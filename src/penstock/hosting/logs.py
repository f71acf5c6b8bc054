"""Log lines: how they look, and where they go.

`JsonLines` writes each record as one JSON object on one line.  What is written of a failure is in `fault_log.py`.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from typing import IO

import msgspec

from penstock.codec.text import utf8
from penstock.config import LogFormat
from penstock.errors import PenstockError, StartFailed

log = logging.getLogger("penstock.server")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every record has.  Any other attribute came with ``extra=``."""


def log_failure(error: Exception) -> None:
    """Write why the server could not start, or had to end.  The traceback, remote or local, is a field of its own."""
    extra = {"error": type(error).__name__}
    if isinstance(error, StartFailed) and error.traceback:
        extra["traceback"] = error.traceback.rstrip()
    message = error.args[0] if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    log.error("%s", message, exc_info=None if isinstance(error, PenstockError) else error, extra=extra)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, whatever came as ``extra``, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; what JSON cannot carry is written as its `repr`."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": utf8(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line.setdefault(name, utf8(value) if isinstance(value, str) else value)
        if record.exc_info:
            line["traceback"] = utf8(self.formatException(record.exc_info))
        return msgspec.json.encode(line, enc_hook=repr).decode()


class _Lines(logging.StreamHandler[IO[str]]):
    """Writes log lines.  A line that cannot be written is lost: there is nowhere to report it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Report a record that cannot be formatted, but not a stream that is full, closed or gone."""
        if not (self.stream.closed or isinstance(sys.exc_info()[1], OSError)):
            super().handleError(record)


def set_up_logging(log_format: LogFormat, *, level: int = logging.INFO, stream: IO[str] | None = None) -> None:
    """Send Penstock's log lines to `stream` (standard error).  A second call replaces what the first one set up."""
    handler: logging.Handler = logging.NullHandler()
    if stream or sys.stderr:  # None where it was closed at the start
        handler = _Lines(stream or sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("penstock")
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
