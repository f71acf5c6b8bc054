"""What save tells: progress on stderr, silence of frameworks, and where an artifact comes from."""

import logging
import os
import re
import subprocess
import sys
import warnings
from collections import OrderedDict

import pytest

from penstock.errors import ConfigError
from penstock.export.class_names import class_names
from penstock.export.model_kinds import exporter_for
from penstock.export.progress import progress_shown
from penstock.export.provenance import git_commit, library_versions
from penstock.export.quiet import quietly
from penstock.hosting.host_clock import time_now
from terminals import Terminal


def test_progress_is_lines_where_nobody_watches(capsys):
    with progress_shown() as progress:
        progress.step("running the model")
        progress.note("2 reference rows ship")
    written = capsys.readouterr()
    assert written.err == "penstock: running the model\npenstock: 2 reference rows ship\n"
    assert written.out == ""


def test_on_a_terminal_notes_stay_and_steps_do_not(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_shown() as progress:
        progress.step("asking [the] model")
        with quietly():
            progress.note("2 reference rows [ship]")
    shown = terminal.getvalue()
    assert "penstock: 2 reference rows [ship]\n" in shown
    assert "asking [the] model" in shown
    assert shown.endswith("\x1b[1A\x1b[2K")  # up one line, and that line erased: the step is gone


def test_a_terminal_that_is_closed_costs_no_model(monkeypatch):
    class Closed(Terminal):
        gone = False

        def write(self, text):
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    terminal = Closed()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_shown() as progress:
        terminal.gone = True
        progress.step("running the model")
        progress.note("2 reference rows ship")
    assert sys.stderr is terminal
    with progress_shown() as progress:
        progress.step("running the model")


def test_nothing_is_written_without_a_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress_shown() as progress:
        progress.step("running the model")


def test_quiet_drops_what_is_printed_warned_of_or_logged_and_nothing_after(capsys, caplog):
    log = logging.getLogger("framework")
    with quietly():
        sys.stdout.write("out")
        sys.stderr.write("err")
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        log.warning("noise")
        log.error("matters")
    log.warning("after")
    assert caplog.messages == ["matters", "after"]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(DeprecationWarning):
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)


def test_quiet_ends_with_an_error_too():
    with pytest.raises(ZeroDivisionError), quietly():
        raise ZeroDivisionError
    assert logging.root.manager.disable == logging.NOTSET


def test_the_versions_are_of_what_is_installed():
    found = library_versions(["numpy", "no-such-distribution"])
    assert set(found) == {"python", "penstock", "numpy"}
    assert found["python"] == "{}.{}.{}".format(*sys.version_info[:3])


def test_the_time_is_utc_to_the_second():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time_now())


def test_the_commit_is_told_and_whether_files_of_it_were_changed(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None

    def git(*words):
        who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        done = subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    assert git_commit() is None  # there is no commit yet
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert git_commit() == git("rev-parse", "HEAD")
    (tmp_path / "notes").touch()
    assert git_commit() == git("rev-parse", "HEAD")
    (tmp_path / "train.py").write_text("2")
    assert git_commit() == git("rev-parse", "HEAD") + "-dirty"


def test_there_is_no_commit_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_commit() is None


def test_the_classes_of_an_object_are_told_with_their_library():
    assert {"collections.OrderedDict", "builtins.dict"} <= class_names(OrderedDict())


def test_a_model_of_keras_2_is_refused_by_name():
    kind = type("Model", (), {"__module__": "tf_keras.src.engine.training"})
    with pytest.raises(ConfigError, match=r"tf_keras \(Keras 2\)"):
        exporter_for(kind(), None)


def test_a_class_is_no_model():
    with pytest.raises(ConfigError, match=r"builtins\.type: .*, an object and not its class"):
        exporter_for(dict, None)
