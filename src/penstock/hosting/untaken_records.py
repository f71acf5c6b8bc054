"""Write the log records that no handler of the user takes, and mark all of them with where they come from.

A record is taken if its logger, or one above it that it is passed on to, has a handler: that handler stands, as it
would without Penstock, and nothing is written twice.  A `NullHandler` takes nothing: libraries add one so that Python
says nothing of them by itself, and whoever serves wants to read them.

No handler is put on a logger for this.  With one on the root, `logging.basicConfig` of a user's module would do
nothing, and the lines of a logger with a handler of its own would come twice.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

_WARNINGS = "py.warnings"
"""The logger of warnings, as Python's own `logging.captureWarnings` has it."""


class UntakenRecords:
    """While it is begun, `handler` writes what nobody else takes, warnings included.

    `marks` is called in the thread that logs.  What it returns become attributes of the record, unless it has them: a
    user may give any of them as ``extra``.

    `passing` names loggers that are not looked at: their records are taken, and have no marks.
    """

    def __init__(
        self, handler: logging.Handler, marks: Callable[[], Mapping[str, Any]], passing: Sequence[str] = ()
    ) -> None:
        self._handler = handler
        self._marks = marks
        self._passing = [logging.getLogger(name) for name in passing]
        self._before: Callable[[logging.Logger, logging.LogRecord], None] = logging.Logger.callHandlers
        self._ours: Any = None
        self._show_before: Any = None
        self._show_ours: Any = None

    def begin(self) -> None:
        """Judge each record from now on."""
        before = self._before = logging.Logger.callHandlers
        marks, handler = self._marks, self._handler

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if found := marks():
                for name, value in found.items():
                    record.__dict__.setdefault(name, value)
            if is_taken(logger):
                before(logger, record)
            else:
                handler.handle(record)

        self._ours = call_handlers
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign, assignment]
        for passing in self._passing:
            passing.callHandlers = partial(before, passing)  # type: ignore[method-assign]
        self._show_before = warnings.showwarning
        self._show_ours = warnings.showwarning = self._show

    def end(self) -> None:
        """Leave records and warnings as they were, unless somebody else has put something in our place."""
        for passing in self._passing:
            vars(passing).pop("callHandlers", None)
        if logging.Logger.callHandlers is self._ours:
            logging.Logger.callHandlers = self._before  # type: ignore[method-assign, assignment]
        if warnings.showwarning is self._show_ours:
            warnings.showwarning = self._show_before

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if file is not None:
            self._show_before(message, category, filename, lineno, file, line)
            return
        text = warnings.formatwarning(message, category, filename, lineno, line)
        logging.getLogger(_WARNINGS).warning("%s", text.rstrip())


def is_taken(logger: logging.Logger) -> bool:
    """Whether a handler takes what `logger` logs, as far as loggers pass it on."""
    above: logging.Logger | None = logger
    while above is not None:
        for handler in above.handlers:  # no `any`: this is asked for each line of the access log
            if not isinstance(handler, logging.NullHandler):
                return True
        above = above.parent if above.propagate else None
    return False
