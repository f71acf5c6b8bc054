"""Savers of a training run that are killed, or stopped for longer than their lease, at each step: one model comes.

One of three workers is armed.  The others wait for its save task, as they would on any day, and take it over.
"""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("skl2onnx")

from forked_workers import nursery
from shared_run import LEASE, NEW, SharedRun, shared_run

POINTS = (
    "save_claimed", "stage_begun", "half_written", "synced", "verified", "version_renamed", "current_replaced",
    "before_save_known",
)  # fmt: skip
BY_DAY = ("half_written", "version_renamed")
"""Before the version has a number, and after it."""
EACH_POINT = [pytest.param(point, marks=() if point in BY_DAY else pytest.mark.night) for point in POINTS]
NUMBERED = ("version_renamed", "current_replaced", "before_save_known")
"""Points at which what the armed one has saved is a version, in `CURRENT` or not yet."""


@pytest.fixture(scope="module", autouse=True)
def workers_start_at_once():
    with nursery():
        yield


@pytest.fixture
def shared(tmp_path):
    with shared_run(tmp_path) as shared:
        yield shared


def others_of(shared: SharedRun) -> list:
    return [shared.start(name, gated=True) for name in ("second", "third")]


def check_versions(workers: list) -> None:
    assert [worker.end() for worker in workers] == [{"version": NEW}] * len(workers)


@pytest.mark.parametrize("point", EACH_POINT)
def test_a_saver_that_is_killed_is_replaced_and_one_version_comes(shared, point):
    armed, others = shared.start("first", faults=f"{point}=kill"), others_of(shared)
    armed.until(lambda: shared.saving or armed.ended, "to save")
    shared.open_gate()
    armed.until_killed()
    check_versions(others)
    told = shared.models.check_one_more()
    assert (told["metadata"]["saver"] == "first") == (point in NUMBERED)
    assert shared.again() == NEW


@pytest.mark.parametrize("point", EACH_POINT)
def test_a_saver_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on(shared, point):
    armed, others = shared.start("first", faults=f"{point}=stop"), others_of(shared)
    armed.until(lambda: shared.saving or armed.stopped, "to save")
    shared.open_gate()
    armed.until_stopped()
    was_locked = shared.file_is_locked
    if was_locked:
        # Its thread that renews was stopped in the middle of a write, so nobody else can claim.  One step on it may be
        # the holder as before, or not any more.
        armed.signal(signal.SIGCONT)
        check_versions(others)
        end = armed.end()
    elif point == "version_renamed":
        # It has the lock and its version has a number, so nobody else can publish.  To let it finish is right: its
        # fence was looked at under that lock, and who comes after it finds the version of this run.
        other = others[0]
        other.until(lambda: any((stage / "model" / "DIGEST").exists() for stage in shared.stages), "another stage")
        armed.signal(signal.SIGCONT)
        check_versions(others)
        end = armed.end()
    else:
        check_versions(others)
        before = shared.content()
        armed.signal(signal.SIGCONT)
        end = armed.end()
        assert shared.content() == before
    assert end == {"version": NEW} or end["error"] == "LeaseLost", end
    told = shared.models.check_one_more()
    if not was_locked:
        assert (told["metadata"]["saver"] == "first") == (point in NUMBERED)


def test_who_lost_its_lease_publishes_nothing_although_nobody_has_yet(shared):
    # A lease that is not renewed meanwhile: who is stopped in the middle of a write lets nobody claim.
    armed = shared.start("first", faults="verified=stop", run={"lease": 300.0})
    other = shared.start("second", gated=True, save="hung")
    armed.until_stopped()
    shared.claimed_in_another_boot()
    shared.open_gate()
    other.until(lambda: shared.savers == ["first", "second"], "to save")
    armed.signal(signal.SIGCONT)
    assert armed.end()["error"] == "LeaseLost"
    shared.models.check_unchanged(stages=1)
    shared.let_go()
    check_versions([other])
    assert shared.models.check_one_more()["metadata"]["saver"] == "second"


@pytest.mark.night  # a clock of a second decides who hangs
def test_a_save_that_hangs_is_replaced(shared):
    limits = {"save_timeout": 1.0}
    hung = shared.start("first", save="hung", run=limits)
    hung.until(lambda: shared.saving, "to save")
    other = shared.start("second", run=limits)
    check_versions([other])
    before = shared.content()
    shared.let_go()
    assert hung.end()["error"] == "LeaseLost"
    assert shared.content() == before
    assert shared.models.check_one_more()["metadata"]["saver"] == "second"


def test_a_save_that_raises_fails_the_run_in_every_process_also_in_those_that_come_later(shared):
    workers = [shared.start(name, save="raising", run={"max_attempts": 2}) for name in ("first", "second")]
    ends = [worker.end() for worker in workers]
    ends.append(shared.start("third").end())
    for end in ends:
        assert end["error"] == "RunFailed", end
        assert "ZeroDivisionError: the save function of" in end["trouble"]
        assert "in raising" in end["trouble"]
    assert len(shared.savers) == 2
    shared.models.check_unchanged()


def test_a_save_that_fails_its_proof_publishes_nothing(shared):
    end = shared.start("first", save="unlike", run={"max_attempts": 1}).end()
    assert end["error"] == "RunFailed"
    assert "ExportRefused" in end["trouble"]
    shared.models.check_unchanged()


def test_a_full_disk_leaves_the_old_version_served_and_the_run_goes_on_when_there_is_room(shared):
    served = shared.served()
    end = shared.start("first", save="large", prepare="small_files", run={"max_attempts": 1}).end()
    assert end["error"] == "RunFailed"
    assert "File too large" in end["trouble"]
    shared.models.check_unchanged()
    assert shared.served() == served
    assert shared.retry()
    check_versions([shared.start("second", save="large")])
    shared.models.check_one_more()


def test_a_host_that_was_booted_again_frees_every_lease(shared):
    hour = {"lease": 3600.0}
    armed = shared.start("first", faults="stage_begun=kill", run=hour)
    armed.until_killed()
    shared.claimed_in_another_boot()
    check_versions([shared.start("second", run=hour)])
    shared.models.check_one_more()


def test_a_clock_set_back_by_an_hour_changes_nothing(shared):
    armed = shared.start("first", faults="verified=kill")
    armed.until_killed()
    check_versions([shared.start("second", prepare="clock_set_back")])
    shared.models.check_one_more()


def test_the_lease_of_a_saver_that_lives_is_not_lost_while_it_takes_longer(shared):
    slow = shared.start("first", save="hung")
    slow.until(lambda: shared.saving, "to save")
    other = shared.start("second")
    slow.until(lambda: shared.save_task().held > 3 * LEASE, "to have been renewed")
    assert not other.ended
    shared.let_go()
    check_versions([slow, other])
    assert shared.savers == ["first"]
    assert shared.models.check_one_more()["metadata"]["saver"] == "first"
