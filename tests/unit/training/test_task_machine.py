"""The stores of a run's tasks against a plain model: whatever workers do and suffer, every answer is the model's.

Workers claim, renew, end their attempts with any fence they ever had, and lose their leases; clocks are set, the host
is restarted, and a failed run is retried.  Two stores of the same run take turns, as two processes would.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from night import examples
from penstock.errors import ConfigError
from penstock.hosting.host_clock import HostClock
from penstock.training.memory_tasks import KeptTasks, MemoryTasks
from penstock.training.rules.task_states import Phase
from penstock.training.sqlite_tasks import SqliteTasks
from penstock.training.task_store import Blocked, ClaimedTask, Failed, Ready, RunPlan, TaskHold

LOST = "lost"
"""The model's word for the sentence about a worker that sent no renewal."""


class PlainTask:
    """What the contract says of a task, in as few words as it takes."""

    def __init__(self, kind, place, payload) -> None:
        self.kind, self.place, self.payload = kind, place, payload
        self.name = "save" if kind == "save" else f"{kind} {place}"
        self.state, self.fence, self.attempts, self.trouble, self.result = "queued", 0, 0, "", None
        self.lease_left = self.held = self.claimed = None

    def free(self):
        return self.state == "queued" or (self.state == "running" and self.lease_left <= 0)

    def lets_go(self, state):
        self.state, self.lease_left, self.held = state, None, None


class PlainRun:
    """All tasks in the order in which they are claimed, and what a clock does to them."""

    def __init__(self, tasks, publishes) -> None:
        self.tasks = [PlainTask(kind, n, each) for kind, payloads in tasks.items() for n, each in enumerate(payloads)]
        self.tasks += [PlainTask("save", 0, None)] if publishes else []
        self.failed = None

    def claim(self, kinds, lease, attempts, wall):
        if self.failed:
            return self.failed
        left = [task for task in self.tasks if task.state != "done"]
        if not left:
            saved = [task.result for task in self.tasks if task.kind == "save"]
            return Ready(saved[0] if saved else None)
        left = [task for task in left if task.kind == left[0].kind]
        free = [task for task in left if task.free()]
        if free and free[0].state == "running" and free[0].attempts + 1 >= attempts:
            self.failing(free[0], LOST, attempts)
            return self.failed
        if not free or free[0].kind not in kinds:
            return Blocked(Phase(left[0].kind), len(left), claimable=bool(free))
        task = free[0]
        if task.state == "running":
            task.attempts, task.trouble = task.attempts + 1, LOST
        task.state, task.lease_left, task.held, task.claimed = "running", lease, 0.0, wall
        task.fence += 1
        hold = TaskHold(Phase(task.kind), task.place, task.fence)
        return ClaimedTask(hold, task.payload, task.attempts + 1)

    def holder_of(self, hold):
        for task in self.tasks:
            if (task.kind, task.place, task.fence) == hold and task.state == "running":
                return task
        return None

    def failing(self, task, trouble, attempts):
        task.attempts, task.trouble = task.attempts + 1, trouble
        task.lets_go("failed" if task.attempts >= attempts else "queued")
        if task.state == "failed":
            self.failed = self.failed or Failed(task.name, trouble)

    def retry(self):
        if not self.failed:
            return False
        self.failed = None
        for task in self.tasks:
            if task.state == "failed" or task.free():
                task.lets_go("queued")
            if task.state != "done":
                task.attempts = 0
        return True

    def pass_time(self, seconds):
        for task in self.tasks:
            if task.state == "running":
                task.lease_left -= seconds
                if task.held is not None:
                    task.held += seconds

    def reboot(self):
        for task in self.tasks:
            if task.state == "running":
                task.lease_left, task.held = 0.0, None


def plain(text):
    return LOST if "sent no renewal" in text else text


