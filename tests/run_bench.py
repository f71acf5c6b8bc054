"""A worker of a run in memory, on a clock that only tests move; its thread, terminal and sleep are fakes."""

from __future__ import annotations

import contextlib

from penstock.hosting.host_clock import HostClock
from penstock.training.memory_tasks import KeptTasks, MemoryTasks
from penstock.training.one_task import TaskWork
from penstock.training.patience import Patience
from penstock.training.rules.task_states import Phase
from penstock.training.run_options import RunOptions
from penstock.training.task_store import RunPlan
from penstock.training.telling import Telling
from penstock.training.working import work_until_done


class FakeShown:
    """Keeps what was shown."""

    def __init__(self):
        self.shown = []
        self.notes = []
        self.asides = 0

    def show(self, kind, words, progress):
        self.shown.append((kind, words, [tuple(each) for each in progress if each.total]))

    def note(self, words):
        self.notes.append(words)

    @contextlib.contextmanager
    def aside(self):
        self.asides += 1
        yield


class FakeRenewing:
    """Keeps whether it runs, and for how long it may."""

    def __init__(self, hold, limit):
        self.hold = hold
        self.limit = limit
        self.runs = False

    def start(self):
        self.runs = True

    def stop(self):
        self.runs = False


class Bench:
    """One worker.  `functions` are by kind, and get the claimed task."""

    def __init__(self, plan=None, publish_to=None, kept=None, **options):
        self.time = 1000.0
        self.slept = []
        self.kept = KeptTasks() if kept is None else kept
        self.store = MemoryTasks(HostClock(self.now, self.now, "boot"), self.kept)
        if plan is not None:
            self.store.plan(RunPlan({Phase(kind): tasks for kind, tasks in plan.items()}, publish_to))
        self.options = RunOptions(**options)
        self.shown = FakeShown()
        self.telling = Telling(self.shown, self.store.progress, now=self.now)
        self.renewals = []
        self.while_asleep = lambda: None

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds
        self.while_asleep()

    def renew(self, hold, limit):
        self.renewals.append(FakeRenewing(hold, limit))
        return self.renewals[-1]

    def other(self):
        """Another worker's store of the same run, on the same clock."""
        return MemoryTasks(HostClock(self.now, self.now, "boot"), self.kept)

    def claim(self, *kinds, store=None):
        kinds = [Phase(kind) for kind in kinds] or list(Phase)
        return (store or self.other()).claim(kinds, lease=self.options.lease, attempts=self.options.max_attempts)

    def work(self, store=None, **functions):
        store = store or self.store
        patience = Patience(60.0, self.telling.note, now=self.now, sleep=self.sleep)
        calls = {Phase(kind): function for kind, function in functions.items()}
        tasks = TaskWork(
            store, calls, self.options, telling=self.telling, patience=patience, renew=self.renew
        )  # fmt: skip
        return work_until_done(
            store, calls.keys(), self.options, tasks=tasks, telling=self.telling, patience=patience, sleep=self.sleep
        )
