"""The loop of a worker, and what becomes of one task: over tasks in memory, on a clock that tests move."""

from __future__ import annotations

import contextlib
import math

import pytest

from penstock.errors import LeaseLost, PenstockError, RunFailed, RunUnavailable
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.task_store import ClaimedTask, Failed, TaskHold
from penstock.training.telling import LOOK_SECONDS, Telling
from penstock.training.working import POLL_SECONDS
from run_bench import Bench


def states(bench):
    return [entry.state for entry in bench.store.tasks()]


def raising(error):
    """A function of a task that raises this."""

    def call(task):
        raise error

    return call


def test_tasks_are_done_in_the_order_of_their_kinds_and_results_are_kept():
    bench, seen = Bench({"train": [1, 2], "evaluate": ["a"], "predict": ["b"]}), []
    calls = dict.fromkeys(("train", "evaluate", "predict"), lambda task: seen.append(task.payload) or [task.payload])
    assert bench.work(**calls) is None
    assert seen == [1, 2, "a", "b"]
    assert bench.store.results(Phase.TRAIN) == [[1], [2]]
    assert bench.slept == []


def test_the_save_tasks_result_is_the_version_that_all_get():
    bench = Bench({}, publish_to="/models")
    assert bench.work(save=lambda task: 7) == 7
    assert Bench(kept=bench.kept).work() == 7


def test_a_lease_is_renewed_while_a_function_runs_and_no_longer():
    bench = Bench({"train": [1]}, publish_to="/models", save_timeout=5.0)
    bench.work(train=lambda task: bench.renewals[-1].runs, save=lambda task: 1)
    assert bench.store.results(Phase.TRAIN) == [True]
    assert [(each.hold.kind, each.limit, each.runs) for each in bench.renewals] == [
        (Phase.TRAIN, math.inf, False),
        (Phase.SAVE, 5.0, False),
    ]


def test_a_function_that_raises_has_another_attempt_and_then_fails_the_run():
    bench = Bench({"train": [1]}, max_attempts=2)

    def raising(task):
        raise ValueError(f"bad {task.attempt}")

    with pytest.raises(RunFailed, match="task train 0 used up its attempts") as failed:
        bench.work(train=raising)
    assert failed.value.task == "train 0"
    assert failed.value.traceback.startswith("Traceback")
    assert failed.value.traceback.endswith("ValueError: bad 2\n")
    assert bench.shown.notes == ["train 0 failed: ValueError: bad 1", "train 0 failed: ValueError: bad 2"]
    assert not any(renewal.runs for renewal in bench.renewals)


