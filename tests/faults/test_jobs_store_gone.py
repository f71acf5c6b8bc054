"""The store of jobs goes away under a server that lets jobs in: calls about jobs are 503, and nothing else notices."""

from __future__ import annotations

import select

import pytest
from served import request, serving
from waiting import until_now

from redis_server import private_redis


@pytest.fixture
def redis():
    with private_redis() as server:
        yield server


@pytest.fixture
def server(redis, tmp_path):
    with serving(tmp_path, "--queue-url", redis.url) as found:
        yield found


def has_answer(wire):
    return bool(select.select([wire.sock], [], [], 0)[0])


def status(server):
    return server.http.get("/jobs").status_code


def test_a_store_that_is_gone_is_503_until_it_is_back(redis, server):
    job = server.http.post("/jobs?key=k", json={}).json()
    redis.kill()
    for method, path in (
        ("POST", "/jobs"),
        ("GET", "/jobs"),
        ("GET", f"/jobs/{job['id']}"),
        ("GET", f"/jobs/{job['id']}/result?wait=5"),
        ("DELETE", f"/jobs/{job['id']}"),
        ("POST", f"/jobs/{job['id']}/retry"),
    ):
        answer = server.http.request(method, path, json={} if path == "/jobs" and method == "POST" else None)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:penstock:problem:store-unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert server.http.post("/predict", json={"value": 2.0}).json() == 2.0
    assert server.http.get("/readyz").status_code == 200
    redis.start()
    until_now(lambda: status(server) == 200, "the store to be back", context=lambda: server.output)
    assert server.http.post("/jobs?key=k", json={}).json()["id"] == job["id"]


def test_a_store_that_stands_still_holds_up_no_request_to_a_service(redis, server):
    asked = [server.wire() for _ in range(40)]
    redis.pause()
    for wire in asked:
        wire.send(b"GET /jobs HTTP/1.1\r\nHost: a\r\n\r\n")
    server.until(lambda: server.metric("penstock_connections") >= 40)
    beside = 0
    for _ in range(50):
        assert server.http.post("/predict", json={"value": 2.0}).status_code == 200
        beside += not any(has_answer(wire) for wire in asked)
    assert beside, "none was answered before a call of the store had given up"
    assert [wire.answer().status for wire in asked] == [503] * 40
    redis.go_on()
    until_now(lambda: status(server) == 200, "the store to be back", context=lambda: server.output)


def test_a_wait_outlives_a_restart_of_the_store(redis, server):
    job = server.http.post("/jobs", json={}).json()
    wire = server.wire()
    wire.send(request("GET", "/livez", b"") + request("GET", f"/jobs/{job['id']}/result?wait=20", b""))
    assert wire.answer().status == 200  # so what came with it has been read, too
    for _ in range(10):
        assert status(server) == 200  # and was looked at
    redis.kill()
    until_now(lambda: status(server) == 503, "the store to be gone", context=lambda: server.output)
    redis.start()
    until_now(lambda: status(server) == 200, "the store to be back", context=lambda: server.output)
    assert server.http.delete(f"/jobs/{job['id']}").status_code == 200
    assert wire.answer().status == 410


def test_a_server_starts_without_its_store(redis, tmp_path):
    redis.kill()
    with serving(tmp_path, "--queue-url", redis.url) as server:
        server.wait_for("cannot reach the job store, rejecting calls about jobs")
        assert status(server) == 503
        assert server.http.post("/predict", json={"value": 2.0}).json() == 2.0
        redis.start()
        until_now(lambda: status(server) == 200, "the store to come", context=lambda: server.output)
