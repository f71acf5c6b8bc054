"""What every store of a run's tasks must do, over the one in memory and the one in a file.

The clocks stand still until a test moves them.  Each test has one run, and as many stores of it as it opens.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter

import pytest

from penstock.errors import ConfigError
from penstock.hosting.host_clock import HostClock
from penstock.training.memory_tasks import KeptTasks, MemoryTasks
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.sqlite_tasks import SqliteTasks
from penstock.training.task_store import Blocked, ClaimedTask, Failed, KindProgress, Ready, RunPlan, TaskHold

TRAIN, EVALUATE, PREDICT, SAVE = Phase
WAITING, LEASED, DONE, FAILED = TaskState
ALL = tuple(Phase)
LEASE = 30.0
THREADS = 8
LIMIT = 30


class Host:
    """A host whose clocks a test moves, and the run on it."""

    def __init__(self) -> None:
        self.wall = 1.7e9
        self.boottime = 50.0
        self.boot_id = "the first boot"
        self.opened = []

    def open(self):
        """Another store of the run, as a process would open it that starts now."""
        clock = HostClock(lambda: self.wall, lambda: self.boottime, self.boot_id)
        self.opened.append(self.open_on(clock))
        return self.opened[-1]

    def pass_time(self, seconds):
        self.wall += seconds
        self.boottime += seconds

    def reboot(self):
        """Every process is gone, and the clock begins anew."""
        self.close()
        self.boot_id, self.boottime = f"after {self.boot_id}", 1.0

    def close(self):
        for store in self.opened:
            store.close()
        self.opened.clear()


class MemoryHost(Host):
    def __init__(self, folder) -> None:
        super().__init__()
        self.kept = KeptTasks()

    def open_on(self, clock):
        return MemoryTasks(clock, self.kept)


class SqliteHost(Host):
    def __init__(self, folder) -> None:
        super().__init__()
        self.path = folder / "run.db"

    def open_on(self, clock):
        return SqliteTasks(self.path, clock=clock)


@pytest.fixture(params=[MemoryHost, SqliteHost])
def host(request, tmp_path):
    host = request.param(tmp_path)
    yield host
    host.close()


@pytest.fixture
def store(host):
    return host.open()


def deep(many):
    value = []
    for _ in range(many - 1):
        value = [value]
    return value


def plan(train=(), evaluate=(), predict=(), publish_to=None):
    return RunPlan({TRAIN: train, EVALUATE: evaluate, PREDICT: predict}, publish_to)


def claim(store, kinds=ALL, attempts=3, lease=LEASE):
    return store.claim(kinds, lease=lease, attempts=attempts)


def take(store, *args, **options):
    """The hold on a task that is there to be claimed."""
    found = claim(store, *args, **options)
    assert isinstance(found, ClaimedTask), found
    return found.hold


def see(store, hold):
    return next(task for task in store.tasks() if (task.kind, task.place) == hold[:2])


def at_once(works):
    """What each of `works` returns, each done in a thread of its own."""
    barrier, found = threading.Barrier(len(works)), []

    def run(work):
        barrier.wait(LIMIT)
        try:
            found.append(work())
        except BaseException as error:  # told below
            found.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(found) == len(works), "a call does not return"
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_before_a_plan_nothing_is_there(store):
    assert store.run_id() is None
    assert store.publishes_to() is None
    assert store.tasks() == []
    assert store.results(TRAIN) == []
    assert store.progress() == [KindProgress(kind, 0, 0) for kind in Phase]
    assert not store.retry()
    with pytest.raises(ConfigError, match="has no plan; call plan first"):
        claim(store)


def test_the_same_plan_again_changes_nothing(host, store):
    run_id = store.plan(plan(train=[{"b": 1, "a": 2}], publish_to="/m"))
    store.finish(take(store), 1)
    before = store.tasks()
    assert store.plan(plan(train=[{"a": 2, "b": 1}], publish_to="/m")) == run_id
    assert host.open().plan(plan(train=[{"a": 2, "b": 1}], publish_to="/m")) == run_id
    assert store.tasks() == before
    assert (store.run_id(), store.publishes_to()) == (run_id, "/m")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (plan(train=[1, 3], publish_to="/m"), "its task train 1 is 2, not 3"),
        (plan(train=[1], publish_to="/m"), "it has 2 train tasks, not 1"),
        (plan(train=[1, 2], predict=[1], publish_to="/m"), "it has 0 predict tasks, not 1"),
        (plan(train=[1, 2], publish_to="/n"), "it publishes to /m, not to /n"),
        (plan(train=[1, 2]), "it publishes to /m, not to no model directory"),
    ],
)
def test_another_plan_is_refused_and_changes_nothing(store, other, difference):
    run_id = store.plan(plan(train=[1, 2], publish_to="/m"))
    with pytest.raises(ConfigError, match=f"has a different plan already: {difference}"):
        store.plan(other)
    assert (store.run_id(), store.publishes_to()) == (run_id, "/m")
    assert [(task.kind, task.place) for task in store.tasks()] == [(TRAIN, 0), (TRAIN, 1), (SAVE, 0)]


@pytest.mark.parametrize("payload", [(1, 2), {1: "a"}, math.nan, {1, 2}, deep(101)])
def test_a_payload_that_json_would_change_is_refused_and_leaves_no_plan(store, payload):
    with pytest.raises(ConfigError, match="the payload of task evaluate 1"):
        store.plan(plan(evaluate=[0, payload]))
    assert store.run_id() is None


def test_payloads_come_out_as_they_went_in(store):
    payloads = [None, True, 0, -0.5, 1e300, "é\ud800\0", [[], {}], {"a": {"b": [1, None]}}, 10**30]
    store.plan(plan(train=payloads))
    assert [claim(store).payload for _ in payloads] == payloads


def test_of_many_that_plan_at_once_all_get_one_run(host):
    stores = [host.open() for _ in range(THREADS)]
    found = at_once([lambda store=store: store.plan(plan(train=[1], publish_to="/m")) for store in stores])
    assert len(set(found)) == 1
    assert len(stores[0].tasks()) == 2


def test_two_runs_have_two_ids(tmp_path):
    clock = HostClock(lambda: 0.0, lambda: 0.0, "boot")
    assert MemoryTasks(clock).plan(plan()) != MemoryTasks(clock).plan(plan())
    stores = [SqliteTasks(tmp_path / f"{n}.db", clock=clock) for n in range(2)]
    assert stores[0].plan(plan()) != stores[1].plan(plan())
    for store in stores:
        store.close()


# -- which task is claimed --------------------------------------------------------------------------------------------


def test_tasks_are_claimed_by_kind_and_place_and_a_kind_waits_for_the_one_before(store):
    store.plan(plan(train=["a", "b"], evaluate=["c"], predict=["d"], publish_to="/m"))
    one, two = claim(store), claim(store)
    assert one == ClaimedTask(TaskHold(TRAIN, 0, 1), "a", 1)
    assert two == ClaimedTask(TaskHold(TRAIN, 1, 1), "b", 1)
    assert claim(store) == Blocked(TRAIN, 2, claimable=False)
    assert store.finish(two.hold, None)
    assert claim(store) == Blocked(TRAIN, 1, claimable=False)
    assert store.finish(one.hold, None)
    three = claim(store)
    assert three == ClaimedTask(TaskHold(EVALUATE, 0, 1), "c", 1)
    assert claim(store) == Blocked(EVALUATE, 1, claimable=False)
    assert store.finish(three.hold, None)
    four = claim(store)
    assert four == ClaimedTask(TaskHold(PREDICT, 0, 1), "d", 1)
    assert store.finish(four.hold, None)
    save = claim(store)
    assert save == ClaimedTask(TaskHold(SAVE, 0, 1), None, 1)
    assert claim(store) == Blocked(SAVE, 1, claimable=False)
    assert store.finish(save.hold, 7)
    assert claim(store) == Ready(7)
    assert claim(store, kinds=()) == Ready(7)


def test_without_a_model_directory_there_is_no_save_task(store):
    store.plan(plan(train=["a"]))
    assert store.finish(take(store), None)
    assert claim(store) == Ready(None)
    assert [task.kind for task in store.tasks()] == [TRAIN]


def test_an_empty_plan_has_the_save_task_alone(store):
    store.plan(plan(publish_to="/m"))
    assert take(store) == TaskHold(SAVE, 0, 1)


def test_an_empty_plan_that_publishes_nothing_is_done(store):
    store.plan(plan())
    assert claim(store) == Ready(None)


def test_who_has_no_function_for_a_kind_hears_whether_others_could_claim(store):
    store.plan(plan(train=["a"], publish_to="/m"))
    assert claim(store, [EVALUATE, SAVE]) == Blocked(TRAIN, 1, claimable=True)
    take(store, [TRAIN])
    assert claim(store, [EVALUATE, SAVE]) == Blocked(TRAIN, 1, claimable=False)


def test_all_that_was_claimed_here_and_has_not_ended_goes_back_at_once_and_does_not_count(host, store):
    store.plan(plan(train=list(range(6))))
    other = host.open()
    others = take(other)
    done, failed, again, _, released = (take(store) for _ in range(5))
    store.finish(done, 1)
    store.fail(failed, "why", attempts=3)
    store.release(released)
    host.pass_time(LEASE)
    assert other.renew(others, LEASE)
    assert take(other) == failed._replace(fence=2)  # the first that can be claimed
    given_back = store.release_all()
    states = {task.place: (task.state, task.attempts) for task in other.tasks()}
    assert states.pop(others.place)[0] is LEASED
    assert states.pop(done.place) == (DONE, 0)
    assert states.pop(failed.place) == (LEASED, 1)
    assert set(states.values()) == {(WAITING, 0)}
    assert {hold.place for hold in given_back} == set(states) - {released.place}
    assert not store.holds(again)
    assert store.release_all() == []


def test_what_goes_back_is_claimed_in_its_place(store):
    store.plan(plan(train=list(range(4))))
    holds = [take(store) for _ in range(3)]
    store.release(holds[1])
    assert take(store) == TaskHold(TRAIN, 1, 2)
    assert take(store) == TaskHold(TRAIN, 3, 1)


def test_of_many_claims_at_once_one_gets_the_task(host):
    stores = [host.open() for _ in range(THREADS)]
    stores[0].plan(plan(train=["a"]))
    found = at_once([lambda store=store: claim(store) for store in stores])
    assert [each for each in found if isinstance(each, ClaimedTask)] == [ClaimedTask(TaskHold(TRAIN, 0, 1), "a", 1)]
    assert Counter(map(type, found))[Blocked] == THREADS - 1


def test_a_task_that_lost_its_lease_goes_to_one_of_many_and_is_counted_once(host):
    stores = [host.open() for _ in range(THREADS)]
    stores[0].plan(plan(train=["a"]))
    take(stores[0])
    host.pass_time(LEASE)
    found = at_once([lambda store=store: claim(store) for store in stores])
    assert [each for each in found if isinstance(each, ClaimedTask)] == [ClaimedTask(TaskHold(TRAIN, 0, 2), "a", 2)]


def test_each_of_many_tasks_is_done_once_by_many(host):
    stores = [host.open() for _ in range(THREADS)]
    stores[0].plan(plan(train=list(range(50)), evaluate=list(range(20)), publish_to="/m"))

    def work(store):
        done = []
        while not isinstance(found := claim(store), Ready):
            if isinstance(found, ClaimedTask):
                done.append((found.hold[:2], store.finish(found.hold, found.payload)))
        return done

    done = [each for one in at_once([lambda store=store: work(store) for store in stores]) for each in one]
    assert len(done) == 71
    assert {taken for _, taken in done} == {True}
    assert len({task for task, _ in done}) == 71
    assert stores[1].results(TRAIN) == list(range(50))


# -- leases and fences ------------------------------------------------------------------------------------------------


def stale_calls(store, hold):
    """Every call that is made with a hold, by name."""
    return {
        "renew": lambda: store.renew(hold, LEASE),
        "holds": lambda: store.holds(hold),
        "finish": lambda: store.finish(hold, "late"),
        "fail": lambda: store.fail(hold, "late", attempts=1),
        "release": lambda: store.release(hold),
    }


@pytest.mark.parametrize("name", ["renew", "holds", "finish", "fail", "release"])
@pytest.mark.parametrize(
    "cause", ["claimed again", "released", "failed once", "failed", "done", "no such fence", "no such task"]
)
def test_a_fence_that_no_longer_counts_changes_nothing(host, store, name, cause):
    store.plan(plan(train=["a"], publish_to="/m"))
    hold = take(store)
    match cause:
        case "claimed again":
            host.pass_time(LEASE)
            take(store)
        case "released":
            store.release(hold)
        case "failed once":
            store.fail(hold, "why", attempts=2)
        case "failed":
            store.fail(hold, "why", attempts=1)
        case "done":
            store.finish(hold, 1)
        case "no such fence":
            hold = hold._replace(fence=2)
        case "no such task":
            hold = TaskHold(EVALUATE, 0, 1)
    before = store.tasks(), store.results(TRAIN), store.progress()
    told_again = (name, cause) == ("finish", "done")  # where the first answer did not come
    assert stale_calls(store, hold)[name]() is told_again
    assert (store.tasks(), store.results(TRAIN), store.progress()) == before


def test_fences_only_grow(host, store):
    store.plan(plan(train=["a"]))
    fences = []
    for number in range(6):
        hold = take(store, attempts=9)
        fences.append(hold.fence)
        match number % 3:
            case 0:
                store.release(hold)
            case 1:
                store.fail(hold, "why", attempts=9)
            case 2:
                host.pass_time(LEASE)
    host.pass_time(LEASE)
    assert isinstance(claim(store, attempts=1), Failed)
    assert store.retry()
    fences.append(take(store).fence)
    host.reboot()
    fences.append(take(host.open()).fence)
    assert fences == list(range(1, 9))


def test_a_lease_hides_its_task_until_it_has_run_out(host, store):
    store.plan(plan(train=["a"]))
    take(store)
    host.pass_time(LEASE - 0.001)
    assert claim(store) == Blocked(TRAIN, 1, claimable=False)
    host.pass_time(0.002)
    assert claim(store, []) == Blocked(TRAIN, 1, claimable=True)
    assert claim(store) == ClaimedTask(TaskHold(TRAIN, 0, 2), "a", 2)


def test_a_renewed_lease_counts_from_its_renewal(host, store):
    store.plan(plan(train=["a"]))
    hold = take(store)
    for _ in range(3):
        host.pass_time(LEASE - 1)
        assert store.renew(hold, LEASE)
    host.pass_time(LEASE - 1)
    assert isinstance(claim(store), Blocked)
    assert store.renew(hold, 5.0)
    host.pass_time(5.0)
    assert isinstance(claim(store), ClaimedTask)


@pytest.mark.parametrize("end", ["finish", "fail", "release", "renew"])
def test_a_lease_that_ran_out_and_was_not_taken_still_counts(host, store, end):
    store.plan(plan(train=["a"]))
    hold = take(store)
    host.pass_time(10 * LEASE)
    assert store.holds(hold)
    match end:
        case "finish":
            assert store.finish(hold, "late")
            assert store.results(TRAIN) == ["late"]
        case "fail":
            assert store.fail(hold, "why", attempts=3)
            assert claim(store).attempt == 2  # one attempt failed, not two
        case "release":
            assert store.release(hold)
            assert claim(store).attempt == 1
        case "renew":
            assert store.renew(hold, LEASE)
            assert isinstance(claim(store), Blocked)


def test_another_boot_frees_every_lease_and_counts_a_lost_attempt(host, store):
    store.plan(plan(train=["a", "b"], publish_to="/m"))
    holds = [take(store, lease=1e9) for _ in range(2)]
    host.reboot()
    store = host.open()
    assert [(task.held, task.lease_left) for task in store.tasks()] == [(None, 0.0), (None, 0.0), (None, None)]
    found = [claim(store) for _ in range(2)]
    assert [(each.hold.place, each.hold.fence, each.attempt) for each in found] == [(0, 2, 2), (1, 2, 2)]
    assert not any(store.holds(hold) for hold in holds)
    assert "sent no renewal" in store.tasks()[0].trouble


def test_leases_of_this_boot_outlive_a_restart_of_the_process(host, store):
    store.plan(plan(train=["a"]))
    hold = take(store)
    store.close()
    store = host.open()
    assert isinstance(claim(store), Blocked)
    assert store.finish(hold, 1)


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_a_wall_clock_that_is_set_changes_nothing(host, store, seconds):
    store.plan(plan(train=["a"]))
    hold = take(store)
    host.wall += seconds
    assert isinstance(claim(store), Blocked)
    assert see(store, hold).held == 0.0
    host.pass_time(LEASE - 1)
    assert isinstance(claim(store), Blocked)
    assert store.renew(hold, LEASE)
    host.pass_time(LEASE)
    assert claim(store).hold.fence == 2


# -- attempts and failures --------------------------------------------------------------------------------------------


def test_the_last_attempt_that_raises_fails_the_run_and_its_trouble_is_told_to_all(host, store):
    store.plan(plan(train=["a", "b"], publish_to="/m"))
    for attempt in (1, 2, 3):
        found = claim(store)
        assert (found.hold.place, found.attempt) == (0, attempt)
        assert store.fail(found.hold, f"Traceback {attempt}", attempts=3)
        assert see(store, found.hold).trouble == f"Traceback {attempt}"
    for each in (store, host.open()):
        assert claim(each) == Failed("train 0", "Traceback 3")
        assert claim(each, []) == Failed("train 0", "Traceback 3")


def test_raised_and_lost_attempts_count_alike(host, store):
    store.plan(plan(train=["a"]))
    take(store)
    host.pass_time(LEASE)
    store.fail(take(store), "why", attempts=3)
    take(store)
    host.pass_time(LEASE)
    found = claim(store, [])  # who has no function finds it too
    assert isinstance(found, Failed)
    assert found.task == "train 0"
    assert f"process {os.getpid()} on " in found.trouble
    assert "sent no renewal; it was killed" in found.trouble


def test_the_first_failure_is_the_one_that_is_told(store):
    store.plan(plan(train=["a", "b"]))
    one, two = take(store), take(store)
    assert store.fail(two, "the first", attempts=1)
    assert store.fail(one, "the second", attempts=1)
    assert claim(store) == Failed("train 1", "the first")
    assert [(task.state, task.trouble) for task in store.tasks()] == [(FAILED, "the second"), (FAILED, "the first")]


def test_who_holds_a_task_of_a_failed_run_may_still_finish_it(store):
    store.plan(plan(train=["a", "b"]))
    one, two = take(store), take(store)
    store.fail(two, "why", attempts=1)
    assert store.renew(one, LEASE)
    assert store.finish(one, 5)
    assert store.results(TRAIN) == [5, None]
    assert isinstance(claim(store), Failed)


def test_a_failed_save_task_is_told_without_a_number(store):
    store.plan(plan(publish_to="/m"))
    store.fail(take(store), "why", attempts=1)
    assert claim(store) == Failed("save", "why")


def test_a_run_that_has_not_failed_cannot_be_retried(store):
    store.plan(plan(train=["a"]))
    store.fail(take(store), "why", attempts=3)
    before = store.tasks()
    assert not store.retry()
    assert store.tasks() == before


def test_a_retry_gives_everything_its_attempts_back(host, store):
    store.plan(plan(train=["done", "held", "lost", "failed once", "failed", "fresh"]))
    done, held, lost, once, failed = (take(store) for _ in range(5))
    store.finish(done, 1)
    store.fail(once, "once", attempts=2)
    store.fail(failed, "why", attempts=1)
    host.pass_time(LEASE)
    store.renew(held, LEASE)
    assert store.retry()
    assert not store.retry()
    assert [(task.state, task.attempts, task.trouble) for task in store.tasks()] == [
        (DONE, 0, ""),
        (LEASED, 0, ""),
        (WAITING, 0, ""),
        (WAITING, 0, "once"),
        (WAITING, 0, "why"),
        (WAITING, 0, ""),
    ]
    assert store.holds(held)
    assert not store.holds(lost)
    found = [claim(store, attempts=1) for _ in range(4)]
    assert [(each.hold.place, each.hold.fence, each.attempt) for each in found] == [
        (2, 2, 1),
        (3, 2, 1),
        (4, 2, 1),
        (5, 1, 1),
    ]


def test_after_a_restart_of_the_host_one_retry_is_enough(host, store):
    """With one attempt, each of the tasks that were held would fail the run again."""
    store.plan(plan(train=["a", "b", "c"]))
    for _ in range(3):
        take(store, attempts=1)
    host.reboot()
    store = host.open()
    assert isinstance(claim(store, attempts=1), Failed)
    assert store.retry()
    assert [claim(store, attempts=1).attempt for _ in range(3)] == [1, 1, 1]


# -- results and what is shown ----------------------------------------------------------------------------------------


def test_results_are_in_the_order_of_the_plan(host, store):
    store.plan(plan(train=[0, 1, 2], evaluate=[3]))
    holds = [take(store) for _ in range(3)]
    store.finish(holds[2], {"loss": 0.25})
    store.finish(holds[0], None)
    assert store.results(TRAIN) == [None, None, {"loss": 0.25}]
    store.finish(holds[1], [1, "two"])
    assert host.open().results(TRAIN) == [None, [1, "two"], {"loss": 0.25}]
    assert store.results(EVALUATE) == [None]
    assert store.results(SAVE) == []


def test_a_result_is_kept_as_json_has_it(store):
    store.plan(plan(train=[0]))
    store.finish(take(store), {"pair": (1, 2)})
    assert store.results(TRAIN) == [{"pair": [1, 2]}]


@pytest.mark.parametrize("result", [math.nan, object(), b"bytes", {1: "a"}, deep(101)])
def test_a_result_that_json_cannot_carry_is_refused_and_the_task_is_as_it_was(store, result):
    store.plan(plan(train=[0]))
    hold = take(store)
    with pytest.raises(ConfigError, match="the result of task train 0 "):
        store.finish(hold, result)
    assert store.holds(hold)


def test_what_is_nested_a_hundred_deep_is_kept(store):
    store.plan(plan(train=[deep(100)]))
    claimed = claim(store)
    assert store.finish(claimed.hold, claimed.payload)
    assert store.results(TRAIN) == [deep(100)]


def test_progress_counts_what_is_left(store):
    store.plan(plan(train=[0, 1, 2], predict=[1], publish_to="/m"))
    store.finish(take(store), None)
    take(store)
    assert store.progress() == [
        KindProgress(TRAIN, 3, 2),
        KindProgress(EVALUATE, 0, 0),
        KindProgress(PREDICT, 1, 1),
        KindProgress(SAVE, 1, 1),
    ]


def test_a_held_task_shows_its_holder_and_its_age(host, store):
    store.plan(plan(train=["a", "b"]))
    hold = take(store)
    host.pass_time(7.0)
    entry = see(store, hold)
    assert (entry.state, entry.pid, entry.host != "") == (LEASED, os.getpid(), True)
    assert (entry.claimed, entry.held, entry.lease_left) == (1.7e9, 7.0, LEASE - 7.0)
    host.pass_time(LEASE)
    assert see(store, hold).lease_left == -7.0
    other = store.tasks()[1]
    assert (other.state, other.pid, other.claimed, other.held, other.lease_left) == (WAITING, None, None, None, None)


def test_a_store_may_be_closed_twice(store):
    store.plan(plan())
    store.close()
    store.close()
