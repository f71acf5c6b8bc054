"""Whatever a client sends, it gets a clear error or a closed connection; a well-behaved one beside it never knows."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx
import msgspec
import pytest
from processes import descriptors, resident
from served import request, serving

from night import tight
from rows import named

SOURCE = """
import numpy as np
import penstock as ps

class Sum(ps.Stage):
    batch = ps.Batch(max_size=16)

    def predict(self, xs: list[dict[str, list[float]]]) -> list[float]:
        return [sum(x["x"]) for x in xs]

class Mean(ps.Stage):
    def predict(self, x: np.ndarray) -> float:
        return float(x.mean())

class Whatever(ps.Stage):
    def predict(self, x):
        return 1

sums, mean = ps.Service(Sum, name="sums"), ps.Service(Mean, name="mean")
whatever = ps.Service(Whatever, name="whatever")
"""
MIB = 1024 * 1024
GROWTH = 48 * MIB
"""More than one body of the largest size that a freed allocation may leave behind; a leak of them shows."""
DELAY = 6.0
"""Seconds.  With seven processes of other tests on two cores 3.3 were seen."""

JSON, MSGPACK, NPY = "application/json", "application/msgpack", "application/x-npy"


def post(path, body, media=JSON):
    return request("POST", path, body, Content_Type=media)


def head(*lines):
    return "\r\n".join(("POST /sums/predict HTTP/1.1", "Host: x", *lines, "", "")).encode()


def npy(shape, descr="<f8", rest=b""):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n" + rest


GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
PAGE = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
PAGE_BODIES = {
    "sized": PAGE + b"Content-Length: 16777216\r\n\r\n",
    "in chunks": PAGE + b"Transfer-Encoding: chunked\r\n\r\n1000000\r\n",
}
"""Heads for which 16 MiB of body are to come."""
# What the first process itself refuses is in tests/unit/server; these are large, or reach a worker as they are.
REFUSED = {
    "length and chunks": (head("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + GET, 400),
    "a body over the limit": (head(f"Content-Length: {16 * MIB + 1}") + b"x" * 100_000, 413),
    "chunks over the limit": (head("Transfer-Encoding: chunked") + b"100000\r\n" + b"x" * MIB + b"\r\nf00001\r\n", 413),
}
BAD_LISTS = {
    "a list 100 000 deep": post("/sums/batch", b"[" * 100_000 + b"]" * 100_000),
    "a bomb of a list": post("/sums/batch", b"\xdd\xff\xff\xff\xff", MSGPACK),
}
BAD_ITEMS = {
    "json 100 000 deep": post("/sums/predict", b"[" * 100_000),
    "json 100 000 deep, typed as anything": post("/whatever/predict", b"[" * 100_000 + b"]" * 100_000),
    "json objects 100 000 deep": post("/whatever/predict", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "invalid utf-8": post("/whatever/predict", b'"\xff\xfe"'),
    "a messagepack bomb": post("/sums/predict", b"\xdd\xff\xff\xff\xff", MSGPACK),
    "a messagepack bomb, typed as anything": post("/whatever/predict", b"\xdf\xff\xff\xff\xff", MSGPACK),
    "messagepack bytes that are not there": post("/whatever/predict", b"\xc6\xff\xff\xff\xff", MSGPACK),
    "messagepack 100 000 deep": post("/whatever/predict", b"\x91" * 100_000 + b"\xc0", MSGPACK),
    "a numpy terabyte": post("/mean/predict", npy((1 << 37,), rest=b"12345678"), NPY),
    "a numpy overflow": post("/mean/predict", npy((1 << 62, 1 << 62)), NPY),
    "numpy objects": post("/mean/predict", npy((1,), "|O", b"\x80\x04N."), NPY),
    "a numpy header of 4 GiB": post("/mean/predict", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", NPY),
}


class Bystander:
    """A well-behaved client, in a thread: it notes whatever is not as it should be."""

    def __init__(self, server):
        self.asked = 0
        self.troubles = []
        self.slowest = 0.0
        self._url = server.address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self):
        with httpx.Client(base_url=self._url, timeout=30, trust_env=False, verify=False) as http:
            while not self._over.is_set():
                started = time.monotonic()
                try:
                    answer = http.post("/sums/predict", json={"x": [self.asked, 1]})
                    if answer.status_code != 200 or answer.json() != self.asked + 1:
                        self.troubles.append(answer.text)
                except httpx.HTTPError as error:
                    self.troubles.append(repr(error))
                self.asked += 1
                self.slowest = max(self.slowest, time.monotonic() - started)
                self._over.wait(0.005)

    def end(self):
        self._over.set()
        self._thread.join()
        assert self.troubles == []
        assert self.asked > 0
        assert self.slowest < tight(DELAY)


@contextlib.contextmanager
def besieged(folder, *options):
    """A server, and a well-behaved client of it; afterwards it is as ready, and as small, as before."""
    with serving(folder, *options, source=SOURCE, services=("sums", "mean", "whatever")) as server:
        for path in ("/sums/batch", "/whatever/batch"):  # what is made once is made before it is measured
            server.http.post(path, content=b"[" + b"1," * 2000 + b"1]")
        files, memory = descriptors(server.pid), resident(server.pid)
        workers = server.workers()
        bystander = Bystander(server)
        try:
            yield server
        finally:
            bystander.end()
        server.hang_up()
        server.until(lambda: descriptors(server.pid) <= files + 1, "the descriptors to be given back")
        assert server.health()["state"] == "ready"
        assert server.workers() == workers, "no worker died of it"
        server.until(lambda: server.metric("penstock_reserved_bytes") == 0, "the bytes to be given back")
        assert server.metric("penstock_items_in_flight") == 0
        assert resident(server.pid) < memory + GROWTH
        assert all(resident(pid) < 400 * MIB for pid in workers)
        assert "Traceback" not in server.output


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with besieged(tmp_path_factory.mktemp("bad")) as server:
        yield server


def see_problem(answer, expected):
    assert answer.status == expected, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert answer.json()["detail"]
    assert "Traceback" not in answer.body.decode()


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_gets_a_clear_error_and_nothing_behind_it_is_answered(server, name):
    sent, expected = REFUSED[name]
    wire = server.wire().send(sent)
    see_problem(wire.answer(), expected)
    assert wire.ended()


def test_bad_items_get_a_clear_error_and_leave_the_connection_open(server):
    wire = server.wire()
    for name, sent in {**BAD_LISTS, **BAD_ITEMS}.items():
        with named(name):
            see_problem(wire.send(sent).answer(), 400 if name in BAD_LISTS else 422)
    assert wire.send(post("/whatever/predict", b"1" * 1_000_000)).answer().status < 500
    assert wire.send(post("/sums/predict", {"x": [1, 2]})).answer().json() == 3.0


def test_the_largest_bodies_again_and_again_do_not_pile_up(server):
    body = b'{"x": [' + b"1," * (8 * MIB - 10) + b"1]}"
    for _ in range(3):
        assert server.wire().send(post("/sums/predict", body)).answer().status == 200
        assert server.wire().send(post("/sums/predict", body[:-1])).answer().status == 422


@pytest.mark.parametrize("kind", PAGE_BODIES)
def test_of_large_bodies_for_a_page_nothing_is_kept(server, kind):
    before = resident(server.pid)
    wires = [server.wire().send(PAGE_BODIES[kind] + bytes(MIB)) for _ in range(100)]
    assert {wire.answer().status for wire in wires} == {413}
    assert resident(server.pid) < before + GROWTH
    for wire in wires:
        wire.close()


def test_a_list_of_twenty_thousand_items_that_fail_is_answered_for_each(server):
    answer = server.wire().send(post("/sums/batch", b"[" + b"1," * 19_999 + b"1]")).answer()
    assert answer.status == 207
    outcomes = msgspec.json.decode(answer.body)["outcomes"]
    assert {outcome["error"]["status"] for outcome in outcomes} == {422}
    assert len(outcomes) == 20_000


# -- clients that take their time, or leave -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    options = ("--header-timeout", "1", "--keepalive-timeout", "1.5")
    with besieged(tmp_path_factory.mktemp("slow"), *options) as server:
        yield server


def test_clients_that_leave_wherever_they_stand_are_forgotten(impatient):
    whole = post("/sums/predict", {"x": [1.0] * 1000})
    for cut in range(0, len(whole), 97):
        impatient.wire().send(whole[:cut]).drop()
    for _ in range(50):
        impatient.wire().send(whole).drop()
        impatient.wire().send(post("/sums/batch", [{"x": [1]}] * 100)).close()


def test_two_thousand_idle_connections_disturb_nobody_and_are_closed_in_time(impatient):
    before = descriptors(impatient.pid)
    idle = [impatient.wire() for _ in range(2000)]
    for wire in idle[::2]:
        wire.send(GET)
    assert all(wire.answer().status == 200 for wire in idle[::2])
    assert impatient.http.post("/sums/predict", json={"x": [1, 2]}).json() == 3.0
    assert all(wire.ended() for wire in idle)
    impatient.until(lambda: descriptors(impatient.pid) <= before + 1)
    for wire in idle:
        wire.close()
