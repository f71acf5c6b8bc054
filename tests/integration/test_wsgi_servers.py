"""The WSGI app with real workers, under the servers that people run it with."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path

import doubling
import pytest
from processes import runs_a_stage, with_variable
from waiting import until_now

STAGES = """
    import os

    import penstock as ps


    class Unfit(ps.Stage):
        def setup(self) -> None:
            if not os.path.exists("weights"):
                raise FileNotFoundError("no weights")

        def predict(self, x: int) -> int:
            return x


    def sick(x: int) -> int:
        if x < 0:
            raise ValueError("negative")
        return os.getpid()
"""
SERVED = """
    import flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    import penstock as ps
    from doubling import Double
    from stages import Unfit, sick

    app = ps.wsgi(ps.Service(Double, name="double"), ps.ServerOptions(max_body_bytes=1_000_000))
    inline = ps.wsgi(ps.Service(sick, name="sick", inline=True))

    unfit = ps.wsgi(ps.Service(Unfit, name="unfit"))

    outer = flask.Flask(__name__)
    outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {"/ml": app})


    @outer.get("/own")
    def own() -> str:
        return "mine"
"""
HOOKS = """
    def post_worker_init(worker):
        worker.wsgi.start()


    def worker_exit(server, worker):
        worker.wsgi.stop()
"""
IMPATIENT = """
    import penstock.server.wsgi

    penstock.server.wsgi.RETRY_SECONDS = 2.0
"""
TELLS_WHAT_IT_TOOK = """
    def pre_request(worker, req):
        name = dict(req.headers).get("X-REQUEST-ID", "")
        with open("taken", "a") as log:
            log.write(name + "\\n")
"""
SYNC = ("-k", "sync", "-w", "2")
GTHREAD = ("-k", "gthread", "--threads", "16")
MARK = "PENSTOCK_TEST"
BATCHES = 'penstock_stage_batches_total{service="double",stage="Double"}'
KINDS = pytest.mark.parametrize("kind", [SYNC, GTHREAD], ids=["sync", "gthread"])


class Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout=30):
        super().__init__("penstock", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Gunicorn:
    """A running gunicorn.  All processes that come of it have a mark in their environment."""

    def __init__(self, folder, *arguments, listens=True):
        self.folder = folder
        self.path = str(folder / "socket")
        self._mark = str(uuid.uuid4())
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "-b", f"unix:{self.path}", *arguments],
                cwd=folder,
                env={**os.environ, MARK: self._mark},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if listens:
            until_now(self._listens, "gunicorn to listen", context=self.log)

    def _listens(self):
        assert self.process.poll() is None, self.log()
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.path) == 0

    def log(self):
        return (self.folder / "log").read_text()

    def ask(self, method, path, body=None, **fields):
        with contextlib.closing(Connection(self.path)) as connection:
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in fields.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def predict(self, x, path="/predict", **fields):
        status, body = self.ask("POST", path, json.dumps(x), content_type="application/json", **fields)
        assert status == 200, (body, self.log())
        return json.loads(body)

    def health(self, path="/health"):
        (service,) = json.loads(self.ask("GET", path)[1])["services"].values()
        return service

    def worker_pids(self, path="/health"):
        stages = self.health(path)["stages"].values()
        return [worker["pid"] for stage in stages for worker in stage["workers"]]

    def processes(self):
        """The processes that run, by id: all that was started by this gunicorn, however far away."""
        return with_variable(MARK, self._mark)

    def stage_processes(self):
        """Those of its processes that are workers of a stage, whether or not they are ready."""
        return [pid for pid in self.processes() if runs_a_stage(pid)]

    def end(self):
        """End as by `kill`; nothing is left."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log()
        until_now(lambda: not self.processes(), "every process to end", context=lambda: str(self.processes()))
        assert "Traceback" not in self.log(), self.log()


@pytest.fixture
def gunicorn(tmp_path):
    """Starts one with these arguments; it is killed at the end if it still runs."""
    shutil.copy(doubling.__file__, tmp_path)
    settings = {"hooks": HOOKS, "taking": TELLS_WHAT_IT_TOOK, "impatient": IMPATIENT}
    for name, text in {"stages": STAGES, "served": SERVED, **settings}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    running = []

    def start(*arguments, **named):
        running.append(Gunicorn(tmp_path, *arguments, **named))
        return running[-1]

    yield start
    for server in running:
        for pid in server.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.process.wait()


