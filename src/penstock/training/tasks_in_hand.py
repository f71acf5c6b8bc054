"""Know which tasks this process does: one may have been lost, and one must not wait for itself.

Contract
--------
* A task is in hand while its function runs, in the thread that called it.
* Runs are told apart by their folder, whatever path and whatever `Run` object leads to it.
* In a fork none is in hand: the tasks are those of its parent, and the parent's store cannot be asked there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

Check = Callable[[], None]


class TaskInHand(NamedTuple):
    """A task that this process does."""

    folder: str
    """Of its run, without symbolic links."""
    name: str
    """As "train 3"."""
    process: int
    thread: int
    check: Check
    """Raises where it was lost."""


_in_hand: Final[list[TaskInHand]] = []
"""Without a lock, which a fork might inherit while somebody has it: each use below is one step of a list."""


@contextmanager
def task_in_hand(folder: Path, name: str, check: Check) -> Iterator[None]:
    """This thread does a task inside."""
    task = TaskInHand(os.path.realpath(folder), name, os.getpid(), threading.get_ident(), check)
    _in_hand.append(task)
    try:
        yield
    finally:
        _in_hand.remove(task)


def task_of_this_thread(folder: Path) -> TaskInHand | None:
    """The task of the run in `folder` that this thread does; None where it does none."""
    mine = threading.get_ident()
    return next((task for task in _of_run(folder) if task.thread == mine), None)


def check_tasks(folder: Path) -> None:
    """Raise what the check of the task raises that this thread does of the run in `folder`.

    A thread that does none may have been started by the function of any: every task of the run is checked that this
    process does.
    """
    mine = task_of_this_thread(folder)
    for task in _of_run(folder) if mine is None else [mine]:
        task.check()


def _of_run(folder: Path) -> list[TaskInHand]:
    real, process = os.path.realpath(folder), os.getpid()
    return [task for task in tuple(_in_hand) if task.folder == real and task.process == process]
