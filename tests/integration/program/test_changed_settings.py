"""A user's module that changes every setting of its process which may reach what is ours: all goes on as without it."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys

import httpx
import pytest
from served import CHANGED_SETTINGS, LAST_SETTING, PENSTOCK, Program

from penstock import jobs

APP = f"""
import penstock as ps
{CHANGED_SETTINGS}

class Double(ps.Stage):
    def predict(self, x: int) -> int:
        return 2 * x


class Next(ps.Stage):
    def predict(self, x: int) -> int:
        return x + 1


service = ps.Service(Double, name="double")
chain = ps.Service(Double, ps.remote("next", item=int, result=int), name="chain", remote_worker_socket="workers.sock")
{LAST_SETTING}

if __name__ == "__main__":
    with service.blocking() as s:
        print(s.predict(4))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def test_it_serves_attaches_and_stops(folder):
    with contextlib.ExitStack() as ended, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(folder / "notify.sock"))
        notified.settimeout(60)
        env = {"NOTIFY_SOCKET": str(folder / "notify.sock")}
        server = Program(folder, *PENSTOCK, "serve", "app:chain", "--uds", "http.sock", env=env)
        ended.callback(server.destroy)
        worker = Program(folder, *PENSTOCK, "worker", "run", "app:Next", "--connect", "workers.sock")
        ended.callback(worker.destroy)
        worker.wait_for("attached to")
        server.wait_for("ready on")
        while b"READY=1" not in notified.recv(4096):
            continue
        transport = httpx.HTTPTransport(uds=str(folder / "http.sock"))
        with httpx.Client(transport=transport, base_url="http://server", timeout=60, verify=False) as client:
            assert [client.post("/predict", json=n).text for n in range(20)] == [str(2 * n + 1) for n in range(20)]
        for program in (worker, server):
            program.signal(signal.SIGTERM)
            assert program.wait() == 0, program.output


def test_it_works_off_a_queue(folder):
    url = f"sqlite:///{folder}/q.db"
    with jobs.connect(url) as q:
        submitted = q.submit_many([{"input": n} for n in range(20)])
        program = Program(folder, *PENSTOCK, "consume", "app:service", "--until-empty", env={"PENSTOCK_QUEUE_URL": url})
        with contextlib.ExitStack() as ended:
            ended.callback(program.destroy)
            assert program.wait() == 0, program.output
            assert [q.result(job) for job in submitted] == [2 * n for n in range(20)]


def test_it_runs_in_a_program(folder):
    program = Program(folder, sys.executable, "-P", "app.py")
    try:
        assert (program.wait(), program.output) == (0, "8\n")
    finally:
        program.destroy()