class Load:
    """Threads that ask again and again, each time over a new connection, until it ends; refused ones ask once more."""

    def __init__(self, server, threads=8):
        self._server = server
        self._go_on = True
        self._count = itertools.count()
        self.answered = []
        self.wrong = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _ask(self):
        while self._go_on:
            name = f"r{next(self._count)}"
            try:
                status, body = self._server.ask(
                    "POST", "/predict", b"-0.01", content_type="application/json", x_request_id=name
                )
            except (OSError, http.client.HTTPException):  # not taken; what was is compared with what was answered
                continue
            if (status, body) != (200, b"-0.02"):
                self.wrong.append((status, body))
            self.answered.append(name)

    def until(self, number):
        wanted = len(self.answered) + number
        until_now(lambda: len(self.answered) >= wanted, f"{number} answers", patience=40, context=self._server.log)

    def end(self):
        self._go_on = False
        for thread in self._threads:
            thread.join(40)
        assert self.wrong == []

    def check_nothing_was_lost(self):
        taken = (self._server.folder / "taken").read_text().split()
        assert set(taken) == set(self.answered)
        assert len(taken) == len(set(taken))


@pytest.mark.parametrize(("kind", "preload"), [(SYNC, False), (GTHREAD, True)], ids=["sync", "gthread-preload"])
def test_gunicorn_serves_and_leaves_no_process(gunicorn, kind, preload):
    server = gunicorn(*kind, *(["--preload"] if preload else []), "served:app")
    assert server.stage_processes() == []  # nobody has called yet
    assert [server.predict(x) for x in range(6)] == [2.0 * x for x in range(6)]
    status, body = server.ask("POST", "/batch", b'[1, "x"]', content_type="application/json")
    assert status == 207
    assert [list(outcome) for outcome in json.loads(body)["outcomes"]] == [["result"], ["error"]]
    assert server.ask("HEAD", "/docs") == (200, b"")
    # It may be the first request of its process, whose service starts then.
    until_now(lambda: json.loads(server.ask("GET", "/health?deep=1")[1])["deep"]["ok"], "an answer to the example")
    pids = set()
    until_now(
        # One that still starts in its process, which this is the first request of, has no id yet.
        lambda: pids.update(filter(None, server.worker_pids())) or len(pids) == (2 if kind is SYNC else 1),
        "all workers",
    )
    server.end()


@KINDS
@pytest.mark.smoke
def test_a_body_in_chunks_is_read_to_its_end(gunicorn, kind):
    server = gunicorn(*kind, "served:app")
    for pieces in ([b"1", b".5"], [b" " * 300_000, b" " * 300_000, b"1.5"]):
        assert server.ask("POST", "/predict", iter(pieces), content_type="application/json") == (200, b"3.0")
    server.end()


def test_chunks_over_the_limit_are_refused_before_they_end(gunicorn):
    server = gunicorn(*GTHREAD, "served:app")
    assert server.predict(1.0) == 2.0
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(server.path)
        sock.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"80000\r\n" + bytes(0x80000) + b"\r\n80000\r\n" + bytes(0x80000) + b"\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 413 ")
    server.end()


@KINDS
def test_workers_that_are_replaced_after_some_requests_lose_none(gunicorn, kind):
    server = gunicorn(*kind, "--max-requests", "40", "-c", "taking.py", "served:app")
    load = Load(server)
    load.until(150)
    load.end()
    load.check_nothing_was_lost()
    assert server.log().count("Autorestarting worker") >= 2
    until_now(lambda: len(server.stage_processes()) <= (2 if kind is SYNC else 1), "old workers to end")
    server.end()


@pytest.mark.parametrize(
    "kind", [pytest.param(SYNC, id="sync"), pytest.param(GTHREAD, id="gthread", marks=pytest.mark.night)]
)
def test_a_hangup_under_load_replaces_the_workers_and_loses_nothing(gunicorn, kind):
    server = gunicorn(*kind, "-c", "taking.py", "served:app")
    load = Load(server)
    load.until(50)
    before = set(server.worker_pids())
    server.process.send_signal(signal.SIGHUP)
    until_now(lambda: "Hang up" in server.log(), "gunicorn to take the signal")
    load.until(150)
    until_now(lambda: not before & set(server.processes()), "the workers of before to end")
    load.end()
    load.check_nothing_was_lost()
    server.end()


@pytest.mark.parametrize(
    "kind", [pytest.param(SYNC, id="sync", marks=pytest.mark.night), pytest.param(GTHREAD, id="gthread")]
)
def test_a_sigterm_under_load_answers_all_that_was_taken(gunicorn, kind):
    server = gunicorn(*kind, "-c", "taking.py", "served:app")
    load = Load(server)
    load.until(80)
    server.end()
    load.end()
    load.check_nothing_was_lost()


def test_the_hooks_start_before_the_first_request_and_have_stages_torn_down(gunicorn):
    server = gunicorn(*SYNC, "--preload", "-c", "hooks.py", "served:app")
    until_now(
        lambda: len(server.stage_processes()) >= 2,
        "the workers to start unasked",
        context=server.log,
    )
    assert server.predict(1.0) == 2.0
    server.end()
    assert (server.folder / "torn_down").read_text() == "11"


