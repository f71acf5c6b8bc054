"""How `penstock training` shows a run, and how it ends where standard output takes nothing."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.cli.printing import CELL_WIDTH
from penstock.training.rules.task_states import Phase
from penstock.training.sqlite_tasks import SqliteTasks
from terminals import Terminal

STYLES = re.compile(r"\x1b\[[0-9;]*m")
KINDS = ["phase", "queued", "running", "done", "failed"]


@pytest.fixture
def failed(tmp_path):
    """The folder of a run whose first train task has failed, while the second one is held."""
    ps.training.Run(tmp_path / "run").plan(train=[1, 2], evaluate=[3])
    with closing(SqliteTasks.existing(tmp_path / "run" / "run.db")) as store:
        holds = [store.claim([Phase.TRAIN], lease=30.0, attempts=1).hold for _ in range(2)]
        store.fail(holds[0], "ValueError: \x1b[2Jbad", attempts=1)
    return tmp_path / "run"


def on_a_terminal(monkeypatch, width, *words):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    main(["training", *map(str, words)])
    return STYLES.sub("", terminal.getvalue())


@pytest.mark.parametrize("flags", [[], ["--json"], ["--watch"], ["--watch", "--json"]], ids=" ".join)
def test_a_stdout_that_is_closed_is_a_sentence(failed, monkeypatch, capsys, flags):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["training", "status", str(failed), *flags]) == 1
    assert capsys.readouterr().err == "penstock: cannot write to standard output: stdout is closed\n"


@pytest.mark.parametrize("closed", [True, False])
def test_a_retry_says_that_it_was_done_where_stdout_takes_nothing(failed, monkeypatch, capsys, closed):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", None if closed else full)
        assert main(["training", "retry", str(failed)]) == 1
    reason = "stdout is closed" if closed else "No space left on device"
    assert capsys.readouterr().err == (
        f"penstock: the run in {failed} continues where it stopped: start its workers again; "
        f"cannot write to standard output: {reason}\n"
    )
    monkeypatch.undo()
    assert main(["training", "status", str(failed)]) == 0


def test_a_run_that_was_moved_to_a_name_that_is_no_unicode_is_shown_as_any_other(failed, capsys):
    odd = os.fsdecode(os.fsencode(failed.parent) + b"/odd\xff")
    failed.rename(odd)
    assert main(["training", "status", odd, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["folder"].endswith("/odd\\xff")
    assert main(["training", "status", odd]) == 1
    assert r"/odd\xff: failed" in capsys.readouterr().out
    assert main(["training", "retry", odd]) == 0
    assert r"/odd\xff continues" in capsys.readouterr().out
    assert main(["training", "retry", odd]) == 1
    assert "has not failed" in capsys.readouterr().err


def test_a_folder_in_place_of_the_runs_file_is_a_sentence(tmp_path, capsys):
    (tmp_path / "run.db").mkdir()
    for command in ("status", "retry"):
        assert main(["training", command, str(tmp_path)]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"penstock: {tmp_path} is not a training run: {tmp_path}/run.db is a directory; move it")


@pytest.mark.parametrize("folder", ["x" * 5000, "file/run"])
def test_a_path_that_can_be_no_run_is_a_sentence(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for command in ("status", "retry"):
        assert main(["training", command, folder]) == 1
        said = capsys.readouterr().err
        assert ": File name too long" in said or "is not a training run: run.db is missing" in said


def test_a_task_that_was_done_after_all_is_no_failure(tmp_path, capsys):
    run = ps.training.Run(tmp_path / "run", max_attempts=2)
    run.plan(train=[1])
    assert main(["training", "status", str(run.folder)]) == 0
    assert "no worker has a task now\n" in capsys.readouterr().out
    with closing(SqliteTasks.existing(run.folder / "run.db")) as store:
        store.fail(store.claim([Phase.TRAIN], lease=30.0, attempts=2).hold, "ValueError: bad", attempts=2)
    run.work(train=lambda payload: payload)
    capsys.readouterr()
    assert main(["training", "status", str(run.folder)]) == 0
    said = capsys.readouterr().out
    assert "train 0 is done; before that 1 of its attempts failed, the last one by:\nValueError: bad\n" in said
    assert "nobody has" not in said


def test_who_watches_gets_each_change_with_its_time(failed, monkeypatch, capsys):
    with closing(SqliteTasks.existing(failed / "run.db")) as store:
        store.retry()

        def change(_):
            store.fail(store.claim([Phase.TRAIN], lease=30.0, attempts=1).hold, "ValueError: again", attempts=1)

        monkeypatch.setattr(time, "sleep", change)
        assert main(["training", "status", str(failed), "--watch"]) == 1
    said = capsys.readouterr().out
    times = [line for line in said.splitlines() if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line)]
    assert len(times) == 2
    assert re.search(rf"\n\n{times[1]}\nrun .*: failed\n", said)


def test_programs_get_lines_with_tabs_however_narrow_the_terminal_was(failed, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "5")
    assert main(["training", "status", str(failed)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t") for line in lines[2:5]] == [
        KINDS,
        ["train", "0", "1", "0", "1"],
        ["evaluate", "1", "0", "0", "0"],
    ]
    assert lines[6].startswith(f"train 1\t{os.getpid()}\t")
    assert lines[-1] == r"ValueError: \x1b[2Jbad"


def test_a_terminal_gets_tables(failed, monkeypatch):
    shown = on_a_terminal(monkeypatch, 200, "status", failed)
    assert re.search("┃ *".join(f"{name} *" for name in KINDS), shown)
    assert re.search(r"│ train +│ 0 +│ 1 +│ 0 +│ 1 +│", shown)
    assert r"ValueError: \x1b[2Jbad" in shown


@pytest.mark.parametrize("width", [1, 5, CELL_WIDTH * 5 - 1, CELL_WIDTH * 5, CELL_WIDTH * 6, 60])
def test_nothing_is_lost_on_a_narrow_terminal(failed, monkeypatch, width):
    shown = on_a_terminal(monkeypatch, width, "status", failed)
    columns = [""] * 5
    for line in shown.splitlines():  # the cells of a table are folded: each column is put together again
        cells = re.split("[┃│]", line)
        if len(cells) == 7:
            columns = [before + cell.strip() for before, cell in zip(columns, cells[1:-1], strict=True)]
    if width >= CELL_WIDTH * 5:
        assert columns == ["phasetrainevaluate", "queued01", "running10", "done00", "failed10"]
    else:
        assert [word for word in shown.split() if word in KINDS][1:6] == KINDS  # the first is the state
