"""A server as process 1 of a container: signals end it at any time, and it leaves no zombies."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

OWN_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def states_of_children(pid: int) -> list[str]:
    return [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children(pid)]


@pytest.fixture
def contained(serve):
    """Starts servers that are process 1; skips where nobody may be."""
    if subprocess.run([*OWN_PROCESSES, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a namespace for processes cannot be made here")

    def start(source, *options, ready=True):
        # The pid of the server is that of `unshare`; its only child is process 1 of the namespace.
        return serve(*options, source=source, ready=ready, wrapper=OWN_PROCESSES)

    return start


def process_1(server) -> int:
    return children(server.pid)[0]


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
    server.signalled = True
    os.kill(process_1(server), number)
    assert server.wait(limit=10) == 128 + number


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
    server.signalled = True
    os.kill(first, signal.SIGTERM)
    assert server.wait() == 0
    assert "SIGTERM: draining" in server.output


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
    server.signalled = True
    os.kill(process_1(server), signal.SIGTERM)
    assert server.wait(limit=10) == 0
