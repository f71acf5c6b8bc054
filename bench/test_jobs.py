"""The bench of the job queue: its arithmetic, and that its floor ends each job once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from job_figures import Figure, JobsRun, Seen, idle_share, largest_share, rows, share_of_rest, summarise
from queue_floor import drained, on_sqlite
from report import Limit


def run(*values: float, figure: str = "ratio") -> JobsRun:
    seen = [Seen("sqlite", figure, number, value) for number, value in enumerate(values)]
    return JobsRun(datetime.now(UTC), {}, {"rounds": len(values)}, seen)


def test_a_worker_idles_between_its_calls() -> None:
    assert idle_share([(0.0, 4.0), (6.0, 10.0)]) == pytest.approx(2 / 8)


def test_the_first_and_the_last_second_do_not_count() -> None:
    assert idle_share([(0.0, 0.1), (1.0, 9.0), (9.9, 10.0)]) == pytest.approx(0.0)


def test_calls_may_come_in_any_order() -> None:
    assert idle_share([(6.0, 10.0), (0.0, 4.0)]) == idle_share([(0.0, 4.0), (6.0, 10.0)])


def test_what_took_less_than_the_two_edges_has_no_share() -> None:
    with pytest.raises(ValueError, match="less than 2 s"):
        idle_share([(0.0, 1.5)])


def test_the_busiest_holder_counts() -> None:
    assert largest_share(["a", "b", "b", "c"]) == 0.5


def test_jobs_get_a_part_of_what_http_leaves() -> None:
    assert share_of_rest(jobs=900.0, http=600.0, capacity=1600.0) == pytest.approx(0.9)


def test_the_median_of_the_rounds_is_held_against_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [("sqlite", [Figure("ratio", Limit(0.2))])]
    assert summarise(run(0.1, 0.25, 0.3), figures)
    assert not summarise(run(0.1, 0.15, 0.3), figures)
    assert "MISSED" in capsys.readouterr().out


def test_a_figure_that_was_not_measured_is_left_out() -> None:
    assert rows(run(0.3), "sqlite", [Figure("other")]) == []
    assert rows(run(0.3), "redis", [Figure("ratio")]) == []


def test_the_floor_ends_each_job_once(tmp_path) -> None:
    seen = on_sqlite(tmp_path / "q.db", 150, b"1")
    assert seen.jobs == 150
    assert seen.seconds > 0


def test_a_floor_that_loses_a_job_tells_no_figure() -> None:
    turns = [64, 0]
    with pytest.raises(SystemExit, match="of 65 jobs the floor has ended 64"):
        drained(lambda: turns.pop(0), 65)