def test_a_failed_run_fails_for_who_comes_later_with_the_same_traceback():
    bench = Bench({"train": [1]}, max_attempts=1)
    with pytest.raises(RunFailed) as first:
        bench.work(train=lambda task: 1 // 0)
    with pytest.raises(RunFailed) as later:
        Bench(kept=bench.kept).work()
    assert later.value.traceback == first.value.traceback


def test_a_result_that_is_not_json_is_a_failed_attempt():
    bench = Bench({"train": [1]}, max_attempts=1)
    with pytest.raises(RunFailed) as failed:
        bench.work(train=lambda task: {1, 2})
    assert "the return value of the function for train cannot be written as JSON" in failed.value.traceback


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_who_is_interrupted_gives_the_task_back_and_the_attempt_does_not_count(kind):
    bench = Bench({"train": [1]}, max_attempts=1)
    with pytest.raises(kind):
        bench.work(train=raising(kind()))
    (entry,) = bench.store.tasks()
    assert (entry.state, entry.attempts) == (TaskState.QUEUED, 0)
    assert not bench.renewals[0].runs
    assert bench.shown.notes == ["interrupted: train 0 was released; another worker may take it"]


class InterruptedStore:
    """A store, and somebody who presses Ctrl-C in the first call of a method, before or after it has done its work."""

    def __init__(self, store, name, *, after):
        self._store = store
        self._name = name
        self._after = after

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name != self._name:
            return found

        def call(*args, **more):
            self._name = None
            if self._after:
                found(*args, **more)
            raise KeyboardInterrupt

        return call


def test_a_claim_that_was_interrupted_before_it_answered_is_given_back():
    bench = Bench({"train": [1]}, max_attempts=1)
    with pytest.raises(KeyboardInterrupt):
        bench.work(InterruptedStore(bench.store, "claim", after=True), train=lambda task: 1)
    assert [(entry.state, entry.attempts) for entry in bench.store.tasks()] == [(TaskState.QUEUED, 0)]


@pytest.mark.parametrize("after", [False, True])
def test_a_result_is_kept_although_somebody_interrupts_the_keeping(after):
    bench = Bench({"train": [1]})
    with pytest.raises(KeyboardInterrupt):
        bench.work(InterruptedStore(bench.store, "finish", after=after), train=lambda task: "kept")
    assert bench.store.results(Phase.TRAIN) == ["kept"]


@pytest.mark.parametrize("after", [False, True])
def test_a_failed_attempt_counts_once_although_somebody_interrupts_the_telling(after):
    bench = Bench({"train": [1]})
    with pytest.raises(KeyboardInterrupt):
        bench.work(InterruptedStore(bench.store, "fail", after=after), train=lambda task: 1 // 0)
    assert [(entry.state, entry.attempts) for entry in bench.store.tasks()] == [(TaskState.QUEUED, 1)]


def test_who_is_interrupted_while_the_renewing_starts_gives_the_task_back_and_renews_no_longer():
    bench = Bench({"train": [1]}, max_attempts=1)

    def renew(hold, limit):
        renewing = Bench.renew(bench, hold, limit)

        def start():
            renewing.runs = True
            raise KeyboardInterrupt

        renewing.start = start
        return renewing

    bench.renew = renew
    with pytest.raises(KeyboardInterrupt):
        bench.work(train=lambda task: 1)
    assert [(entry.state, entry.attempts) for entry in bench.store.tasks()] == [(TaskState.QUEUED, 0)]
    assert not bench.renewals[0].runs


def test_a_file_that_cannot_be_told_of_an_interrupt_hides_none():
    bench = Bench({"train": [1]})
    locked = Locked(bench.store, bench, ["release_all"], math.inf)
    with pytest.raises(KeyboardInterrupt):
        bench.work(locked, train=raising(KeyboardInterrupt()))


def test_a_panic_that_is_no_exception_is_a_failed_attempt():
    panic = type("Panic", (BaseException,), {})
    with pytest.raises(RunFailed, match="rust"):
        Bench({"train": [1]}, max_attempts=1).work(train=raising(panic("rust")))


def test_who_lost_a_lease_is_told_when_the_function_returns_and_changes_nothing():
    bench, calls = Bench({"train": [1]}, lease=10.0), []

    def slow(task):
        calls.append(task)
        bench.time += 11
        assert bench.claim().hold.fence > task.hold.fence
        return "late"

    with pytest.raises(LeaseLost, match="lease of task train 0 expired: another worker has the task"):
        bench.work(train=slow)
    assert len(calls) == 1
    assert bench.store.results(Phase.TRAIN) == [None]


@pytest.mark.parametrize("raises", [False, True])
def test_who_lost_a_lease_in_a_run_that_failed_by_it_is_told_that_the_run_failed(raises):
    bench = Bench({"train": [1]}, lease=10.0, max_attempts=1)

    def slow(task):
        bench.time += 11
        assert isinstance(bench.claim(), Failed)
        return 1 // 0 if raises else "late"

    with pytest.raises(RunFailed, match="task train 0 used up its attempts") as failed:
        bench.work(train=slow)
    assert "sent no renewal" in failed.value.traceback


def test_a_result_that_a_thread_of_the_function_goes_on_changing_is_kept_as_it_was_returned():
    bench, result = Bench({"train": [1]}), [1]
    finish = bench.store.finish
    bench.store.finish = lambda hold, kept: result.append({2}) or finish(hold, kept)
    bench.work(train=lambda task: result)
    assert bench.store.results(Phase.TRAIN) == [[1]]


def test_what_a_function_raises_after_its_lease_was_lost_is_a_lost_lease():
    bench = Bench({"train": [1]}, lease=10.0, max_attempts=2)

    def slow(task):
        bench.time += 11
        bench.claim()
        raise ValueError("late")

    with pytest.raises(LeaseLost) as lost:
        bench.work(train=slow)
    assert str(lost.value.__cause__) == "late"
    assert states(bench) == [TaskState.RUNNING]


def test_a_lease_that_ran_out_and_that_nobody_else_took_still_counts():
    bench = Bench({"train": [1]}, lease=10.0)

    def slow(task):
        bench.time += 1000
        return "late"

    bench.work(train=slow)
    assert bench.store.results(Phase.TRAIN) == ["late"]


def test_who_has_nothing_to_do_asks_five_times_a_second_and_does_what_becomes_free():
    bench = Bench({"train": [1]}, lease=10.0)
    bench.claim("train")
    bench.work(train=lambda task: task.attempt)
    assert set(bench.slept) == {POLL_SECONDS}
    assert sum(bench.slept) == pytest.approx(10.0, abs=2 * POLL_SECONDS)
    assert bench.store.results(Phase.TRAIN) == [2]


def test_a_kind_without_a_function_is_left_to_others_and_told_once():
    bench = Bench({"train": [1], "evaluate": [2, 3]})
    other = bench.other()

    def evaluate_elsewhere():
        if len(bench.slept) >= 3:
            other.finish(bench.claim("evaluate", store=other).hold, None)

    bench.while_asleep = evaluate_elsewhere
    bench.work(train=lambda task: None)
    assert bench.shown.notes == ["this process has no function for evaluate and leaves it to other workers"]


def test_a_kind_that_others_have_claimed_already_is_told_too():
    bench = Bench({"train": [1]})
    other = bench.other()
    hold = bench.claim("train", store=other).hold
    bench.while_asleep = lambda: other.finish(hold, None)
    bench.work()
    assert bench.shown.notes == ["this process has no function for train and leaves it to other workers"]


class Locked:
    """A store whose file is locked for the first so many calls of some methods."""

    def __init__(self, store, bench, names, times):
        self._store = store
        self._names = names
        self.times = times

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name not in self._names:
            return found

        def call(*args, **more):
            if self.times > 0:
                self.times -= 1
                raise RunUnavailable("locked")
            return found(*args, **more)

        return call


@pytest.mark.parametrize("name", ["claim", "finish"])
def test_a_file_that_is_locked_for_a_while_costs_no_work(name):
    bench = Bench({"train": [1]})
    assert bench.work(Locked(bench.store, bench, [name], 5), train=lambda task: "kept") is None
    assert bench.store.results(Phase.TRAIN) == ["kept"]
    assert bench.shown.notes == ["cannot use the file of the run, trying again for 60 s: locked"]


def test_a_failed_attempt_is_told_to_a_file_that_was_locked():
    bench = Bench({"train": [1]}, max_attempts=1)
    with pytest.raises(RunFailed, match="division"):
        bench.work(Locked(bench.store, bench, ["fail"], 5), train=lambda task: 1 // 0)


def test_a_file_that_stays_locked_ends_the_work_with_what_it_said():
    bench = Bench({"train": [1]})
    with pytest.raises(RunUnavailable, match="locked"):
        bench.work(Locked(bench.store, bench, ["finish"], math.inf), train=lambda task: None)
    assert sum(bench.slept) == pytest.approx(60.0, abs=1.0)
    assert not bench.renewals[0].runs


def test_others_may_use_the_terminal_while_the_model_is_saved():
    bench = Bench({"train": [1]}, publish_to="/models")
    bench.work(train=lambda task: bench.shown.asides, save=lambda task: 1)
    assert bench.store.results(Phase.TRAIN) == [0]
    assert bench.shown.asides == 1


def test_the_tasks_are_not_counted_for_each_of_thousands():
    bench, looks = Bench({"train": list(range(1000))}), []
    bench.telling._look = lambda: looks.append(bench.time) or bench.store.progress()

    def short(task):
        bench.time += 0.01

    bench.work(train=short)
    assert len(looks) == pytest.approx(10 / LOOK_SECONDS, abs=2)
    assert len(bench.shown.shown) == 1000


def test_the_tasks_are_counted_where_another_kind_begins():
    bench = Bench({"train": [1], "evaluate": [1]})
    bench.work(train=lambda task: None, evaluate=lambda task: None)
    assert bench.shown.shown == [
        (Phase.TRAIN, "train 0", [("train", 1, 1), ("evaluate", 1, 1)]),
        (Phase.EVALUATE, "evaluate 0", [("train", 1, 0), ("evaluate", 1, 1)]),
    ]


class Raising:
    """Shows nothing: each of its methods raises, and `aside` where it is entered or left."""

    def __init__(self, when):
        self.when = when
        self.asked = 0

    def show(self, *_):
        self.asked += 1
        raise OSError(5, "Input/output error")

    note = show

    @contextlib.contextmanager
    def aside(self):
        if self.when == "entered":
            raise RuntimeError("no terminal")
        try:
            yield
        finally:
            if self.when == "left":
                raise RuntimeError("no terminal")


@pytest.mark.parametrize("when", ["entered", "left", "never"])
def test_a_terminal_that_is_gone_changes_nothing_of_the_work(when):
    bench = Bench({"train": [1, 2]}, publish_to="/models", max_attempts=2)
    bench.telling = Telling(Raising(when), bench.store.progress, now=bench.now)

    def train(task):
        if task.attempt == 1:
            raise ValueError("bad")
        return task.payload

    assert bench.work(Locked(bench.store, bench, ["finish"], 3), train=train, save=lambda task: 7) == 7
    assert bench.store.results(Phase.TRAIN) == [1, 2]


@pytest.mark.parametrize("when", ["entered", "left", "never"])
def test_the_model_is_saved_once_however_the_terminal_is_left(when):
    telling = Telling(UnshownUntilAside(when), lambda: (), now=lambda: 0.0)
    save = ClaimedTask(TaskHold(Phase.SAVE, 0, 1), None, 1)
    done = []
    with telling.doing(save):
        done.append("saved")
    with pytest.raises(ZeroDivisionError), telling.doing(save):
        raise ZeroDivisionError
    assert done == ["saved"]


class UnshownUntilAside(Raising):
    """Raises only around an `aside`."""

    def show(self, *_):
        pass


def test_what_could_not_be_shown_once_is_not_shown_again():
    shown = Raising("never")
    telling = Telling(shown, lambda: (), now=lambda: 0.0)
    for _ in range(3):
        telling.note("train 0 failed")
    assert shown.asked == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("first\n\nlast"), "ValueError: first"),
        (ValueError(), "ValueError"),
        (ExceptionGroup("both", [ValueError(1), OSError(2)]), "ExceptionGroup: both (2 sub-exceptions)"),
        (ValueError("\x1b[2J\0\x9b\u202e"), r"ValueError: \x1b[2J\x00\x9b\u202e"),
    ],
    ids=["lines", "nothing", "group", "what steers a terminal"],
)
def test_a_failure_is_told_by_its_type_and_the_first_line_of_what_it_says(error, told):
    bench = Bench({"train": [1]}, max_attempts=1)
    with pytest.raises(RunFailed):
        bench.work(train=raising(error))
    assert bench.shown.notes == [f"train 0 failed: {told}"]


@pytest.mark.parametrize("error", [RunUnavailable("locked"), PenstockError("no statement")])
def test_tasks_that_cannot_be_counted_are_worked_on(error):
    bench = Bench({"train": [1]})

    def look():
        raise error

    bench.telling = Telling(bench.shown, look, now=bench.now)
    bench.work(train=lambda task: "done")
    assert bench.store.results(Phase.TRAIN) == ["done"]
    assert bench.shown.shown == [(Phase.TRAIN, "train 0", [])]
