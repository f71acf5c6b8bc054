"""`penstock worker-check` runs the suite of workers over any command, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from waiting import until_now

from penstock.testing.workers import WORKER_CHECKS

PENSTOCK = [sys.executable, "-m", "penstock", "worker-check"]
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


def test_a_worker_with_a_fault_is_told_of_it_and_the_status_is_1(folder):
    words = ("--stage", "square", "--codec", "json", "--timeout", "5", "--", *FAULTY, "no-message", "{path}")
    done = checked(*words, folder=folder)
    assert done.returncode == 1
    assert "FAILED  failed-in-place" in done.stdout
    assert "        item 1 of 3 failed: expected a message that says why, got none\n" in done.stdout
    assert (list(folder.iterdir()), processes_in(folder)) == ([], [])


def test_a_check_that_does_not_apply_is_skipped_by_name(folder):
    done = checked("--stage", "square", "--", *FAULTY, "no-health", folder=folder)
    assert done.returncode == 0
    assert "\nskipped health" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"{len(WORKER_CHECKS) - 1} ok, 0 failed, 1 skipped")


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
        (["--stage", "square", "--timeout", "soon", "--", "true"], "cannot read 'soon' as seconds"),
        (["--stage", "square", "--", "/no/such/program"], "cannot start '/no/such/program': No such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_call_ends_with_2(words, said, folder):
    done = checked(*words, folder=folder)
    assert said in done.stderr
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
    done = checked("--stage", "square", "--", "true", folder=deep)
    assert done.returncode == 1
    assert "there can be no socket at " in done.stderr
    assert list(deep.iterdir()) == []
