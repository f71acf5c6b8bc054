"""Keep the tasks of a training run in an SQLite file, for all processes of one host.

Contract
--------
* It is a `TaskStore`, and its file is as durable as SQLite makes it: synchronous FULL.
* One connection writes, in transactions that begin by taking the file's lock; another one reads, and waits for no
  writer.  What has nothing to change reads only, and costs no fsync.
* A call that a signal interrupts with an exception has done all or nothing, and harms no later one.  A task that it
  has claimed is known to `release_all`.
* A fork of the process cannot use the store, and cannot open the same file while its parent has it open.  It can open
  others, also where a thread of its parent was in a call.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import threading
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from penstock.codec.text import printable
from penstock.errors import ConfigError, RunUnavailable
from penstock.hosting.host_clock import HostClock
from penstock.hosting.sqlite_file import SqliteFile, begin_writing, fork_guard
from penstock.training import task_rows
from penstock.training.rules.json_text import json_text
from penstock.training.rules.task_plans import PlanTexts, plan_difference, plan_texts
from penstock.training.rules.task_rules import (
    Decision,
    GiveUp,
    HostTime,
    Take,
    TaskRecord,
    Worker,
    after_failure,
    decide_claim,
    entry_of,
    failure_of,
    fence_counts,
    finished,
    released,
    renewed,
    retried,
    task_name,
    was_finished,
)
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.task_store import ClaimedTask, KindProgress, Next, RunPlan, TaskEntry, TaskHold

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, HostTime], T]
Change = Callable[[TaskRecord, HostTime], TaskRecord]


class SqliteTasks:
    """The tasks of one run, in a file.

    Args:
        path: the file; it is made where there is none, in a folder that must be there.
        clock: the clocks of this host.

    Raises:
        ConfigError: the file is damaged, somebody else's, of a newer version or on a network file system; or the folder
            is not there.
        RunUnavailable: the file is locked for longer than `BUSY_SECONDS`, or the disk is full or fails.
    """

    def __init__(self, path: str | Path, *, clock: HostClock | None = None) -> None:
        self._clock = HostClock.of_this_host() if clock is None else clock
        self._process = os.getpid()
        self._worker = Worker(self._process, socket.gethostname())
        self._file = SqliteFile(str(path), task_rows.RUN_FILE)
        self._turn = threading.Lock()
        self._closed = False
        self._claimed: set[TaskHold] = set()
        """Those that were claimed here and have not ended, as far as it is known."""
        self._claiming: TaskHold | None = None
        """The one that the transaction claims which is open now or was the last."""
        self._writer = self._file.open_for_writing()
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")  # `begin_writing` waits, and asks more often
            self._reader = self._file.open_for_reading()
        except BaseException:
            self._writer.close()
            self._file.leave()
            raise

    @classmethod
    def existing(cls, path: str | Path, *, clock: HostClock | None = None) -> SqliteTasks:
        """The tasks of a run whose file is there, to look at them or to have it go on.

        The file may be empty: whoever made it may have been killed then.  It is a run without a plan.

        Raises:
            ConfigError: there is no such file; or as for a new one.
        """
        file = Path(path)
        if not is_there(file):
            raise ConfigError(
                f"{file.parent} is not a training run: {file.name} is missing in it; give the directory that "
                "the run was created with"
            )
        return cls(path, clock=clock)

    def plan(self, plan: RunPlan) -> str:
        """See `TaskStore`."""
        texts = plan_texts(plan)
        found = self._read(lambda connection, _: self._same_plan(connection, plan, texts))
        return found or self._write(lambda connection, _: self._keep_plan(connection, plan, texts))

    def run_id(self) -> str | None:
        """See `TaskStore`."""
        found = self._read(lambda connection, _: task_rows.read_plan(connection))
        return None if found is None else found[0]

    def publishes_to(self) -> str | None:
        """See `TaskStore`."""
        found = self._read(lambda connection, _: task_rows.read_plan(connection))
        return None if found is None else found[1]

    def claim(self, kinds: Collection[Phase], *, lease: float, attempts: int) -> Next:
        """See `TaskStore`."""

        def decide(connection: sqlite3.Connection, now: HostTime) -> Decision:
            if task_rows.read_plan(connection) is None:
                raise ConfigError(f"the run in {self._file.path} has no plan; call plan first")
            situation = task_rows.read_situation(connection, now)
            return decide_claim(situation, kinds, attempts, lease, self._worker, now)

        def take(connection: sqlite3.Connection, now: HostTime) -> Next:
            decision = decide(connection, now)
            if isinstance(decision, GiveUp):
                return _give_up(connection, decision.task)
            return self._take(connection, decision.task) if isinstance(decision, Take) else decision

        decision = self._read(decide)
        return self._write(take) if isinstance(decision, Take | GiveUp) else decision

    def renew(self, hold: TaskHold, lease: float) -> bool:
        """See `TaskStore`."""
        return self._change(hold, lambda task, now: renewed(task, lease, now))

    def holds(self, hold: TaskHold) -> bool:
        """See `TaskStore`."""
        return self._read(lambda connection, _: _held(connection, hold)) is not None

    def finish(self, hold: TaskHold, result: Any) -> bool:
        """See `TaskStore`."""
        text = json_text(result, f"the result of task {task_name(hold.kind, hold.place)}")
        if self._end(hold, lambda task, _: finished(task), result=text):
            return True
        task = self._read(lambda connection, _: task_rows.read_task(connection, hold.kind, hold.place))
        return was_finished(task, hold.fence)

    def fail(self, hold: TaskHold, trouble: str, *, attempts: int) -> bool:
        """See `TaskStore`."""
        return self._end(hold, lambda task, _: after_failure(task, trouble, attempts))

    def release(self, hold: TaskHold) -> bool:
        """See `TaskStore`."""
        return self._end(hold, lambda task, _: released(task))

    def release_all(self) -> list[TaskHold]:
        """See `TaskStore`."""
        return [hold for hold in tuple(self._claimed) if self.release(hold)]

    def retry(self) -> bool:
        """See `TaskStore`."""
        return self._write(_retry)

    def results(self, kind: Phase) -> list[Any]:
        """See `TaskStore`."""
        texts = self._read(lambda connection, _: task_rows.read_results(connection, kind))
        return [None if text is None else json.loads(text) for text in texts]

    def progress(self) -> list[KindProgress]:
        """See `TaskStore`."""
        counts = self._read(lambda connection, _: task_rows.count_tasks(connection))
        return [KindProgress(kind, total, left) for kind, (total, left) in counts.items()]

    def tasks(self) -> list[TaskEntry]:
        """See `TaskStore`."""
        return self._read(lambda connection, now: [entry_of(task, now) for task in task_rows.read_tasks(connection)])

    def close(self) -> None:
        """See `TaskStore`; in a fork it does nothing."""
        if os.getpid() != self._process:
            return
        with self._turn, fork_guard():
            if self._closed:
                return
            self._closed = True
            self._reader.close()
            self._writer.close()
            self._file.leave()

    # -- the file ---------------------------------------------------------------------------------------------------

    def _same_plan(self, connection: sqlite3.Connection, plan: RunPlan, texts: PlanTexts) -> str | None:
        """The run's id where it has this plan, None where it has none."""
        found = task_rows.read_plan(connection)
        if found is None:
            return None
        run_id, publish_to = found
        difference = plan_difference(task_rows.read_texts(connection), publish_to, texts, plan.publish_to)
        if difference is not None:
            raise ConfigError(
                f"the run in {self._file.path} has a different plan already: {difference}; use the same plan, "
                "or create another run in a directory of its own"
            )
        return run_id

    def _keep_plan(self, connection: sqlite3.Connection, plan: RunPlan, texts: PlanTexts) -> str:
        found = self._same_plan(connection, plan, texts)  # somebody else may have been faster
        if found is not None:
            return found
        run_id = uuid.uuid4().hex
        task_rows.insert_plan(connection, run_id, plan.publish_to, texts)
        return run_id

    def _take(self, connection: sqlite3.Connection, task: TaskRecord) -> ClaimedTask:
        task_rows.update_task(connection, task)
        payload = json.loads(task_rows.read_payload(connection, task))
        hold = TaskHold(task.kind, task.place, task.fence)
        self._claiming = hold
        self._claimed.add(hold)  # before it is durable: whoever is interrupted behind that may never hear of it
        return ClaimedTask(hold, payload, task.attempts + 1)

    def _end(self, hold: TaskHold, change: Change, *, result: str | None = None) -> bool:
        """Change the task that is held, which ends the claim."""
        counts = self._change(hold, change, result=result)
        self._claimed.discard(hold)
        return counts

    def _change(self, hold: TaskHold, change: Change, *, result: str | None = None) -> bool:
        """Change the task that is held, where the fence counts; it is done with a result."""

        def work(connection: sqlite3.Connection, now: HostTime) -> bool:
            task = _held(connection, hold)
            if task is None:
                return False
            task = change(task, now)
            task_rows.update_task(connection, task)
            if result is not None:
                task_rows.insert_result(connection, task, result)
            if task.state is TaskState.FAILED:
                task_rows.write_failed(connection, task)
            return True

        return self._write(work)

    def _write(self, work: Work[T]) -> T:
        """What `work` returns, once it is durable; it is told the time at which its turn has come."""
        self._check_process()
        with self._turn, fork_guard():
            self._check()
            self._undo()  # what an interrupt has left that came while another one was being dealt with
            self._claiming = None
            try:
                begin_writing(self._writer)
                done = work(self._writer, self._now())
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                self._undo(maybe_rolled_back=True)
                raise self._file.unavailable(error) or error from error
            except BaseException:
                self._undo()
                raise
            return done

    def _undo(self, *, maybe_rolled_back: bool = False) -> None:
        """End a transaction that was not committed, and forget its claim: another worker may get the same fence.

        After an error SQLite may have rolled back by itself.
        """
        if self._claiming is not None and (maybe_rolled_back or self._writer.in_transaction):
            self._claimed.discard(self._claiming)
        _roll_back(self._writer)

    def _read(self, work: Work[T]) -> T:
        """What `work` returns: all its queries see the same tasks."""
        self._check_process()
        with self._turn, fork_guard():
            self._check()
            try:
                _roll_back(self._reader)  # what an interrupt has left that came while a transaction was being ended
                try:
                    self._reader.execute("BEGIN")
                    return work(self._reader, self._now())
                finally:
                    _roll_back(self._reader)
            except sqlite3.Error as error:
                raise self._file.unavailable(error) or error from error

    def _check_process(self) -> None:
        """Before the turn is waited for: in a fork nobody may be there to end another one's."""
        if os.getpid() != self._process:
            raise ConfigError(
                f"the training run in {self._file.path} was opened in process {self._process}; open it after the fork"
            )

    def _check(self) -> None:
        if self._closed:
            raise RunUnavailable(f"{self._file.path}: the training run is closed")
        self._file.check_there()

    def _now(self) -> HostTime:
        return HostTime(*self._clock.read(), self._clock.boot_id)


