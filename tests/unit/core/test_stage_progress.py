"""For how long a stage has had work and given nothing back."""

from __future__ import annotations

import math

from penstock.core.stage_progress import StageProgress


def test_a_stage_without_work_has_no_age():
    progress = StageProgress(60.0)
    assert progress.age(1e6) == 0.0
    assert not progress.stalled(1e6)


def test_the_time_counts_from_the_moment_work_came():
    progress = StageProgress(60.0)
    progress.answered(10.0)
    progress.work_changed(False, 10.0)
    progress.work_changed(True, 50_000.0)  # after an idle night
    assert progress.age(50_059.0) == 59.0
    assert not progress.stalled(50_059.9)
    assert progress.stalled(50_060.0)


def test_an_answer_begins_it_anew():
    progress = StageProgress(60.0)
    progress.work_changed(True, 0.0)
    assert progress.stalled(70.0)
    progress.answered(70.0)
    assert (progress.age(70.0), progress.stalled(129.0), progress.stalled(130.0)) == (0.0, False, True)


def test_it_ends_with_the_work():
    progress = StageProgress(60.0)
    progress.work_changed(True, 0.0)
    progress.work_changed(False, 70.0)
    assert (progress.age(80.0), progress.stalled(80.0)) == (0.0, False)


def test_inf_is_never():
    progress = StageProgress(math.inf)
    progress.work_changed(True, 0.0)
    assert progress.age(1e9) == 1e9
    assert not progress.stalled(1e9)


def test_the_moment_it_stalls_at_is_the_one_that_a_timer_is_set_to():
    progress = StageProgress(2.0)
    progress.work_changed(at_work=True, now=3.02)
    assert progress.stalls_at == 3.02 + 2.0
    assert 3.02 + 2.0 - 3.02 < 2.0, "their difference is a little less"
    assert progress.stalled(3.02 + 2.0)