holds = st.tuples(st.sampled_from([True, True, False]), st.integers(0, 5))
"""Whether it is to be one that counts, where there is any; and which, from the newest on."""
stores = st.integers(0, 1)
results = st.sampled_from([None, 1, [1, "a"], {"b": 0.5}])
UNKNOWN = [TaskHold(Phase.TRAIN, 0, 77), TaskHold(Phase.PREDICT, 9, 1)]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wall, self.boottime, self.boots = 1000.0, 100.0, 0
        self.begin()
        self.holds = []
        self.stores = [self.open(), self.open()]

    def clock(self):
        return HostClock(lambda: self.wall, lambda: self.boottime, f"boot {self.boots}")

    def open_again(self):
        for number, store in enumerate(self.stores):
            store.close()
            self.stores[number] = self.open()

    @initialize(train=st.integers(0, 4), evaluate=st.integers(0, 3), predict=st.integers(0, 1), publishes=st.booleans())
    def plan(self, train, evaluate, predict, publishes):
        counts = {"train": train, "evaluate": evaluate, "predict": predict}
        tasks = {kind: [{"of": kind, "n": n} for n in range(count)] for kind, count in counts.items()}
        self.the_plan = RunPlan({Phase(kind): payloads for kind, payloads in tasks.items()}, "/m" * publishes or None)
        self.model = PlainRun(tasks, publishes)
        self.run_id = self.stores[0].plan(self.the_plan)

    @rule(store=stores)
    def plan_again(self, store):
        assert self.stores[store].plan(self.the_plan) == self.run_id
        more = {**self.the_plan.tasks, Phase.PREDICT: [1, 2]}
        for other in (RunPlan(more, self.the_plan.publish_to), RunPlan(self.the_plan.tasks, "/n")):
            with pytest.raises(ConfigError):
                self.stores[store].plan(other)

    @rule(
        store=stores,
        kinds=st.sampled_from([tuple(Phase)] * 4 + [("train",), ("evaluate", "save"), ()]),
        lease=st.sampled_from([10.0, 30.0]),
        attempts=st.sampled_from([1, 2, 3, 3, 3]),
        times=st.integers(1, 3),
    )
    def claim(self, store, kinds, lease, attempts, times):
        for _ in range(times):
            expected = self.model.claim(kinds, lease, attempts, self.wall)
            found = self.stores[store].claim([Phase(kind) for kind in kinds], lease=lease, attempts=attempts)
            if isinstance(found, ClaimedTask):
                self.holds.append(found.hold)
            if isinstance(found, Failed):
                found = found._replace(trouble=plain(found.trouble))
            assert found == expected
            assert type(found) is type(expected)

    @rule(store=stores, result=results)
    def claim_and_finish(self, store, result):
        """As a worker does with which nothing is wrong."""
        self.claim(store, tuple(Phase), 30.0, 3, times=1)
        self.finish(store, (False, 0), result)

    def hold(self, number):
        """One of the last holds, or one that nobody ever had."""
        counts, place = number
        counting = [hold for hold in self.holds if self.model.holder_of(hold)]
        known = counting if counts and counting else [*reversed(self.holds), *UNKNOWN]
        return known[place % len(known)]

    @precondition(lambda self: self.holds)
    @rule(store=stores, number=holds)
    def ask(self, store, number):
        hold = self.hold(number)
        assert self.stores[store].holds(hold) is (self.model.holder_of(hold) is not None)

    @precondition(lambda self: self.holds)
    @rule(store=stores, number=holds, lease=st.sampled_from([10.0, 30.0]))
    def renew(self, store, number, lease):
        hold = self.hold(number)
        task = self.model.holder_of(hold)
        assert self.stores[store].renew(hold, lease) is (task is not None)
        if task is not None:
            task.lease_left = lease

    @precondition(lambda self: self.holds)
    @rule(store=stores, number=holds, result=results)
    def finish(self, store, number, result):
        hold = self.hold(number)
        task = self.model.holder_of(hold)
        again = any((each.kind, each.place, each.fence) == hold and each.state == "done" for each in self.model.tasks)
        assert self.stores[store].finish(hold, result) is (task is not None or again)
        if task is not None:
            task.lets_go("done")
            task.result = result

    @precondition(lambda self: self.holds)
    @rule(store=stores, number=holds, trouble=st.sampled_from(["one", "two"]), attempts=st.sampled_from([1, 2, 3, 3]))
    def fail(self, store, number, trouble, attempts):
        hold = self.hold(number)
        task = self.model.holder_of(hold)
        assert self.stores[store].fail(hold, trouble, attempts=attempts) is (task is not None)
        if task is not None:
            self.model.failing(task, trouble, attempts)

    @precondition(lambda self: self.holds)
    @rule(store=stores, most=st.sampled_from([1, 9]), newest_first=st.booleans(), seconds=st.sampled_from([0.0, 30.0]))
    def fail_for_good(self, store, most, newest_first, seconds):
        """As where several workers have the same bad input; the first to fail is the one that is told."""
        self.pass_time(seconds, 0.0)
        counting = [hold for hold in self.holds if self.model.holder_of(hold)]
        for place, hold in enumerate((counting[::-1] if newest_first else counting)[:most]):
            assert self.stores[store].fail(hold, f"trouble {place}", attempts=1)
            self.model.failing(self.model.holder_of(hold), f"trouble {place}", 1)
        self.claim(store, tuple(Phase), 10.0, 3, times=1)

    @precondition(lambda self: self.holds)
    @rule(store=stores, number=holds)
    def release(self, store, number):
        hold = self.hold(number)
        task = self.model.holder_of(hold)
        assert self.stores[store].release(hold) is (task is not None)
        if task is not None:
            task.lets_go("queued")

    @precondition(lambda self: self.model.failed)
    @rule(store=stores, attempts=st.integers(1, 3))
    def retry(self, store, attempts):
        assert self.stores[store].retry() is self.model.retry()
        self.claim(store, tuple(Phase), 10.0, attempts, times=2)

    @rule(seconds=st.sampled_from([1.0, 9.0, 10.0, 30.0]), set_by=st.sampled_from([0.0, 0.0, -3600.0, 3600.0]))
    def pass_time(self, seconds, set_by):
        self.wall += seconds + set_by
        self.boottime += seconds
        self.model.pass_time(seconds)

    @rule(boottime=st.sampled_from([None, 1.0, 100.0, 10_000.0]))
    def restart(self, boottime):
        """Of the processes, or of the host, whose clock says `boottime` then."""
        if boottime is not None:
            self.boots, self.boottime = self.boots + 1, boottime
            self.model.reboot()
        self.open_again()
        if not self.model.failed:
            assert self.stores[0].retry() is False

    @invariant()
    def every_answer_is_that_of_the_model(self):
        store, tasks = self.stores[self.boots % 2], self.model.tasks
        assert store.run_id() == self.run_id
        assert store.publishes_to() == self.the_plan.publish_to
        for kind in Phase:
            assert store.results(kind) == [task.result for task in tasks if task.kind == kind]
        assert store.progress() == [
            (kind, sum(t.kind == kind for t in tasks), sum(t.kind == kind and t.state != "done" for t in tasks))
            for kind in Phase
        ]
        assert [
            (each.kind, each.place, each.state, each.attempts, plain(each.trouble), each.claimed)
            for each in store.tasks()
        ] == [(task.kind, task.place, task.state, task.attempts, task.trouble, task.claimed) for task in tasks]
        for entry, task in zip(store.tasks(), tasks, strict=True):
            self.compare_lease(entry, task)

    def compare_lease(self, entry, task):
        """What ran out before the host was restarted shows no more than that."""
        assert entry.held == task.held
        if task.lease_left is None or task.lease_left > 0:
            assert entry.lease_left == task.lease_left
        else:
            assert entry.lease_left <= 0

    def teardown(self):
        for store in self.stores:
            store.close()


class MemoryMachine(Machine):
    def begin(self):
        self.kept = KeptTasks()

    def open(self):
        return MemoryTasks(self.clock(), self.kept)


class SqliteMachine(Machine):
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())

    def open(self):
        return SqliteTasks(self.folder / "run.db", clock=self.clock())

    def teardown(self):
        super().teardown()
        shutil.rmtree(self.folder)


TestMemoryTasks = MemoryMachine.TestCase
TestMemoryTasks.settings = settings(max_examples=examples(20), stateful_step_count=40)
TestSqliteTasks = SqliteMachine.TestCase
TestSqliteTasks.settings = settings(max_examples=examples(5), stateful_step_count=40)
