"""Log lines: how they look, and where they go.

`JsonLines` writes each record as one JSON object on one line.  What is written of a failure is in `fault_log.py`.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from collections.abc import Mapping
from typing import IO, Any, TypeGuard

import msgspec

from penstock.codec.text import utf8
from penstock.config import LogFormat
from penstock.errors import PenstockError, StartFailed
from penstock.hosting.fault_log import list_ids
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.line_streams import LineStream
from penstock.log_level_text import OWN_LOGGERS, own_log_levels, read_log_levels

log = guarded_logger("penstock.server")

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""How a text line looks."""

IDS_BYTES = 2000
"""Most bytes of `request_ids` in a line.

A batch may have thousands of items, and each may be worth several lines.  Lines of several processes in one pipe are
mixed where they are longer than 4096 bytes.
"""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""The attributes that every record has.  Any other attribute came with ``extra=``."""


def log_failure(error: Exception) -> None:
    """Write why the server could not start, or had to end.  The traceback, remote or local, is a field of its own."""
    extra = {"error": type(error).__name__}
    if isinstance(error, StartFailed) and error.traceback:
        extra["traceback"] = error.traceback.rstrip()
    message = error.args[0] if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    log.error("%s", message, exc_info=None if isinstance(error, PenstockError) else error, extra=extra)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, what came as ``extra``, a traceback, a stack.

    An extra whose name the line has already is `extra_NAME`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, always; a field that JSON cannot carry is written as its `repr`."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record).rstrip("\n"),
        }
        extras = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        last: dict[str, Any] = {}
        if _are_ids(ids := extras.get("request_ids")):
            del extras["request_ids"]
            last |= _fitting(ids)
        if record.exc_info:
            last["traceback"] = utf8(self.formatException(record.exc_info))
        elif record.exc_text:  # of another process
            last["traceback"] = utf8(record.exc_text.strip("\n"))
        if record.stack_info:
            last["stack"] = utf8(self.formatStack(record.stack_info))
        for name, value in extras.items():
            while name in line or name in last:
                name = f"extra_{name}"  # noqa: PLW2901
            line[name] = utf8(value) if type(value) is str else value
        line |= last
        try:
            return _encode(line).decode()
        except Exception:  # noqa: BLE001  # a value of the user's; each field alone tells which
            return _encode({shown(name): _carried(value) for name, value in line.items()}).decode()


def _message(record: logging.LogRecord) -> str:
    """The message; where the arguments do not fit it, both, and the line of code that logs."""
    try:
        return utf8(record.getMessage())
    except Exception as error:  # noqa: BLE001  # the user's code
        place = f"{shown(record.pathname)}:{record.lineno}"
        return f"{shown(record.msg)} {shown(record.args)}: {shown(error)} at {place}"


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=shown)


def _carried(value: object) -> msgspec.Raw:
    """`value` in JSON, or its `repr` where JSON cannot carry it: lone surrogates, what contains itself."""
    try:
        return msgspec.Raw(_encode(value))
    except Exception:  # noqa: BLE001
        return msgspec.Raw(_encode(shown(value)))


def shown(value: object) -> str:
    """`value` as text that UTF-8 can carry, whatever it is: a text itself, or else the `repr`."""
    try:
        return utf8(str(value) if isinstance(value, str) else repr(value))
    except Exception:  # noqa: BLE001  # the user's code, or nested too deeply
        return f"<{type(value).__name__}: cannot be shown>"


def _are_ids(value: object) -> TypeGuard[tuple[str, ...]]:
    """Whether these are request ids: a user may give anything under their name."""
    return type(value) is tuple and set(map(type, value)) <= {str}


def _fitting(ids: tuple[str, ...]) -> dict[str, Any]:
    """The fields for request ids: as many as `IDS_BYTES` has room for, and how many are left out."""
    room = IDS_BYTES
    for i, each in enumerate(ids):
        room -= len(each) + 3  # quotes and a comma
        if room < 0:
            return {"request_ids": ids[:i], "request_ids_left_out": len(ids) - i}
    return {"request_ids": ids}


class TextLines(logging.Formatter):
    """A text line; the time is formatted once a second, since that takes a tenth of what a line costs."""

    _last = (-1, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        """The time as `logging.Formatter` has it; there is no `datefmt`."""
        second, text = self._last
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime(datefmt or self.default_time_format, self.converter(second))
            self._last = (second, text)
        return f"{text},{int(record.msecs):03d}"


class StageLines(TextLines):
    """The text lines of a stage: they also say which stage and worker, and for which requests, if any."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """The line without traceback; in brackets, what `UntakenRecords` has marked the record with, if anything.

        Line ends that the message has of its own, as those of `logging.captureWarnings`, are left out.
        """
        if not hasattr(record, "worker"):  # of a thread that is no worker
            return super().formatMessage(record).rstrip("\n")
        where = [f"{shown(getattr(record, 'stage', ''))}/{shown(record.worker)}"]
        marked: object = getattr(record, "request_ids", ())
        if _are_ids(marked) and (ids := [each for each in marked if each]):
            where.append(list_ids(ids, len(ids)))
        return f"{record.asctime} {record.levelname} {record.name} [{' '.join(where)}]: {record.message}".rstrip("\n")


class _Lines(logging.StreamHandler[IO[str]]):
    """Writes log lines.  A line that cannot be written is lost: there is nowhere to report it."""

    def handle(self, record: logging.LogRecord) -> Any:
        """Hand a line over as a whole: the way through the stream takes three times as long."""
        stream: object = self.stream
        if not isinstance(stream, LineStream):
            return super().handle(record)
        kept: Any = self.filter(record)
        if isinstance(kept, logging.LogRecord):  # since Python 3.12 a filter may replace the record
            record = kept
        if kept:
            try:
                stream.write_line(self.format(record))
            except Exception:  # noqa: BLE001  # as in every handler: an error of the record is reported
                self.handleError(record)
        return kept

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Report a record that cannot be formatted, but not a stream that is full, closed or gone."""
        if not (self.stream.closed or isinstance(sys.exc_info()[1], OSError)):
            super().handleError(record)


