"""Show an error of the user's module with the user's frames only.

Between the command and the line at fault are some twenty frames of this package and of Python's import machinery.
They tell a user nothing.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from penstock.worker.problems import IMPORT_MACHINERY

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


class UserCodeFailed(Exception):
    """The user's module, or a function in it, raised an error.

    `kind` is the name of its class, and `traceback` its text with the user's frames.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.kind = type(error).__name__
        self.traceback = user_traceback(error)


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` and of what caused it, without frames of this package and of the import machinery."""
    described = traceback.TracebackException.from_exception(error, compact=True)
    todo: list[traceback.TracebackException | None] = [described]
    while todo:
        part = todo.pop()
        if part is None:
            continue
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if _is_users(frame.filename)])
        todo += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(described.format())


def user_place(error: BaseException) -> str:
    """The last line of the user's that led to `error`, as a file and a number; "" where there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _is_users(file: str) -> bool:
    return not file.startswith(_OURS) and not IMPORT_MACHINERY.match(file)
