"""A server as process 1 of a container: signals end it at any time, and it leaves no zombies, and nothing running.

Each test is in a namespace of its own for processes.  Who is not root gets one with a namespace for users around it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")
WAYS = (("unshare", *NAMESPACE), ("unshare", "--user", "--map-root-user", *NAMESPACE))


def children(pid: int) -> list[int]:
    """The children of process `pid`, but for the reaper of its workers' groups."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in found if b"penstock-reaper" not in Path(f"/proc/{child}/cmdline").read_bytes()]


def states_of_children(pid: int) -> list[str]:
    """The letter of each child's state; "" for one that was reaped meanwhile."""
    return [_state(child) for child in children(pid)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture(scope="module")
def own_processes():
    """The command that runs another one as process 1; skips where nobody may be that."""
    for way in WAYS:
        with contextlib.suppress(FileNotFoundError):  # there is no unshare
            if not subprocess.run([*way, "true"], check=False, capture_output=True).returncode:
                return way
    pytest.skip("a namespace for processes cannot be made here")


@pytest.fixture
def contained(serve, own_processes):
    """Starts servers that are process 1."""

    def start(source, *options, ready=True):
        # The pid of the server is that of `unshare`; its only child is process 1 of the namespace.
        return serve(*options, source=source, ready=ready, wrapper=own_processes)

    return start


def process_1(server) -> int:
    return children(server.pid)[0]


def end_first(server, number=signal.SIGTERM) -> None:
    """Signal process 1, as a container's engine does."""
    server.signalled = True
    os.kill(process_1(server), number)


IMPORTS_FOR_LONG = """
import os, time
from pathlib import Path

Path("importing").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_while_the_module_is_imported_ends_process_1(contained, number):
    server = contained(IMPORTS_FOR_LONG, ready=False)
    server.until((server.folder / "importing").exists)
    end_first(server, number)
    assert server.wait() == 128 + number


PARENTS = """
import os, subprocess
import penstock as ps

class Parent(ps.Stage):
    def predict(self, x: float) -> float:
        if x == 9:
            for _ in range(4):
                subprocess.Popen(["sleep", "300"])
            os._exit(3)
        return x

service = ps.Service(ps.stage(Parent, retry=False), name="parents")
"""


def test_what_dead_workers_had_started_leaves_no_zombie_and_the_end_is_that_of_the_server(contained):
    server = contained(PARENTS)
    first = process_1(server)
    assert server.http.post("/predict", json=9).status_code == 500
    assert server.http.post("/predict", json=1).json() == 1
    server.until(lambda: states_of_children(first) == ["S"], "the orphans to be reaped")
    end_first(server)
    assert server.wait() == 0
    assert "SIGTERM: shutting down, waiting" in server.output


RELOADED = """
import penstock as ps

class M(ps.Stage):
    def predict(self, x: int) -> str:
        return "a"

service = ps.Service(M)
"""


def test_process_1_serves_anew_what_has_changed_and_leaves_no_zombie(contained):
    server = contained(RELOADED, "--reload")
    (server.folder / "model.py").write_text(RELOADED.replace('"a"', '"b"'))
    server.until(lambda: server.output.count("ready on") == 2)
    assert server.http.post("/predict", json=0).json() == "b"
    assert "Z" not in states_of_children(process_1(server))
    server.hang_up()
    end_first(server)
    assert server.wait() == 0


ORPHANS = """
import os, subprocess, time
from pathlib import Path
import penstock as ps

# The shell ends at once, and what it has started goes to process 1, out of reach of the worker and of its group.
LEAVE_ALONE = 'setsid sh -c "echo \\$\\$ >> orphans; exec {}" &'

class Starts(ps.Stage):
    def predict(self, x: str) -> int:
        if x == "wait":
            Path("running").touch()
            while not Path("open").exists():
                time.sleep(0.01)
        elif x:
            return subprocess.run(["sh", "-c", LEAVE_ALONE.format(x)]).returncode
        return os.getpid()

service = ps.Service(Starts, name="starts")
"""


def test_what_living_workers_have_left_alone_is_reaped_when_it_ends_and_their_own_statuses_reach_them(contained):
    server = contained(ORPHANS)
    worker = server.http.post("/predict", json="").json()
    for _ in range(10):
        # `subprocess.run` waits for the shell: process 1 must not have taken its status.
        assert server.http.post("/predict", json="true").json() == 0
    orphans = server.folder / "orphans"
    server.until(lambda: orphans.exists() and orphans.read_text().count("\n") == 10, "ten orphans")
    server.until(lambda: states_of_children(process_1(server)) == ["S"], "the orphans to be reaped")
    assert server.http.post("/predict", json="").json() == worker, "it is the same as before"
    end_first(server)
    assert server.wait() == 0


def test_sigterm_answers_what_is_in_hand_and_what_was_left_alone_goes_with_process_1(contained):
    server = contained(ORPHANS)
    assert server.http.post("/predict", json="sleep 300").json() == 0
    first = process_1(server)
    server.until(lambda: len(children(first)) == 2, "the orphan to come to process 1")
    wire = server.wire().post("/predict", "wait")
    server.until((server.folder / "running").exists)
    end_first(server)
    server.wait_for("SIGTERM: shutting down, waiting")
    server.open_gate()
    assert wire.answer().status == 200
    server.hang_up()
    assert server.wait() == 0  # which fails where anything is left that the server has started


LOADS_FOR_LONG = """
import time
from pathlib import Path
import penstock as ps

class Loads(ps.Stage):
    def setup(self):
        Path("loading").touch()
        time.sleep(60)

    def predict(self, x: int) -> int:
        return x

service = ps.Service(Loads)
"""


def test_sigterm_while_a_model_loads_ends_it_with_status_0(contained):
    server = contained(LOADS_FOR_LONG, ready=False)
    server.until((server.folder / "loading").exists)
    end_first(server)
    assert server.wait() == 0


def test_a_second_signal_ends_it_at_once(contained):
    server = contained(ORPHANS)
    wire = server.wire().post("/predict", "wait")
    server.until((server.folder / "running").exists)
    end_first(server)
    server.wait_for("SIGTERM: shutting down, waiting")
    end_first(server, signal.SIGQUIT)
    assert server.wait() == 128 + signal.SIGQUIT
    assert wire.ended()


def test_a_server_that_is_killed_ends_process_1_with_a_status_that_tells(contained):
    server = contained(ORPHANS)
    assert server.http.post("/predict", json="sleep 300").json() == 0
    first = process_1(server)
    server.until(lambda: len(children(first)) == 2, "the orphan to come to process 1")
    server.signalled = True
    os.kill(children(first)[0], signal.SIGKILL)
    assert server.wait() == 128 + signal.SIGKILL


def test_process_1_has_a_child_before_any_command_is_imported():
    """The kernel drops what ends process 1 until then; and what process 1 has imported it keeps."""
    asked = (
        "import sys, penstock.cli.program as program; "
        "program.leave_first_process = lambda: sys.exit('penstock.cli.main' in sys.modules); program.main()"
    )
    assert subprocess.run([sys.executable, "-c", asked, "serve"], check=False).returncode == 0