def is_there(file: Path) -> bool:
    """Whether there is a file of a run.

    Raises:
        ConfigError: this user may not look, or it can be none.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(
            f"cannot read {printable(str(file))}: {error.strerror}; give the directory of a run that this "
            "user may read and write"
        ) from error
    return True


def _roll_back(connection: sqlite3.Connection) -> None:
    """End the transaction, which has changed nothing or is to change nothing."""
    if connection.in_transaction:  # SQLite has rolled back already after some errors
        with contextlib.suppress(sqlite3.Error):  # then the next transaction fails, and tells
            connection.execute("ROLLBACK")


def _held(connection: sqlite3.Connection, hold: TaskHold) -> TaskRecord | None:
    """The task, where the fence counts."""
    task = task_rows.read_task(connection, hold.kind, hold.place)
    return task if fence_counts(task, hold.fence) else None


def _give_up(connection: sqlite3.Connection, task: TaskRecord) -> Next:
    task_rows.update_task(connection, task)
    task_rows.write_failed(connection, task)
    return failure_of(task)


def _retry(connection: sqlite3.Connection, now: HostTime) -> bool:
    if not task_rows.has_failed(connection):
        return False
    for task in task_rows.read_retriable(connection):
        task_rows.update_task(connection, retried(task, now))
    task_rows.write_failed(connection, None)
    return True
