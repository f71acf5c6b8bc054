"""What holds the memory of a device still holds it a while after its worker has gone: the next worker waits for it.

The memory is a lock on a file, of which there is one.  A worker that does not get it raises MemoryError, and a process
that the worker has started keeps it, once the worker has gone, for two seconds more than the next worker waits for it.
"""

from __future__ import annotations

import os
import signal

import pytest
from served import serving

SOURCE = """
import fcntl
import os
import subprocess
import time

import penstock as ps

STAYS = '''
trap '' TERM
read line
for _ in $(seq 400); do [ -e wanted ] && break; sleep 0.1; done
sleep 2
'''


class Large(ps.Stage):
    def setup(self) -> None:
        self.memory = os.open("memory", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self.memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            open("wanted", "w").close()
            raise MemoryError("60 % of the card") from None
        self.kept = subprocess.Popen(["/bin/sh", "-c", STAYS], stdin=subprocess.PIPE, pass_fds=[self.memory])

    def predict(self, x: int) -> int:
        if x < 0:
            time.sleep(1000)
        return x + 1 if x else 1 // x


service = ps.Service(ps.stage(Large, unhealthy_after=0))
hasty = ps.Service(ps.stage(Large, timeout=0.5), name="hasty")
"""
WAITED = "could not be set up: MemoryError: 60 % of the card: a process that ended recently may still hold memory"


def serve(folder, *flags, **more):
    return serving(folder, *flags, source=SOURCE, **more)


def comes_back(server, asked="/predict"):
    """The service answers right, and has waited for the memory."""
    server.until(lambda: server.http.post(asked, json=1).status_code == 200, "a right answer")
    assert server.http.post(asked, json=1).json() == 2
    assert WAITED in server.output
    assert "has failed" not in server.output


@pytest.mark.parametrize("how", ["kill -9", "timeout", "recycle"])
def test_a_new_worker_waits_for_the_memory_of_the_one_before(tmp_path, how):
    name = "hasty" if how == "timeout" else "service"
    with serve(tmp_path, services=(name,)) as server:
        if how == "kill -9":
            os.kill(server.workers()[0], signal.SIGKILL)
        elif how == "timeout":
            assert server.http.post("/predict", json=-1).status_code == 500
        else:
            for _ in range(5):
                assert server.http.post("/predict", json=0).status_code == 500
        server.until(lambda: WAITED in server.output, "the start without memory")
        comes_back(server)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_new_server_waits_for_the_memory_of_the_one_before(tmp_path, number):
    with serve(tmp_path) as before:
        before.signal(number)
        before.process.wait(30)
        with serve(tmp_path) as server:
            comes_back(server)


def test_a_reload_waits_for_the_memory_of_the_service_before(tmp_path):
    with serve(tmp_path, "--reload") as server:
        (tmp_path / "model.py").write_text(SOURCE.replace("x + 1", "1 + x"))
        server.until(lambda: WAITED in server.output, "the start without memory")
        comes_back(server)
