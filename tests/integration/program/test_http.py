"""The HTTP that clients see of a whole server: HEAD, a kept connection, chunks; tests/unit/server has all else."""

from __future__ import annotations

import pytest
from served import request


@pytest.fixture
def wire(shared):
    return shared.wire()


@pytest.mark.smoke
def test_head_is_get_without_the_body(wire):
    for path in ("/livez", "/readyz", "/health", "/metrics", "/openapi.json", "/docs"):
        whole = wire.send(request("GET", path)).answer()
        head = wire.send(request("HEAD", path)).answer(to_head=True)
        assert (head.status, head.headers["content-type"]) == (200, whole.headers["content-type"])
        assert int(head.headers["content-length"]) > 0
    assert wire.send(request("GET", "/livez")).answer().status == 200


@pytest.mark.smoke
def test_a_connection_is_kept_for_a_hundred_requests(wire):
    for n in range(100):
        answer = wire.post("/predict", {"value": n}).answer()
        assert (answer.status, answer.json()) == (200, n)
        assert "connection" not in answer.headers


@pytest.mark.smoke
def test_a_chunked_body_is_put_together(wire):
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head + b'1\r\n{\r\na;ext=1\r\n"value": 5\r\n')
    wire.send(b"1\r\n}\r\n0\r\nTrailer: x\r\n\r\n")
    assert wire.answer().json() == 5.0
    assert wire.post("/predict", {"value": 6}).answer().json() == 6.0
