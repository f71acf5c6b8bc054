"""Loggers that never raise: a handler or a filter that does costs its line, and nothing else.

Python raises in the code that logs what a handler of the user raises.  Here that is code which has just lost a worker,
or is about to settle a caller; what it was about to do next would never be done.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial

_TELLER = logging.NullHandler()
"""Tells of an error as Python's own handlers do: on standard error, unless `logging.raiseExceptions` is off."""


def guarded_logger(name: str) -> logging.Logger:
    """The logger `name`, which raises nothing from now on."""
    logger = logging.getLogger(name)
    # The object, and not its class: a logger of this name may exist, and a program may have a class of its own.
    logger.handle = partial(_handle, logger)  # type: ignore[method-assign]
    return logger


def enable_loggers() -> None:
    """Let Penstock's loggers write again, after user code has run.

    `logging.config.dictConfig` and `fileConfig` disable every logger that they do not name, unless they are told
    otherwise.  Whoever configures a model's log rarely means the server's.
    """
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "penstock":
            logger.disabled = False


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(logger).handle(logger, record)
    except Exception:  # noqa: BLE001  # the user's code
        with contextlib.suppress(Exception):  # standard error may be closed
            _TELLER.handleError(record)