def test_a_service_that_cannot_start_says_why_and_tries_again(gunicorn):
    server = gunicorn(*GTHREAD, "-c", "impatient.py", "served:unfit")
    status, body = server.ask("POST", "/predict", b"1", content_type="application/json")
    assert (status, "no weights" in json.loads(body)["detail"]) == (503, True), body
    assert "retries" in json.loads(body)["detail"]
    status, body = server.ask("GET", "/readyz")
    assert (status, "no weights" in json.loads(body)["detail"]) == (503, True), body
    assert server.ask("GET", "/livez")[0] == 200
    (server.folder / "weights").touch()
    until_now(lambda: server.ask("GET", "/readyz")[0] == 200, "the next try", patience=30, context=server.log)
    assert server.predict(1) == 1
    assert server.log().count("the service failed to start") == 1


def test_a_hook_that_cannot_start_the_service_ends_gunicorn(gunicorn):
    server = gunicorn("-k", "sync", "-w", "1", "-c", "hooks.py", "served:unfit", listens=False)
    assert server.process.wait(30) == 3  # "Worker failed to boot"
    assert "no weights" in server.log()
    until_now(lambda: not server.processes(), "every process to end")


def test_a_killed_server_process_takes_its_workers_with_it(gunicorn):
    server = gunicorn(*GTHREAD, "served:app")
    assert server.predict(1.0) == 2.0
    (old,) = server.worker_pids()
    (child,) = (
        (Path("/proc") / str(server.process.pid) / "task" / str(server.process.pid) / "children").read_text().split()
    )
    os.kill(int(child), signal.SIGKILL)
    until_now(lambda: old not in server.processes(), "the worker of the killed process to end")
    assert server.predict(1.0) == 2.0
    server.end()


def test_a_sync_worker_whose_time_is_up_withdraws_its_item_and_leaves_no_worker(gunicorn):
    server = gunicorn("-k", "sync", "-w", "1", "--timeout", "2", "served:app")
    assert server.predict(1.0) == 2.0
    (old,) = server.worker_pids()
    status, _ = server.ask("POST", "/predict", b"-20", content_type="application/json")
    assert status == 500  # what gunicorn answers
    assert "WORKER TIMEOUT" in server.log()
    until_now(lambda: old not in server.processes(), "the worker to end with its process")
    assert server.predict(1.0) == 2.0
    server.process.terminate()
    server.process.wait(20)
    until_now(lambda: not server.processes(), "every process to end")


def test_threads_fill_batches_together(gunicorn):
    server = gunicorn(*GTHREAD, "served:app")
    assert server.predict(1.0) == 2.0
    threads = [threading.Thread(target=server.predict, args=(-0.3,)) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    (line,) = [line for line in server.ask("GET", "/metrics")[1].decode().splitlines() if BATCHES in line]
    assert float(line.split()[-1]) <= 5, line  # those of the warm-up and of the first call too
    server.end()


def test_it_is_mounted_in_flask(gunicorn):
    server = gunicorn(*GTHREAD, "served:outer")
    assert server.predict(4, "/ml/predict") == 8.0
    assert server.ask("GET", "/own") == (200, b"mine")
    assert json.loads(server.ask("GET", "/ml/openapi.json")[1])["servers"] == [{"url": "."}]
    with contextlib.closing(Connection(server.path)) as connection:
        connection.request("POST", "/ml/predict/?a=b", b"4")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("location")) == (308, "../predict?a=b")
    assert server.ask("GET", "/ml/none")[0] == 404
    server.end()


@pytest.mark.smoke
def test_inline_under_gthread_is_one_process_that_survives_a_raising_stage_and_ends(gunicorn):
    server = gunicorn(*GTHREAD, "served:inline")
    pid = server.predict(1)
    assert set(server.processes()) == {server.process.pid, pid}
    threads = [threading.Thread(target=server.ask, args=("POST", "/predict", b"-1")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    status, body = server.ask("POST", "/predict", b"-1", content_type="application/json")
    assert (status, json.loads(body)["type"]) == (500, "urn:penstock:problem:stage-failed")
    assert server.predict(1) == pid
    assert set(server.processes()) == {server.process.pid, pid}
    server.process.terminate()
    assert server.process.wait(20) == 0
    until_now(lambda: not server.processes(), "every process to end")


FORKS = """
    import io, json, os, sys

    from served import app


    def predict(x):
        body = json.dumps(x).encode()
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/predict", "CONTENT_LENGTH": str(len(body))}
        answer = app({**environ, "wsgi.input": io.BytesIO(body)}, lambda status, fields: None)
        found = b"".join(answer)
        answer.close()
        return json.loads(found)


    if __name__ == "__main__":
        assert predict(2) == 4
        child = os.fork()
        if not child:
            assert predict(3) == 6
            if "stop" in sys.argv:
                app.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert predict(4) == 8
        print("well")
"""


@pytest.mark.parametrize("how", ["stop", "end"])
def test_a_fork_of_a_process_that_serves_starts_its_own_workers(tmp_path, how):
    shutil.copy(doubling.__file__, tmp_path)
    for name, text in (("stages", STAGES), ("served", SERVED), ("main", FORKS)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "main.py", how], cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
