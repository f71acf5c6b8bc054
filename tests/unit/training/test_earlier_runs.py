"""A run whose folder an earlier Penstock has made: it goes on, and its file keeps what it had inside."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import penstock as ps
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.run_status import PhaseStatus, RunState, read_status
from penstock.training.training_run import open_run

EARLIER = Path(__file__).parents[2] / "data" / "earlier"
ROWS = "SELECT kind, place, state, fence, attempts FROM tasks ORDER BY kind, place"


def restored(name: str, folder: Path) -> Path:
    """The folder of a run, with the file of which `NAME.sql` is the text."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.executescript((EARLIER / f"{name}.sql").read_text(encoding="utf-8"))
    return folder


def rows(folder: Path) -> list[tuple[int, ...]]:
    """What stands in the file, as it stands there."""
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        return connection.execute(ROWS).fetchall()


@pytest.fixture
def begun(tmp_path):
    """A run with a task in each state but failed: two of its workers were killed."""
    folder = restored("run", tmp_path / "run")
    shutil.copytree(EARLIER / "checkpoints", folder / "checkpoints")
    return folder


@pytest.fixture
def failed(tmp_path):
    return restored("failed", tmp_path / "failed")


def test_its_status_has_the_words_of_today(begun):
    status = read_status(begun)
    assert (status.state, status.run) == (RunState.RUNNING, "2e8e965dfeed412b8380341264a2c3d1")
    assert status.phases == (
        PhaseStatus(Phase.TRAIN, queued=1, running=2, done=1, failed=0),
        PhaseStatus(Phase.EVALUATE, queued=1, running=0, done=0, failed=0),
    )
    assert [(worker.task, worker.attempt, worker.lease_left) for worker in status.workers] == [
        ("train 1", 2, 0.0),
        ("train 2", 1, 0.0),
    ]
    (error,) = status.errors
    assert (error.task, error.state, error.attempts) == ("train 1", TaskState.RUNNING, 1)
    assert error.error.endswith("ValueError: nan\n")


def test_it_goes_on_with_its_checkpoint_and_its_results(begun):
    run = ps.training.Run(begun, max_attempts=3)
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    assert (checkpoint / "weights.txt").read_text() == "1.5\n"
    run.plan(train=["first", "second", "third", "fourth"], evaluate=[{"of": 1}])
    seen = []
    assert run.work(train=lambda payload: seen.append(payload) or payload, evaluate=lambda payload: payload) is None
    assert seen == ["second", "third", "fourth"]
    assert run.results("train") == [{"loss": 0.5}, "second", "third", "fourth"]
    assert run.results("evaluate") == [{"of": 1}]
    assert read_status(begun).state is RunState.DONE
    assert [row[2] for row in rows(begun)] == [2] * 5  # done, as it was written before


def test_a_last_attempt_that_was_lost_fails_it(begun):
    with pytest.raises(ps.RunFailed, match="task train 1 used up its attempts"):
        ps.training.Run(begun, max_attempts=2).work(train=lambda payload: payload)
    assert rows(begun)[1] == (0, 1, 3, 2, 2)


def test_what_is_written_into_it_is_what_was_written_before(begun):
    before = rows(begun)
    with closing(open_run(begun)) as store:
        claimed = store.claim([Phase.TRAIN], lease=30.0, attempts=3)
        assert rows(begun)[1] == (0, 1, 1, 3, 2)
        assert store.release(claimed.hold)
    assert rows(begun) == [before[0], (0, 1, 0, 3, 2), *before[2:]]


def test_a_failed_one_is_retried(failed):
    status = read_status(failed)
    assert (status.state, status.errors[0].state) == (RunState.FAILED, TaskState.FAILED)
    with closing(open_run(failed)) as store:
        assert store.retry()
    assert [row[2] for row in rows(failed)] == [0, 0]
    run = ps.training.Run(failed)
    run.work(train=lambda payload: 2 * payload)
    assert run.results("train") == [2, 4]