def lines_to(stream: IO[str] | None, formatter: logging.Formatter) -> logging.Handler:
    """What writes records to `stream` as `formatter` has them; it does nothing where there is no stream."""
    if stream is None:
        return logging.NullHandler()
    handler = _Lines(stream)
    handler.setFormatter(formatter)
    return handler


def set_up_logging(log_format: LogFormat, log_level: str = "info", *, stream: IO[str] | None = None) -> None:
    """Send Penstock's log lines to `stream` (standard error).  A second call replaces what the first one set up.

    Of `log_level`, which is as in `ServerOptions`, what concerns Penstock's own loggers is used, and no other logger
    is touched.
    """
    root = logging.getLogger(OWN_LOGGERS)
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    # Standard error is None where it was closed at the start.
    root.addHandler(lines_to(stream or sys.stderr, JsonLines() if log_format == "json" else TextLines(TEXT)))
    root.propagate = False
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith(f"{OWN_LOGGERS}.") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)
    set_levels(own_log_levels(read_log_levels(log_level)))


def set_levels(levels: Mapping[str, int]) -> None:
    """Set the level of each logger; `ALL_LOGGERS` is the root's name."""
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


def object_line(logger: str, level: str, words: str, marks: Mapping[str, Any]) -> str:
    """The JSON object of a line that nobody logged: one that was printed, or is written as it is."""
    record = logging.makeLogRecord({"name": logger, "levelname": level, "msg": words})
    vars(record).update(marks)
    return JsonLines().format(record)


def dropped_notice(count: int) -> str:
    """The line which tells that `count` lines are missing; it looks as the log's other lines."""
    words = f"{count} log lines were dropped: the reader of the output is too slow, or they could not be written"
    for handler in logging.getLogger("penstock").handlers:
        if isinstance(handler, _Lines):
            return handler.format(log.makeRecord(log.name, logging.WARNING, "", 0, words, (), None))
    return f"penstock: {words}"
