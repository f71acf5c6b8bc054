"""Workers of the published package ventu, unmodified, behind a server: the old batching protocol as it is spoken."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import threading

import msgspec
import pytest
from served import PATIENCE_SECONDS, serving
from ventu_package import INSTALL_SECONDS, VentuWorker, environment


def installs(test):
    """Mark a test that needs the environment of the package, which the first of them makes from an index."""
    return pytest.mark.night(pytest.mark.timeout(2 * INSTALL_SECONDS + 60)(test))


SERVICE = """
import penstock as ps

service = ps.Service(
    ps.remote("square", batch=ps.Batch(max_size=4, max_wait=0.01), accepts=({codec!r},)),
    name="square",
    remote_worker_socket={path!r},
)
"""
REQUESTS = 200
AT_ONCE = 8


@pytest.fixture(scope="module")
def python():
    """The interpreter of an environment that has the package."""
    return environment()


@pytest.fixture
def site(python, tmp_path):
    """Serves squares, and starts workers of the package for that."""
    with contextlib.ExitStack() as running:
        yield lambda **options: Site(python, tmp_path, running, **options)


@contextlib.contextmanager
def connected(path):
    """A worker of the protocol that the test speaks itself."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_SECONDS)
        sock.connect(str(path))
        sock.sendall(bytes(4))
        yield sock


def receive(sock, n):
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        assert piece, "the connection ended"
        data += piece
    return data


def read_message(sock):
    return msgspec.msgpack.decode(receive(sock, int.from_bytes(receive(sock, 4), "big")))


def write_message(sock, value):
    packed = msgspec.msgpack.encode(value)
    sock.sendall(len(packed).to_bytes(4, "big") + packed)


class Site:
    def __init__(self, python, folder, running, codec="json"):
        self._python = python
        self._folder = folder
        self._running = running
        self._codec = codec
        self.path = folder / "square.sock"
        self._runs = folder / "runs"
        source = SERVICE.format(codec=codec, path=str(self.path))
        self.server = running.enter_context(serving(folder, source=source))

    def worker(self):
        worker = VentuWorker(self._python, self._folder, str(self.path), self._runs, codec=self._codec)
        self._running.callback(worker.destroy)
        return worker

    def wait_for_workers(self, *workers):
        pids = {worker.process.pid for worker in workers}
        self.server.until(lambda: pids == set(self.server.workers()), f"the workers {pids}")
        self.server.until(lambda: self.server.http.get("/readyz").status_code == 200, "a server that is ready")

    @property
    def runs(self):
        """How often each item was run."""
        return collections.Counter(map(int, self._runs.read_text().split()))


@installs
def test_200_requests_over_two_workers_of_which_one_is_killed(site):
    site = site()
    killed, kept = site.worker(), site.worker()
    site.wait_for_workers(killed, kept)
    answered = threading.Semaphore(0)

    def ask(i):
        body = json.dumps({"x": "no number" if i % 7 == 0 else i})
        try:
            return site.server.http.post("/predict", content=body, headers={"Content-Type": "application/json"})
        finally:
            answered.release()

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [pool.submit(ask, i) for i in range(1, REQUESTS + 1)]
        for _ in range(REQUESTS // 3):
            answered.acquire()
        os.kill(killed.process.pid, signal.SIGKILL)
    for i, answer in enumerate((future.result() for future in answers), 1):
        if i % 7 == 0:
            assert answer.status_code == 422, answer.text
            assert "value is not a valid integer" in answer.json()["detail"]
            assert "type_error.integer" in answer.json()["detail"]
        else:
            assert (answer.status_code, answer.json()) == (200, {"y": i * i})
    assert set(site.runs) == {i for i in range(1, REQUESTS + 1) if i % 7}
    assert max(site.runs.values()) <= 2
    site.wait_for_workers(kept)


@installs
def test_a_worker_that_speaks_messagepack(site):
    site = site(codec="msgpack")
    worker = site.worker()
    site.wait_for_workers(worker)

    def ask(item):
        headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
        return site.server.http.post("/predict", content=msgspec.msgpack.encode(item), headers=headers)

    assert msgspec.msgpack.decode(ask({"x": 12}).content) == {"y": 144}
    refused = ask({"x": "no number"})
    assert refused.status_code == 422
    assert b"value is not a valid integer" in refused.content  # the worker's message is MessagePack in MessagePack


@installs
def test_what_is_no_json_is_refused_with_the_workers_message(site):
    site = site()
    worker = site.worker()
    site.wait_for_workers(worker)
    answer = site.server.http.post("/predict", content=b'{"x": 1', headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "Expecting ',' delimiter" in answer.json()["detail"]


@installs
def test_a_format_that_accepts_does_not_name_never_reaches_the_worker(site):
    site = site()
    site.wait_for_workers(site.worker())
    answer = site.server.http.post("/predict", content=b"\x80", headers={"Content-Type": "application/msgpack"})
    assert answer.status_code == 415, answer.text
    assert "application/json" in answer.json()["detail"]


@installs
def test_a_batch_of_a_client_is_answered_in_place(site):
    site = site()
    site.wait_for_workers(site.worker())
    items = [{"x": 1}, {"x": "no number"}, {"x": 3}, {}, {"x": 5}, {"x": 6}]
    outcomes = site.server.http.post("/batch", json=items).json()["outcomes"]
    assert [each.get("result") for each in outcomes] == [{"y": 1}, None, {"y": 9}, None, {"y": 25}, {"y": 36}]
    assert [each["error"]["status"] for each in outcomes if "error" in each] == [422, 422]
    assert "field required" in outcomes[3]["error"]["detail"]


@installs
def test_the_worker_is_told_by_end_of_stream_when_the_server_stops(site):
    site = site()
    worker = site.worker()
    site.wait_for_workers(worker)
    site.server.stop()
    assert worker.wait() == 1  # the package raises at the end of a stream: its supervisor starts it again
    assert "struct.error" in worker.output
    assert not site.path.exists()


def test_who_answers_what_no_worker_answers_is_cut_off_and_the_next_one_gets_the_item(tmp_path):
    path = tmp_path / "square.sock"
    with serving(tmp_path, source=SERVICE.format(codec="json", path=str(path))) as server:
        with connected(path) as fool, concurrent.futures.ThreadPoolExecutor() as pool:
            server.until(lambda: server.http.get("/readyz").status_code == 200)
            asked = pool.submit(server.client().post, "/predict", json={"x": 3})
            [item] = read_message(fool).values()
            assert json.loads(item) == {"x": 3}
            fool.sendall(b"\x7f\xff\xff\xff")
            assert fool.recv(1) == b""  # it is told nothing: the protocol has no word for that
            with connected(path) as other:
                [name] = read_message(other)
                write_message(other, {name: '{"y": 9}'})
                assert asked.result().json() == {"y": 9}
        server.wait_for("a message announces 2147483647 bytes")


def test_an_item_without_a_result_is_a_failure_of_the_stage(tmp_path):
    path = tmp_path / "square.sock"
    with (
        serving(tmp_path, source=SERVICE.format(codec="json", path=str(path))) as server,
        connected(path) as worker,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        server.until(lambda: server.http.get("/readyz").status_code == 200)
        asked = pool.submit(server.client().post, "/predict", json={"x": 3})
        read_message(worker)
        write_message(worker, {})
        assert asked.result().status_code == 500
