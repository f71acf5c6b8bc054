"""`penstock training`, as its user calls it, on runs that this process works on."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import closing

import pytest
from served import PENSTOCK, Program, run

import penstock as ps
from penstock.artifact.staging import new_stage
from penstock.training.rules.task_states import Phase
from penstock.training.sqlite_tasks import SqliteTasks
from tiny_artifacts import write_artifact

WIDE = {"COLUMNS": "300"}


@pytest.fixture
def training(tmp_path):
    """A run of two train tasks and one to evaluate, whose model is published."""
    found = ps.training.Run(tmp_path / "run", publish_to=tmp_path / "models", max_attempts=1)
    found.plan(train=["a", "b"], evaluate=["c"])
    return found


@pytest.fixture
def store(training):
    with closing(SqliteTasks.existing(training.folder / "run.db")) as found:
        yield found


def status(folder, *flags):
    code, output = run(folder, "training", "status", "run", *flags, env=WIDE)
    assert "penstock/cli" not in output, "a traceback of ours"
    return code, output


def told(folder):
    code, output = status(folder, "--json")
    return code, json.loads(output)


def claim(store, *kinds, lease=30.0):
    return store.claim(kinds, lease=lease, attempts=1).hold


@pytest.mark.smoke
def test_status_tells_the_kinds_the_holders_and_where_it_is_published(tmp_path, training, store):
    claim(store, Phase.TRAIN)
    code, output = status(tmp_path)
    assert code == 0
    for word in (
        f"run {training.id} in {tmp_path}/run: running", f"published in {tmp_path}/models: nothing yet", "train 0",
        str(os.getpid()), "s left",
    ):  # fmt: skip
        assert word in output, word


def test_status_gives_json(tmp_path, training, store):
    store.finish(claim(store, Phase.TRAIN), None)
    claim(store, Phase.TRAIN)
    code, found = told(tmp_path)
    (worker,) = found.pop("workers")
    assert code == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.pop("taken_at"))
    assert found == {
        "folder": str(tmp_path / "run"), "run": training.id, "state": "running",
        "publish_to": str(tmp_path / "models"), "version": None, "errors": [],
        "phases": [
            {"phase": "train", "queued": 0, "running": 1, "done": 1, "failed": 0},
            {"phase": "evaluate", "queued": 1, "running": 0, "done": 0, "failed": 0},
            {"phase": "save", "queued": 1, "running": 0, "done": 0, "failed": 0},
        ],
    }  # fmt: skip
    assert (worker["task"], worker["pid"], worker["attempt"]) == ("train 1", os.getpid(), 1)
    assert 0 <= worker["running_seconds"] < 30
    assert 0 < worker["lease_left"] <= 30


def test_a_run_that_is_done_tells_its_version(tmp_path, training, store):
    for kind, result in ((Phase.TRAIN, 1), (Phase.TRAIN, 2), (Phase.EVALUATE, 3), (Phase.SAVE, 7)):
        store.finish(claim(store, kind), result)
    code, found = told(tmp_path)
    assert (code, found["state"], found["version"], found["workers"]) == (0, "done", 7, [])
    assert f"published in {tmp_path}/models: version 7" in status(tmp_path)[1]


def test_a_version_that_the_run_itself_does_not_know_of_is_told(tmp_path, training, store):
    with new_stage(tmp_path / "models") as stage:
        write_artifact(stage.artifact)
        assert stage.publish(run=training.id).version == 1
    code, found = told(tmp_path)
    assert (code, found["state"], found["version"]) == (0, "running", 1)


def test_a_model_directory_that_cannot_be_read_does_not_keep_the_run_from_being_shown(tmp_path, training):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "CURRENT").write_text("nothing that is known")
    assert told(tmp_path)[1]["version"] is None


@pytest.mark.smoke
def test_a_failed_run_tells_its_traceback_and_goes_on_after_a_retry(tmp_path, training, store):
    store.finish(claim(store, Phase.TRAIN), 1)
    store.fail(claim(store, Phase.TRAIN), "Traceback:\n  \x1b[31mValueError: [bad]", attempts=1)
    code, output = status(tmp_path)
    assert code == 1
    assert "train 1 (failed) failed in 1 of its attempts, the last time by:\nTraceback:\n" in output
    assert "ValueError: [bad]" in output
    assert "\x1b[31m" not in output
    code, found = told(tmp_path)
    assert (code, found["state"], found["errors"][0]["attempts"]) == (1, "failed", 1)
    code, output = run(tmp_path, "training", "retry", "run")
    assert code == 0
    assert "continues where it stopped" in output
    code, found = told(tmp_path)
    assert (code, found["state"], found["errors"][0]["attempts"]) == (0, "running", 0)
    assert "train 1 (queued) failed before the last retry, by:\nTraceback:\n" in status(tmp_path)[1]
    assert training.results("train") == [1, None]


def test_a_lease_that_ran_out_is_shown_as_such(tmp_path, training, store):
    claim(store, Phase.TRAIN, lease=-1.0)
    assert "expired" in status(tmp_path)[1]
    assert told(tmp_path)[1]["workers"][0]["lease_left"] < 0


def test_retry_changes_nothing_where_no_task_failed(tmp_path, training):
    code, output = run(tmp_path, "training", "retry", "run")
    assert code == 1
    assert "has not failed, so nothing was changed" in output


@pytest.mark.parametrize("command", ["status", "retry"])
def test_a_folder_without_a_run_is_told_and_stays_as_it_is(tmp_path, command):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        code, output = run(tmp_path, "training", command, name)
        assert code == 1
        assert f"penstock: {tmp_path}/{name} is not a training run" in output
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_file_that_is_no_run_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.db").write_text("not SQLite, but some text that is long enough to be looked at" * 30)
    code, output = status(tmp_path)
    assert code == 1
    assert "is damaged or not an SQLite file" in output


def test_a_folder_without_a_plan_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    SqliteTasks(tmp_path / "run" / "run.db").close()
    code, found = told(tmp_path)
    assert (code, found["state"], found["run"], found["phases"]) == (0, "unplanned", None, [])
    assert "run without a plan" in status(tmp_path)[1]


@pytest.mark.parametrize("flags", [("--json",), ()], ids=["objects", "tables"])
def test_a_run_that_is_watched_is_shown_until_it_is_done(tmp_path, training, store, flags):
    watch = Program(tmp_path, *PENSTOCK, "training", "status", "run", "--watch", *flags, env=WIDE)
    try:
        watch.wait_for("running")
        for kind in (Phase.TRAIN, Phase.TRAIN, Phase.EVALUATE, Phase.SAVE):
            store.finish(claim(store, kind), 1)
        watch.wait_for('done["\n]')
        assert watch.wait() == 0
    finally:
        watch.destroy()


def test_a_run_that_fails_while_it_is_watched_ends_the_watch(tmp_path, training, store):
    watch = Program(tmp_path, *PENSTOCK, "training", "status", "run", "--watch", env=WIDE)
    try:
        watch.wait_for("running")
        store.fail(claim(store, Phase.TRAIN), "ValueError: bad", attempts=1)
        assert watch.wait() == 1
        assert "ValueError: bad" in watch.output
    finally:
        watch.destroy()


def test_a_standard_output_that_takes_nothing_is_told(tmp_path, training):
    program = Program(tmp_path, "sh", "-c", f"{sys.executable} -m penstock training status run > /dev/full")
    try:
        assert program.wait(40) == 1
        assert "penstock: cannot write to standard output: No space left on device" in program.output
    finally:
        program.destroy()
