"""The ASGI app with real workers, under the servers that people run it with."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import doubling
import httpx
import pytest
from fastapi import FastAPI
from waiting import until_now

import penstock as ps

SERVED = """
import hashlib

from doubling import Double
from fastapi import FastAPI

import penstock as ps

service = ps.Service(Double, name="double")
app = ps.asgi(service)

class Swell(ps.Stage):
    def predict(self, size: int) -> bytes:
        return bytes(size)


swell = ps.asgi(
    ps.Service(Swell, name="swell", max_queued_bytes=8_000_000), options=ps.ServerOptions(write_timeout=1.0)
)

class Digest(ps.Stage):
    def predict(self, body: memoryview) -> bytes:
        return hashlib.sha256(body).hexdigest().encode()


digest = ps.asgi(ps.Service(Digest, name="digest"))

outer = FastAPI(lifespan=app.lifespan)
outer.mount("/ml", app)


@outer.get("/own")
def own() -> str:
    return "mine"
"""


class Double(ps.Stage):
    def predict(self, x: float) -> float:
        return x * 2


@pytest.fixture
def under(tmp_path):
    """Start a server's command line, in which SOCKET stands for the socket's path; a client once it is ready."""
    shutil.copy(doubling.__file__, tmp_path)
    (tmp_path / "served.py").write_text(SERVED)
    path = str(tmp_path / "socket")
    running = []

    def start(*arguments, ready="/readyz"):
        command = [sys.executable, "-m", *(a.replace("SOCKET", path) for a in arguments)]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
        transport = httpx.HTTPTransport(uds=path, verify=False)
        http = httpx.Client(transport=transport, base_url="http://penstock", timeout=30)
        running.append((process, http))
        for _ in range(400):
            assert process.poll() is None, (tmp_path / "log").read_text()
            if listening(path) and http.get(ready).status_code == 200:
                return process, http
            time.sleep(0.05)
        raise AssertionError((tmp_path / "log").read_text())

    yield start
    for process, http in running:
        http.close()
        if process.poll() is None:
            process.terminate()
        process.wait(20)


def listening(path):
    """Whether somebody accepts connections at a socket; asked without httpx, which forgets a socket that fails."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def worker_pids(health):
    stages = (stage for service in health["services"].values() for stage in service["stages"].values())
    return [worker["pid"] for stage in stages for worker in stage["workers"]]


def gone(pid):
    """Whether no process has this id within a few seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.smoke
def test_uvicorn_starts_the_service_serves_it_and_drains_it(under):
    process, http = under("uvicorn", "served:app", "--uds", "SOCKET")
    assert http.post("/predict", json=4).json() == 8.0
    answer = http.post("/batch", json=[1, "x"])
    assert answer.status_code == 207
    assert [list(outcome) for outcome in answer.json()["outcomes"]] == [["result"], ["error"]]
    assert http.head("/docs").status_code == 200
    (pid,) = worker_pids(http.get("/health").json())
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert gone(pid)


def test_large_bodies_under_uvicorn_lie_in_shared_memory_and_leave_nothing_there(under):
    _, http = under("uvicorn", "served:digest", "--uds", "SOCKET", "--log-level", "warning")
    for number in range(20):
        body = b"%015d," % number * 40_000
        # With its length, which is announced, and in chunks, which lie in no slab.
        content = body if number % 4 else iter([body[:100_000], body[100_000:]])
        answer = http.post("/predict", content=content, headers={"Content-Type": "application/octet-stream"})
        assert answer.content == hashlib.sha256(body).hexdigest().encode()
    page = http.get("/metrics").text
    assert 'penstock_shm_used_bytes{memory="arrivals",service="digest"} 0.0' in page
    assert 'penstock_shm_fallbacks_total{reason="chunked",service="digest"} 5.0' in page
    assert 'penstock_shm_fallbacks_total{reason="full",service="digest"} 0.0' in page


def test_a_client_that_hangs_up_under_uvicorn_is_counted_as_cancelled(under):
    _, http = under("uvicorn", "served:app", "--uds", "SOCKET")
    with pytest.raises(httpx.ReadTimeout):
        http.post("/predict", json=-1.0, timeout=0.2)
    for _ in range(100):
        text = http.get("/metrics").text
        if 'penstock_items_ended_total{ending="cancelled",service="double"} 1.0' in text:
            break
        time.sleep(0.05)
    else:
        raise AssertionError(text)
    assert 'penstock_http_requests_total{route="/predict",service="double",status="499"} 1.0' in text


@pytest.mark.smoke
def test_a_fastapi_app_enters_our_lifespan_and_keeps_its_own_routes(under):
    process, http = under("uvicorn", "served:outer", "--uds", "SOCKET", ready="/ml/readyz")
    assert http.post("/ml/predict", json=4).json() == 8.0
    assert http.get("/own").json() == "mine"
    assert http.get("/ml/openapi.json").json()["servers"] == [{"url": "."}]
    (pid,) = worker_pids(http.get("/ml/health").json())
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert gone(pid)


def test_each_process_of_gunicorn_owns_its_workers(under):
    process, http = under(
        "gunicorn", "served:app", "-k", "uvicorn.workers.UvicornWorker", "-w", "2", "-b", "unix:SOCKET"
    )
    pids = set()
    enough = time.monotonic() + 20
    while len(pids) < 2 and time.monotonic() < enough:  # whichever process accepts the connection answers
        pids.update(worker_pids(http.get("/health", headers={"connection": "close"}).json()))
    assert len(pids) == 2
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert all(map(gone, pids))


def test_who_leaves_answers_unread_under_uvicorn_is_cut_and_shuts_nobody_out(under, tmp_path):
    _, http = under("uvicorn", "served:swell", "--uds", "SOCKET")
    large = 10_000_000
    with contextlib.ExitStack() as opened:
        silent = []
        for _ in range(8):
            sock = opened.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(20)
            sock.connect(str(tmp_path / "socket"))
            sock.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n%d" % large)
            silent.append(sock)
        until_now(lambda: health(http)["bytes"] > 8_000_000, "more answers than may be held")
        until_now(lambda: health(http)["in_flight"] == 0, "the stage to be sent nothing more")
        # One was too many, and two more were with the worker.
        assert health(http)["bytes"] <= 8_000_000 + 3 * large
        answer = http.post("/predict", json=7)
        assert (answer.status_code, answer.content) == (200, bytes(7))
        until_now(lambda: health(http)["bytes"] == 0, "all who do not read to be cut")
        text = http.get("/metrics").text
        assert 'penstock_http_requests_total{route="/predict",service="swell",status="499"} 8.0' in text


def health(http):
    """What `/health` says of the only service."""
    (service,) = http.get("/health").json()["services"].values()
    return service


async def test_an_outer_app_may_run_the_service_itself():
    service = ps.Service(Double, name="double")
    outer = FastAPI()
    outer.mount("/ml", ps.asgi(service))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://penstock") as http:
        before = await http.post("/ml/predict", json=4)
        assert before.status_code == 503
        assert "async with service" in before.json()["detail"]
        async with service:
            assert (await http.post("/ml/predict", json=4)).json() == 8.0
        after = await http.post("/ml/predict", json=4)
        assert (after.status_code, after.json()["state"]) == (503, "stopped")
