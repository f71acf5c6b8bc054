"""The comparison of two builds: turns and ratios, and that a build is what it is said to be."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from statistics import geometric_mean

import pytest

from against import in_turns
from builds import SOURCES, BuildFailed, build_commit
from comparison import Comparison, Round
from procfs import cpu_seconds, mapped_files
from report import Limit
from servers import LOGGED, SUBJECTS, Server, ServerFailed


def a_round(tree: list[float], commit: list[float], figure: str = "cpu", work: str = "echo-1") -> Round:
    return Round(work, 0, {figure: tree}, {figure: commit})


def compared(*rounds: Round) -> Comparison:
    return Comparison(datetime.now(UTC), "0" * 40, {}, {"rounds": 1}, list(rounds))


def test_both_builds_are_measured_equally_often_and_neither_is_always_first() -> None:
    assert list(in_turns(0, 4)) == [0, 1, 1, 0, 0, 1, 1, 0]
    assert list(in_turns(1, 2)) == [1, 0, 0, 1]


def test_a_work_with_limits_of_its_own_is_held_to_these() -> None:
    assert compared(a_round([1.24], [1.0], work="terms-256")).met()
    assert not compared(a_round([1.26], [1.0], work="terms-256")).met()


def test_pages_that_workers_share_are_held_to_a_limit_in_the_coordinator_alone() -> None:
    for work in ("large-32", "large-256"):
        assert compared(a_round([9.0], [1.0], "workers", work)).met()
        assert not compared(a_round([1.06], [1.0], "coordinator", work)).met()


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    assert a_round([1.1, 2.2, 4.4, 8.8], [1, 2, 4, 8]).ratio("cpu") == pytest.approx(1.1)


def test_the_outer_quarters_of_the_turns_do_not_count() -> None:
    assert a_round([0.1, 1.0, 1.0, 1.1, 1.1, 1.0, 1.1, 9.0], [1.0] * 8).ratio("cpu") == pytest.approx(
        geometric_mean([1.0, 1.0, 1.1, 1.1])
    )


def test_a_build_twice_as_fast_and_one_half_as_fast_even_out() -> None:
    assert a_round([2.0, 0.5], [1.0, 1.0]).ratio("cpu") == pytest.approx(1.0)


LIMITS = {
    "rate": (0.985, 0.975),
    "cpu": (1.015, 1.025),
    "coordinator": (1.045, 1.055),
    "workers": (1.045, 1.055),
    "penstock": (1.045, 1.055),
    "penstock.server.serve": (1.045, 1.055),
}


def test_each_figure_has_its_limit() -> None:
    for figure, (kept, missed) in LIMITS.items():
        assert compared(a_round([kept], [1.0], figure)).met(), figure
        assert not compared(a_round([missed], [1.0], figure)).met(), figure


def test_one_work_that_misses_a_limit_is_enough() -> None:
    assert not compared(a_round([1.0], [1.0]), a_round([2.0], [1.0], work="bytes")).met()


def test_a_limit_is_for_the_median_of_the_rounds() -> None:
    assert compared(*(a_round([ratio], [1.0]) for ratio in (0.9, 1.01, 3.0))).met()
    assert not compared(*(a_round([ratio], [1.0]) for ratio in (0.9, 1.03, 1.04))).met()


def test_a_figure_without_a_promise_is_judged_by_no_word() -> None:
    assert Limit(None).judge([0.1]) == ("", "")
    assert Limit(0.5).judge([0.4, 0.5, 0.6]) == ("at least 0.5", "met")
    assert Limit(3.0, at_least=False).judge([3.1]) == ("at most 3", "MISSED")


def test_the_cpu_of_a_process_tree_is_counted_finer_than_the_kernels_ticks() -> None:
    before = cpu_seconds(os.getpid())
    sum(range(50_000))
    assert 0 < cpu_seconds(os.getpid()) - before < 1


def test_a_process_that_is_gone_has_mapped_nothing() -> None:
    assert any("libc" in path.name for path in mapped_files(os.getpid()))
    assert mapped_files(2**22 + 1) == set()  # no process has a number so high


@pytest.mark.night
def test_a_server_that_runs_no_compiled_penstock_is_found_out() -> None:
    server = Server(SUBJECTS["penstock-plain"])
    try:
        server.wait_ready()
        with pytest.raises(ServerFailed, match="runs no compiled module"):
            server.check_build()
    finally:
        server.stop()


@pytest.mark.night
def test_a_server_whose_log_lacks_a_line_is_found_out() -> None:
    server = Server(replace(LOGGED, build=SOURCES))
    try:
        server.wait_ready()
        server.check_log(1)
        with pytest.raises(ServerFailed, match="the log has 1 lines on 2 requests"):
            server.check_log(2, timeout=0.0)
    finally:
        server.stop()


def test_a_commit_that_is_not_there_is_no_build() -> None:
    with pytest.raises(BuildFailed, match="rev-parse"):
        build_commit("no-such-commit")
