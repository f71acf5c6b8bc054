"""`penstock worker test` runs the suite of workers over any command, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from spoken import spoken
from waiting import until_now

from penstock.testing import workers
from penstock.testing.workers import WORKER_CHECKS, CheckVerdict

PENSTOCK = [sys.executable, "-m", "penstock", "worker", "test"]
FAULTY = [sys.executable, str(Path(__file__).parents[1] / "conformance" / "faulty_worker.py")]


@pytest.fixture
def folder():
    """For temporary files; its path is short, as that of a socket must be."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def checked(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run([*PENSTOCK, *words], env=environ, capture_output=True, text=True, timeout=50, check=False)


def processes_in(folder: Path) -> list[int]:
    """The processes that have `folder` in their command line: workers are told a socket in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_good_worker_passes_every_check_and_leaves_nothing(folder):
    done = checked("--stage", "square", "--", *FAULTY, "none", folder=folder)
    *lines, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[:2] for line in lines] == [["ok", check.name] for check in WORKER_CHECKS]
    assert last.startswith(f"{len(WORKER_CHECKS)} ok, 0 failed, 0 skipped, in ")
    assert "\x1b" not in done.stdout
    assert (list(folder.iterdir()), processes_in(folder)) == ([], [])


def test_each_verdict_has_a_line_and_one_that_failed_makes_the_status_1(folder, monkeypatch):
    """Which verdicts there are for which worker is in tests/conformance/test_worker_suite.py."""
    first, second, third, *_ = WORKER_CHECKS
    verdicts = [CheckVerdict(first), CheckVerdict(second, skipped="it says no")]
    monkeypatch.setattr(workers, "run_worker_suite", lambda *_: iter(verdicts))
    status, said, error = spoken(folder, "worker", "test", "--stage", "square", "--", "true")
    assert (status, error) == (0, "")
    lines = said.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["ok", first.name], ["skipped", second.name]]
    assert lines[2] == "        it says no"
    assert lines[3].startswith("1 ok, 0 failed, 1 skipped, in ")
    verdicts.append(CheckVerdict(third, problem="expected this\nand got that"))
    status, said, error = spoken(folder, "worker", "test", "--stage", "square", "--", "true")
    assert (status, error) == (1, "")
    assert f"FAILED  {third.name} " in said
    assert "\n        expected this\n        and got that\n1 ok, 1 failed, 1 skipped, in " in said


def test_a_command_that_ends_at_once_fails_at_once_with_its_words(folder):
    done = checked("--stage", "square", "--", "sh", "-c", "echo no such model >&2; exit 3", folder=folder)
    assert done.returncode == 1
    assert "expected the worker to connect to the socket; it ended with status 3" in done.stdout
    assert "        no such model\n" in done.stdout
    assert f"0 ok, 1 failed, {len(WORKER_CHECKS) - 1} skipped" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "true"], "--stage"),
        (["--stage", "square"], "COMMAND"),
        (["--stage", "square", "--codec", "npy", "--", "true"], "npy"),
        (["--stage", "square", "--timeout", "0", "--", "true"], "--timeout must be more than 0 seconds"),
        (["--stage", "square", "--timeout", "soon", "--", "true"], "--timeout: expected seconds, got 'soon'"),
        (["--stage", "square", "--", "/no/such/program"], "cannot start '/no/such/program': No such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_call_ends_with_2(words, said, folder):
    found = spoken(folder, "worker", "test", *words, env={"TMPDIR": str(folder)})
    assert found.status == 2
    assert said in found.refusal
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_check_that_is_interrupted_leaves_nothing(number, status, folder):
    """Its worker has a child of its own, which is in its group."""
    environ = {**os.environ, "TMPDIR": str(folder)}
    words = ["--stage", "square", "--", "sh", "-c", "sleep 50 # $0 & sleep 50", "{path}"]
    running = subprocess.Popen([*PENSTOCK, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until_now(lambda: processes_in(folder))
        running.send_signal(number)
        assert running.wait(20) == status
    finally:
        running.kill()
        running.communicate()
    assert (list(folder.iterdir()), processes_in(folder)) == ([], [])


def test_a_folder_for_temporary_files_that_no_socket_fits_in_is_told(folder):
    deep = folder / ("deep" * 30)
    deep.mkdir()
    found = spoken(folder, "worker", "test", "--stage", "square", "--", "true", env={"TMPDIR": str(deep)})
    assert found.status == 1
    assert "there can be no socket at " in found.refusal
    assert list(deep.iterdir()) == []
