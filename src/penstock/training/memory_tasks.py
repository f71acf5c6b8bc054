"""Keep the tasks of a training run in the memory of this process, for tests.

It is the plainest store that keeps the contract of `training.task_store`: dicts, and a look at every task for most
questions.  Other stores are compared with it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Collection
from typing import Any

from penstock.errors import ConfigError
from penstock.hosting.host_clock import HostClock
from penstock.training.rules.json_text import json_text
from penstock.training.rules.task_plans import plan_difference, plan_texts
from penstock.training.rules.task_rules import (
    KINDS,
    GiveUp,
    HostTime,
    Situation,
    Take,
    TaskRecord,
    Worker,
    after_failure,
    current_kind,
    decide_claim,
    entry_of,
    failure_of,
    fence_counts,
    finished,
    may_be_claimed,
    released,
    renewed,
    retried,
    task_name,
    was_finished,
)
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.task_store import (
    ClaimedTask,
    Failed,
    KindProgress,
    Next,
    RunPlan,
    TaskEntry,
    TaskHold,
)


class KeptTasks:
    """What the stores of one run share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.run_id: str | None = None
        self.publish_to: str | None = None
        self.texts: dict[Phase, list[str]] = {}
        """The JSON of the payloads."""
        self.tasks: dict[tuple[Phase, int], TaskRecord] = {}
        """In the order of claims."""
        self.results: dict[tuple[Phase, int], str] = {}
        """The JSON of what was returned."""
        self.failed: tuple[Phase, int] | None = None
        """The task that failed first."""


class MemoryTasks:
    """A store in memory.  To close it changes nothing: it may be used again.

    Args:
        clock: the clocks of the host.
        kept: what another store of the same run keeps; None: a run of its own.
    """

    def __init__(self, clock: HostClock, kept: KeptTasks | None = None) -> None:
        self.kept = KeptTasks() if kept is None else kept
        self._clock = clock
        self._claimed: set[TaskHold] = set()
        """Those that were claimed here; some may have ended."""

    def plan(self, plan: RunPlan) -> str:
        """See `TaskStore`."""
        texts, kept = plan_texts(plan), self.kept
        with kept.lock:
            if kept.run_id is not None:
                difference = plan_difference(kept.texts, kept.publish_to, texts, plan.publish_to)
                if difference is not None:
                    raise ConfigError(f"the run has a different plan already: {difference}")
                return kept.run_id
            kept.run_id, kept.publish_to, kept.texts = uuid.uuid4().hex, plan.publish_to, texts
            for kind in KINDS:
                kept.tasks.update({(kind, place): TaskRecord(kind, place) for place in range(len(texts[kind]))})
            return kept.run_id

    def run_id(self) -> str | None:
        """See `TaskStore`."""
        return self.kept.run_id

    def publishes_to(self) -> str | None:
        """See `TaskStore`."""
        return self.kept.publish_to

    def claim(self, kinds: Collection[Phase], *, lease: float, attempts: int) -> Next:
        """See `TaskStore`."""
        worker = Worker(os.getpid(), socket.gethostname())
        with self.kept.lock:
            if self.kept.run_id is None:
                raise ConfigError("the run has no plan; call plan first")
            now = self._now()
            decision = decide_claim(self._situation(now), kinds, attempts, lease, worker, now)
            if isinstance(decision, GiveUp):
                return self._fail(decision.task)
            if not isinstance(decision, Take):
                return decision
            task = decision.task
            self._keep(task)
            payload = json.loads(self.kept.texts[task.kind][task.place])
            hold = TaskHold(task.kind, task.place, task.fence)
            self._claimed.add(hold)
            return ClaimedTask(hold, payload, task.attempts + 1)

    def renew(self, hold: TaskHold, lease: float) -> bool:
        """See `TaskStore`."""
        with self.kept.lock:
            task = self._held(hold)
            if task is not None:
                self._keep(renewed(task, lease, self._now()))
            return task is not None

    def holds(self, hold: TaskHold) -> bool:
        """See `TaskStore`."""
        with self.kept.lock:
            return self._held(hold) is not None

    def finish(self, hold: TaskHold, result: Any) -> bool:
        """See `TaskStore`."""
        text = json_text(result, f"the result of task {task_name(hold.kind, hold.place)}")
        with self.kept.lock:
            task = self._held(hold)
            if task is not None:
                self._keep(finished(task))
                self.kept.results[hold.kind, hold.place] = text
            return was_finished(self.kept.tasks.get((hold.kind, hold.place)), hold.fence)

    def fail(self, hold: TaskHold, trouble: str, *, attempts: int) -> bool:
        """See `TaskStore`."""
        with self.kept.lock:
            task = self._held(hold)
            if task is not None:
                task = after_failure(task, trouble, attempts)
                if task.state is TaskState.FAILED:
                    self._fail(task)
                self._keep(task)
            return task is not None

    def release(self, hold: TaskHold) -> bool:
        """See `TaskStore`."""
        with self.kept.lock:
            task = self._held(hold)
            if task is not None:
                self._keep(released(task))
            return task is not None

    def release_all(self) -> list[TaskHold]:
        """See `TaskStore`."""
        given_back = [hold for hold in self._claimed if self.release(hold)]
        self._claimed.clear()
        return given_back

    def retry(self) -> bool:
        """See `TaskStore`."""
        with self.kept.lock:
            if self.kept.failed is None:
                return False
            now = self._now()
            for task in list(self.kept.tasks.values()):
                self._keep(retried(task, now))
            self.kept.failed = None
            return True

    def results(self, kind: Phase) -> list[Any]:
        """See `TaskStore`."""
        with self.kept.lock:
            texts = [self.kept.results.get(at) for at in self.kept.tasks if at[0] is kind]
            return [None if text is None else json.loads(text) for text in texts]

    def progress(self) -> list[KindProgress]:
        """See `TaskStore`."""
        with self.kept.lock:
            left = self._left()
            return [KindProgress(kind, len(self.kept.texts.get(kind, ())), left[kind]) for kind in KINDS]

    def tasks(self) -> list[TaskEntry]:
        """See `TaskStore`."""
        with self.kept.lock:
            now = self._now()
            return [entry_of(task, now) for task in self.kept.tasks.values()]

    def close(self) -> None:
        """See `TaskStore`."""

    def _now(self) -> HostTime:
        return HostTime(*self._clock.read(), self._clock.boot_id)

    def _left(self) -> Counter[Phase]:
        return Counter(task.kind for task in self.kept.tasks.values() if task.state is not TaskState.DONE)

    def _situation(self, now: HostTime) -> Situation:
        kept, left = self.kept, self._left()
        kind = current_kind(left)
        claimable = (task for task in kept.tasks.values() if task.kind is kind and may_be_claimed(task, now))
        version = kept.results.get((Phase.SAVE, 0))
        return Situation(
            failed=None if kept.failed is None else failure_of(kept.tasks[kept.failed]),
            left=left,
            first=next(claimable, None),
            version=None if version is None else json.loads(version),
        )

    def _held(self, hold: TaskHold) -> TaskRecord | None:
        """The task, where the fence counts."""
        task = self.kept.tasks.get((hold.kind, hold.place))
        return task if fence_counts(task, hold.fence) else None

    def _keep(self, task: TaskRecord) -> None:
        self.kept.tasks[task.kind, task.place] = task

    def _fail(self, task: TaskRecord) -> Failed:
        self._keep(task)
        if self.kept.failed is None:
            self.kept.failed = task.kind, task.place
        return failure_of(task)
