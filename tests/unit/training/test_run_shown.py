"""What a worker shows on stderr: few lines, or bars on a terminal, of which one process has them."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import sys

import pytest

from penstock.training.rules.task_states import Phase
from penstock.training.shown_bar import ShownBar, run_shown
from penstock.training.shown_lines import LINE_SECONDS, ShownLines
from penstock.training.task_store import KindProgress
from terminals import Terminal

TRAIN = Phase.TRAIN
PROGRESS = [KindProgress(TRAIN, 8, 6), KindProgress(Phase.EVALUATE, 0, 0), KindProgress(Phase.SAVE, 1, 1)]


def lines():
    written, time = [], [100.0]
    return ShownLines("affairs", write=written.append, now=lambda: time[0]), written, time


def test_a_line_tells_what_is_done_and_how_far_its_kind_is():
    shown, written, _ = lines()
    shown.show(TRAIN, "train 3, attempt 2", PROGRESS)
    assert written == ["run affairs: train 3, attempt 2; 2 of 8 done"]


def test_few_lines_are_written_however_short_the_tasks_are():
    shown, written, time = lines()
    for number in range(1000):
        shown.show(TRAIN, f"train {number}", ())
        time[0] += LINE_SECONDS / 64
    assert written == [f"run affairs: train {number}" for number in range(0, 1000, 64)]


def test_the_same_is_not_written_again():
    shown, written, time = lines()
    for _ in range(5):
        shown.show(TRAIN, "others work", PROGRESS)
        time[0] += LINE_SECONDS
    assert len(written) == 1


def test_what_went_wrong_does_not_wait():
    shown, written, _ = lines()
    shown.show(TRAIN, "train 0", ())
    shown.note("train 0 failed: ValueError: bad")
    with shown.aside():
        pass
    assert written[1:] == ["run affairs: train 0 failed: ValueError: bad"]


def stderr_is_a_terminal(monkeypatch):
    """Called in a test's body: between a fixture and the body, pytest puts its own stream in place."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_on_a_terminal_there_is_a_bar_for_each_kind_and_notes_stay(monkeypatch):
    terminal = stderr_is_a_terminal(monkeypatch)
    with run_shown("affairs") as shown:
        shown.show(TRAIN, "train [3]", PROGRESS)
        drawn = terminal.getvalue()
        shown.note("train [3] failed")
    assert "2/8" in drawn
    assert "train [3]" in drawn
    assert "evaluate" not in drawn
    assert "penstock: run affairs: train [3] failed\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the bars are gone


def test_the_bars_are_away_while_others_use_the_terminal(monkeypatch):
    terminal = stderr_is_a_terminal(monkeypatch)
    with run_shown("affairs") as shown:
        shown.show(Phase.SAVE, "save", PROGRESS)
        with shown.aside():
            before = terminal.getvalue()
            assert before.endswith("\x1b[2K")
            sys.stderr.write("running the model\n")
            assert terminal.getvalue() == before + "running the model\n"
        shown.show(Phase.SAVE, "save", [KindProgress(Phase.SAVE, 1, 0)])
        assert "1/1" in terminal.getvalue()


def test_what_a_function_prints_is_kept_while_there_are_bars(monkeypatch):
    terminal = stderr_is_a_terminal(monkeypatch)
    with run_shown("affairs") as shown:
        shown.show(TRAIN, "train 0", PROGRESS)
        sys.stderr.write("loss 0.5\n")
    assert "loss 0.5" in terminal.getvalue()
    assert sys.stderr is terminal


@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_shown_without_a_stderr(monkeypatch, closed):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if closed else None)
    with run_shown("affairs") as shown:
        shown.show(TRAIN, "train 0", PROGRESS)
        shown.note("train 0 failed")


def test_one_process_of_a_terminal_has_the_bars(monkeypatch):
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    try:
        with open(theirs, "w", closefd=False) as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            monkeypatch.setenv("TERM", "xterm")
            other = os.open(name, os.O_RDWR | os.O_NOCTTY)
            fcntl.flock(other, fcntl.LOCK_EX)
            with run_shown("affairs") as shown:
                assert isinstance(shown, ShownLines)
            os.close(other)
            with run_shown("affairs") as shown:
                assert isinstance(shown, ShownBar)
            with run_shown("affairs") as shown:
                assert isinstance(shown, ShownBar)
    finally:
        os.close(ours)
        os.close(theirs)


class Closing(Terminal):
    """A terminal whose window may be closed."""

    gone: Exception | None = None

    def write(self, text):
        if self.gone is not None:
            raise self.gone
        return super().write(text)


GONE = [OSError(5, "Input/output error"), RuntimeError("the user's")]


@pytest.mark.parametrize("error", GONE, ids=repr)
def test_a_terminal_that_is_closed_ends_nothing(monkeypatch, error):
    terminal = Closing()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with run_shown("affairs") as shown:
        shown.show(TRAIN, "train 0", PROGRESS)
        terminal.gone = error
        shown.show(TRAIN, "train 1", PROGRESS)
        shown.note("train 0 failed")
        with shown.aside():
            pass
        print("epoch 1")  # noqa: T201  # as the functions do
        sys.stderr.write("epoch 2\n")
    assert sys.stderr is terminal


@pytest.mark.parametrize("error", GONE, ids=repr)
def test_a_terminal_that_was_closed_before_ends_nothing(monkeypatch, error):
    terminal = Closing()
    terminal.gone = error
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with run_shown("affairs") as shown:
        shown.show(TRAIN, "train 1", PROGRESS)


def test_what_a_function_prints_goes_to_the_file_that_stdout_is(monkeypatch):
    terminal, file = stderr_is_a_terminal(monkeypatch), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with run_shown("affairs") as shown:
        shown.show(TRAIN, "train 0", PROGRESS)
        print("loss 0.5")  # noqa: T201  # as the functions do
    assert file.getvalue() == "loss 0.5\n"
    assert "loss" not in terminal.getvalue()


def test_the_name_of_a_run_steers_no_terminal(monkeypatch):
    terminal = stderr_is_a_terminal(monkeypatch)
    with run_shown("\x1b[2Jaffairs") as shown:
        shown.note("done")
    assert r"penstock: run \x1b[2Jaffairs: done" in terminal.getvalue()
