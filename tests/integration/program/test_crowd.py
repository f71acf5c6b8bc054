"""More clients than `max_connections`: probes get in, idle connections make way, the rest is told to come again."""

from __future__ import annotations

import contextlib
import re
import threading
import time

import pytest
from processes import descriptors
from served import request

from night import tight

PLACES = 10
BEYOND = 256
"""How many connections may be open beyond `max_connections`."""
KEY = "s3cr3t-key-of-ann"
PROBES = ("/livez", "/readyz", "/metrics")
WHOLE = request("POST", "/predict", {"value": 1})
HALF, LAST_BYTE = WHOLE[:-1], WHOLE[-1:]
"""A request that keeps its connection busy as long as its last byte does not come."""


@pytest.fixture
def small(serve):
    """A server with ten places."""
    return serve("--max-connections", str(PLACES))


def ask(server, path):
    """One GET on a connection of its own."""
    with contextlib.closing(server.wire()) as wire:
        return wire.send(request("GET", path)).answer()


def fill(server, places=PLACES):
    """Take so many places with requests whose end does not come."""
    return [server.wire().send(HALF) for _ in range(places)]


def test_silent_sockets_neither_stop_a_probe_nor_a_request(small):
    silent = [small.wire() for _ in range(PLACES)]
    assert [ask(small, path).status for path in PROBES] == [200] * 3

    def served():
        with contextlib.closing(small.wire().post("/predict", {"value": 3})) as wire:
            return wire.answer().body == b"3.0"

    small.until(served, "a silent connection to make way")
    assert [ask(small, path).status for path in PROBES] == [200] * 3
    assert any(gone(wire) for wire in silent)


def test_metrics_tell_how_many_connections_are_open_and_how_many_may_be(small):
    def connections():
        """The number and the limit, asked for on a connection of its own."""
        found = dict(re.findall(rb"^(penstock_connections\w*) (\S+)$", ask(small, "/metrics").body, re.MULTILINE))
        return float(found[b"penstock_connections"]), float(found[b"penstock_connections_limit"])

    assert connections() == (1, PLACES)
    busy = fill(small, PLACES + 3)
    small.until(lambda: connections() == (PLACES + 3 + 1, PLACES), "those beyond the limit to be counted too")
    for wire in busy:
        wire.close()
    small.until(lambda: connections() == (1, PLACES))


def gone(wire):
    """Whether the server has closed this connection, without waiting for that."""
    wire.sock.setblocking(False)
    try:
        return wire.sock.recv(1) == b""
    except BlockingIOError:
        return False


def test_where_every_connection_is_busy_probes_are_answered_and_the_rest_is_refused(small):
    busy = [small.wire().post("/predict", {"do": "hold", "value": n}) for n in range(PLACES)]
    small.until(lambda: ask(small, "/predict").status == 503, "every place to be taken")
    for path in PROBES:
        with contextlib.closing(small.wire().send(request("GET", path))) as wire:
            answer = wire.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert wire.ended()
    for path in ("/predict", "/batch", "/nowhere"):
        with contextlib.closing(small.wire().post(path, {"value": 1})) as wire:
            answer = wire.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert int(answer.headers["retry-after"]) >= 1
            assert "has reached max_connections" in answer.json()["detail"]
            assert wire.ended()
    small.open_gate()
    assert [wire.answer().body for wire in busy] == [b"%d.0" % n for n in range(PLACES)]


def test_a_probe_needs_its_key_beyond_the_bound_too(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    server = serve("--api-key-file", str(keys), "--max-connections", "1")
    server.wire().send(request("POST", "/predict", {"value": 1}, X_API_Key=KEY)[:-1])
    server.until(lambda: ask(server, "/health").status == 503, "the place to be taken")
    assert [ask(server, path).status for path in PROBES] == [200, 200, 401]
    with contextlib.closing(server.wire().send(request("GET", "/metrics", X_API_Key=KEY))) as wire:
        assert b"penstock_http_requests_total" in wire.answer().body


def test_of_six_hundred_that_come_at_once_each_gets_its_answer_and_a_client_beside_them_all_of_its(
    small, record_testsuite_property
):
    fill(small, PLACES - 1)
    # A part of its next request is always there already.  So it is never idle, however slow this machine is.
    beside = small.wire().send(HALF)
    small.until(lambda: ask(small, "/health").status == 503, "every place to be taken")
    over = threading.Event()
    seconds, wrong = [], []

    def go_on():
        while not over.is_set():
            began = time.monotonic()
            answer = beside.send(LAST_BYTE + HALF).answer()
            seconds.append(time.monotonic() - began)
            if answer.body != b"1.0":
                wrong.append(answer)

    client = threading.Thread(target=go_on)
    client.start()
    try:
        for _ in range(3):
            crowd = [small.wire().send(request("GET", PROBES[n % 3]) if n % 2 else WHOLE) for n in range(600)]
            assert {wire.answer().status for wire in crowd[::2]} == {503}
            assert {wire.answer().status for wire in crowd[1::2]} == {200}
            for wire in crowd:
                wire.close()
    finally:
        over.set()
        client.join()
    assert wrong == []
    assert len(seconds) >= 3
    assert max(seconds) < tight(5.0), f"the slowest of {len(seconds)} answers took {max(seconds):.2f} s"
    record_testsuite_property("slowest_answer_seconds", max(seconds))


def test_however_many_are_silent_a_probe_gets_in_and_files_stay_few(small):
    fill(small)
    small.until(lambda: ask(small, "/health").status == 503, "every place to be taken")
    most = descriptors(small.pid) + BEYOND
    silent = []
    for _ in range(12):
        silent += [small.wire() for _ in range(50)]
        assert [ask(small, path).status for path in PROBES] == [200] * 3
        assert descriptors(small.pid) <= most + 2
    small.until(lambda: sum(map(gone, silent[: len(silent) - BEYOND])) == len(silent) - BEYOND, "the oldest to be cut")
