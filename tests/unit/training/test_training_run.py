"""A training run in a folder, worked on by this process alone."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import penstock as ps
from penstock.artifact.publishing import publish_artifact
from penstock.training.rules.task_states import Phase
from penstock.training.run_status import RunState, read_status
from penstock.training.sqlite_tasks import SqliteTasks
from penstock.training.tasks_in_hand import task_in_hand
from rows import each
from tiny_artifacts import write_artifact


def same(payload):
    return payload


def test_a_run_keeps_what_its_functions_return(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    run.plan(train=[1, {"a": [2.5, None]}], evaluate=["x"])
    assert run.results("train") == [None, None]
    assert run.work(train=same, evaluate=lambda payload: (payload, True)) is None
    assert run.results("train") == [1, {"a": [2.5, None]}]
    assert run.results("evaluate") == [["x", True]]
    assert run.results("predict") == []


def test_to_make_a_run_and_to_ask_it_makes_nothing(tmp_path):
    run = ps.training.Run(tmp_path / "run", publish_to=tmp_path / "models")
    assert (run.id, run.latest_checkpoint()) == (None, None)
    for call in (run.work, lambda: run.results("train")):
        with pytest.raises(ps.ConfigError, match=r"there is no run in .*/run; call plan first"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_the_same_plan_again_changes_nothing_and_another_is_refused(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    run.plan(train=iter([1, 2]))
    first = run.id
    run.work(train=same)
    run.plan(train=[1, 2])
    assert (run.id, run.results("train")) == (first, [1, 2])
    with pytest.raises(ps.ConfigError, match="has a different plan already"):
        run.plan(train=[1, 3])


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "is not a directory; use another path, or move it"),
        ("file/models", "file is not a directory"),
        ("artifact/models", "would be inside the artifact"),
        ("other/versions/models", "would be among the versions of the model directory"),
    ],
)
def test_a_place_where_nothing_can_be_published_is_refused_before_anything_is_trained(tmp_path, place, reason):
    (tmp_path / "file").touch()
    write_artifact(tmp_path / "artifact")
    publish_artifact(tmp_path / "artifact", tmp_path / "other")
    run = ps.training.Run(tmp_path / "run", publish_to=tmp_path / place)
    with pytest.raises(ps.ConfigError, match=reason):
        run.plan(train=[1])
    assert not run.folder.exists()


def test_a_place_where_this_user_may_not_write_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    run = ps.training.Run(tmp_path / "run", publish_to=tmp_path / "new" / "models")
    with pytest.raises(ps.ConfigError, match=f"this user has no permission to write into {tmp_path}$"):
        run.plan(train=[1])


def test_a_plan_of_nothing_is_a_plan(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    run.plan()
    assert run.work() is None


@pytest.mark.parametrize("empty", [False, True])
def test_a_file_without_a_plan_is_a_run_without_a_plan(tmp_path, empty):
    if empty:
        (tmp_path / "run.db").touch()
    else:
        SqliteTasks(tmp_path / "run.db").close()
    run = ps.training.Run(tmp_path)
    with pytest.raises(ps.ConfigError, match="has no plan; call plan first"):
        run.work()
    assert run.id is None
    assert read_status(tmp_path).state is RunState.UNPLANNED
    run.plan(train=[1])
    assert run.id is not None


@pytest.mark.parametrize("way", [".", "../run", "../link"])
def test_a_function_that_works_for_its_own_run_is_refused(tmp_path, way):
    """It would wait for the task that it is the function of."""
    (tmp_path / "link").symlink_to("run")
    run = ps.training.Run(tmp_path / "run", max_attempts=1)
    run.plan(train=[1])
    same_run = ps.training.Run(tmp_path / "run" / way)
    with pytest.raises(ps.RunFailed, match="ConfigError: work was called by the function of task train 0 of the same"):
        run.work(train=lambda payload: same_run.work(train=same))


def test_a_function_may_work_for_another_run_and_may_go_on_later(tmp_path):
    run, other = ps.training.Run(tmp_path / "run"), ps.training.Run(tmp_path / "other")
    run.plan(train=[1])
    other.plan(train=[2])
    run.work(train=lambda payload: other.work(train=same))
    assert (run.results("train"), other.results("train"), run.work(train=same)) == ([None], [2], None)


def test_paths_are_those_of_the_folder_in_which_the_run_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ps.training.Run("run", publish_to="models")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    run.plan()
    assert (tmp_path / "run" / "run.db").exists()
    with closing(SqliteTasks.existing(tmp_path / "run" / "run.db")) as store:
        assert store.publishes_to() == str(tmp_path / "models")


def test_two_names_of_one_model_directory_are_one(tmp_path):
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    ps.training.Run(tmp_path / "run", publish_to=tmp_path / "alias" / "models").plan()
    (tmp_path / "real").mkdir()
    run = ps.training.Run(tmp_path / "run", publish_to=tmp_path / "real" / "models")
    run.plan()
    assert ps.training.Run(tmp_path / "run", publish_to=tmp_path / "alias" / "models").publish_to == run.publish_to


def test_a_loop_of_links_is_no_place_for_a_run(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ps.ConfigError, match="cannot create the directory of the run"):
        ps.training.Run(tmp_path / "a").plan()


def test_a_folder_of_a_run_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    run = ps.training.Run(tmp_path / "file")
    with pytest.raises(ps.ConfigError, match=r"cannot read the checkpoints in .*: .* is not a directory"):
        run.latest_checkpoint()
    with pytest.raises(ps.ConfigError, match=r"cannot save a checkpoint in .*/checkpoints: .* is not a directory"):
        run.checkpoint(lambda path: (path / "weights").write_text("1"))
    with pytest.raises(ps.ConfigError, match="call plan first"):
        run.work()


def test_a_run_file_that_is_a_folder_is_told(tmp_path):
    (tmp_path / "run.db").mkdir()
    run = ps.training.Run(tmp_path)
    for call in (run.plan, run.work, lambda: run.id, lambda: run.results("train")):
        with pytest.raises(ps.ConfigError, match=r"is not a training run: .*/run\.db is a directory; move it"):
            call()


@pytest.mark.parametrize("planned", [None, "other"])
def test_another_model_directory_is_refused(tmp_path, planned):
    ps.training.Run(tmp_path / "run", publish_to=planned and tmp_path / planned).plan()
    run = ps.training.Run(tmp_path / "run", publish_to=tmp_path / "models")
    with pytest.raises(ps.ConfigError, match=r"publish_to is .*/models, but the run in .* publishes (nothing|to .*)"):
        run.work()
    with pytest.raises(ps.ConfigError, match="has a different plan already"):
        run.plan()


def test_who_does_not_say_where_it_is_published_works_for_the_run_as_it_was_planned(tmp_path, monkeypatch):
    ps.training.Run(tmp_path / "run", publish_to=tmp_path / "models").plan()
    with closing(SqliteTasks(tmp_path / "run" / "run.db")) as store:
        claimed = store.claim([Phase.SAVE], lease=30.0, attempts=3)
        assert store.finish(claimed.hold, 5)
    assert ps.training.Run(tmp_path / "run").work() == 5


@each(
    ("options", "said"),
    [
        ({"lease": 0.4}, "lease must be a number of seconds from 0.5 to 86400, got 0.4"),
        ({"lease": float("nan")}, "lease must be"),
        ({"lease": float("inf")}, "lease must be"),
        ({"lease": True}, "lease must be"),
        ({"lease": "30"}, "lease must be"),
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, got 0"),
        ({"max_attempts": 1.5}, "max_attempts must be"),
        ({"save_timeout": 0}, "save_timeout must be more than 0 seconds; inf: no limit, got 0"),
        ({"save_timeout": True}, "save_timeout must be"),
        ({"publish_to": ""}, "publish_to must be the path of a directory, got ''"),
        ({"publish_to": b"models"}, "publish_to must be the path of a directory"),
        ({"folder": 3}, "folder must be the path of a directory, got 3"),
        ({"folder": "a\0b"}, "folder must be the path of a directory"),
        ({"publish_to": "m\udcff"}, r"publish_to must be the path of a directory in UTF-8, got 'm\\udcff'"),
        ({"folder": "\ud800"}, r"folder must be the path of a directory in UTF-8, got '\\ud800'"),
        ({"publsh_to": "models"}, "there is no 'publsh_to' here: did you mean `publish_to=...`"),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_run_is_made(options, said):
    with pytest.raises(ps.ConfigError, match=said):
        ps.training.Run(**{"folder": "run", **options})


def test_limits_are_admitted():
    run = ps.training.Run(Path("run"), lease=0.5, max_attempts=1, save_timeout=float("inf"))
    assert (run.options.lease, run.options.max_attempts) == (0.5, 1)


@pytest.mark.parametrize("payloads", ["abc", b"abc", {"a": 1}, 3, None])
def test_payloads_are_a_list(tmp_path, payloads):
    with pytest.raises(ps.ConfigError, match="train must be a list with a payload for each task"):
        ps.training.Run(tmp_path / "run").plan(train=payloads)


def test_a_payload_that_is_not_json_is_refused_and_nothing_is_planned(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    with pytest.raises(ps.ConfigError, match="the payload of task train 1 cannot be written as JSON"):
        run.plan(train=[1, {2}])
    assert run.id is None


def test_a_plan_where_no_folder_can_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.ConfigError, match=r"cannot create the directory of the run, .*: Not a directory"):
        ps.training.Run(tmp_path / "file" / "run").plan()


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "save"])
def test_work_takes_functions(tmp_path, name):
    run = ps.training.Run(tmp_path / "run")
    run.plan()
    with pytest.raises(ps.ConfigError, match=f"{name} must be a function, got 3"):
        run.work(**{name: 3})


def test_words_that_are_not_known_are_explained(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    with pytest.raises(ps.ConfigError, match=r"did you mean `evaluate=...`"):
        run.work(evalute=same)
    with pytest.raises(ps.ConfigError, match=r"there is no phase 'trian'; phases: train, evaluate, predict$"):
        run.results("trian")
    with pytest.raises(ps.ConfigError, match=r"there is no phase 'save'; phases: train, evaluate, predict$"):
        run.results("save")
    with pytest.raises(ps.ConfigError, match="write must be a function"):
        run.checkpoint("path")


def test_a_save_that_is_never_called_is_told(tmp_path, capsys):
    run = ps.training.Run(tmp_path / "run")
    run.plan()
    assert run.work(save=dict) is None
    assert "penstock: run run: save is never called, because the run has no publish_to\n" in capsys.readouterr().err


def test_a_checkpoint_may_come_before_the_plan(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    found = run.checkpoint(lambda path: (path / "weights").write_text("1"))
    assert found == run.latest_checkpoint() == tmp_path / "run" / "checkpoints" / "1"


def in_a_thread(call):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


@pytest.mark.parametrize(
    "how", ["the Run", "a thread", "another Run", "a thread with another Run", "a path with a link"]
)
def test_a_checkpoint_of_a_lost_task_is_not_kept_however_it_is_made(tmp_path, how):
    folder = tmp_path / "run"
    run = ps.training.Run(folder)
    run.plan(train=[1])
    (tmp_path / "link").symlink_to("run")
    other = ps.training.Run(tmp_path / "link" if how == "a path with a link" else folder)

    def checkpoint():
        maker = run if how in ("the Run", "a thread") else other
        maker.checkpoint(lambda path: (path / "weights").write_text("1"))

    def keep():
        in_a_thread(checkpoint) if "thread" in how else checkpoint()

    def train(payload):
        keep()
        with closing(SqliteTasks.existing(folder / "run.db")) as store, store._writer as connection:
            assert store.tasks()[0].pid == os.getpid()
            connection.execute("UPDATE tasks SET fence = fence + 1")  # as if another worker had claimed it
        with pytest.raises(ps.LeaseLost, match=r"^lease of task train 0 expired: another worker has the task"):
            keep()
        keep()

    with pytest.raises(ps.LeaseLost):
        run.work(train=train)
    assert run.latest_checkpoint().name == "1"
    keep()  # outside of a task nobody asks
    assert run.latest_checkpoint().name == "2"


def test_a_task_that_another_thread_lost_keeps_no_checkpoint_of_this_ones(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    run.plan(train=[1])

    def lost():
        raise ps.LeaseLost

    def train(payload):
        with task_in_hand(run.folder, "train 7", lost):
            in_hand.set()
            end.wait(30)

    in_hand, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=train, args=(0,))
    thread.start()
    assert in_hand.wait(30)
    try:
        run.work(train=lambda payload: run.checkpoint(lambda path: (path / "weights").write_text("1")).name)
    finally:
        end.set()
        thread.join()
    assert run.results("train") == ["1"]


def test_nothing_of_the_run_stays_open_between_calls(tmp_path):
    run = ps.training.Run(tmp_path / "run")
    run.plan(train=[1])
    run.work(train=same)
    opened = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    assert not [path for path in opened if "run.db" in path]
