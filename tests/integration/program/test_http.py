"""The HTTP that clients see: methods, refusals, kept connections, pipelines, chunks, expectations."""

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


@pytest.mark.parametrize(
    ("path", "allow"), [("/predict", "POST, OPTIONS"), ("/batch", "POST, OPTIONS"), ("/health", "GET, HEAD, OPTIONS")]
)
def test_options_and_wrong_methods_say_what_is_allowed(wire, path, allow):
    answer = wire.send(request("OPTIONS", path)).answer(to_head=True)
    assert (answer.status, answer.headers["allow"]) == (204, allow)
    for method in ("PUT", "DELETE", "PATCH", "GET" if "POST" in allow else "POST"):
        answer = wire.send(request(method, path)).answer()
        assert (answer.status, answer.headers["allow"]) == (405, allow)
    head = wire.send(request("HEAD", "/predict")).answer(to_head=True)
    assert head.status == 405


@pytest.mark.parametrize(
    "path", ["/", "/predict//", "/Predict", "/x", "/orders/predict", "/docs/../docs", "/docs/x.js"]
)
def test_an_unknown_path_is_404_and_says_where_to_go(wire, path):
    answer = wire.send(request("POST", path, {})).answer()
    assert answer.status == 404
    assert "/predict" in answer.json()["detail"]


def test_a_slash_too_much_sends_the_client_to_the_path_without_it(shared, wire):
    answer = wire.send(request("POST", "/predict/?a=b", {"value": 3})).answer()
    assert (answer.status, answer.headers["location"]) == (308, "../predict?a=b")
    assert wire.post("/predict", {"value": 4}).answer().json() == 4.0, "the connection goes on"
    followed = shared.http.post("/predict/?a=b", json={"value": 5}, follow_redirects=True)
    assert (followed.json(), followed.url.path, followed.url.query) == (5.0, "/predict", b"a=b")


def test_options_of_the_whole_server_is_answered(wire):
    answer = wire.send(request("OPTIONS", "*")).answer(to_head=True)
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, POST, OPTIONS")


def test_a_blank_line_between_requests_is_ignored(wire):
    wire.send(b"\r\n" + request("POST", "/predict", {"value": 3}) + b"\r\n" + request("GET", "/livez"))
    assert wire.answer().json() == 3.0
    assert wire.answer().status == 200


def test_a_query_does_not_change_the_path(wire):
    assert wire.send(request("POST", "/predict?debug=1&x=%00", {"value": 3})).answer().json() == 3.0


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /livez HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"POST /predict HTTP/1.1\r\nHost: x\r\nExpect: a miracle\r\nContent-Length: 2\r\n\r\n{}", 417),
    ],
)  # tests/unit/server/http1/test_refusals.py has all others
def test_what_is_not_served_has_its_status(wire, start, status):
    answer = wire.send(start).answer()
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.smoke
def test_a_connection_is_kept_for_a_hundred_requests(wire):
    for n in range(100):
        answer = wire.post("/predict", {"value": n}).answer()
        assert (answer.status, answer.json()) == (200, n)
        assert "connection" not in answer.headers


def test_who_asks_for_the_end_of_the_connection_gets_it(wire):
    assert wire.post("/predict", {}, Connection="close").answer().headers["connection"] == "close"
    assert wire.ended()


def test_http_1_0_is_answered_and_closed_unless_asked_to_stay(shared):
    wire = shared.wire().send(b"GET /livez HTTP/1.0\r\n\r\n")
    assert wire.answer().status == 200
    assert wire.ended()
    wire = shared.wire()
    for _ in range(2):
        answer = wire.send(b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer()
        assert answer.headers["connection"] == "keep-alive"


def test_a_pipeline_is_answered_in_order_whatever_finishes_first(serve):
    server = serve(services=("two_workers",))
    wire = server.wire().send(
        b"".join(request("POST", "/predict", {"do": "nap", "seconds": 0.2 / (n + 1), "value": n}) for n in range(10))
        + request("GET", "/livez")
        + request("POST", "/predict", {"value": "x"})
        + request("POST", "/nowhere")
    )
    assert [wire.answer().json() for _ in range(10)] == list(range(10))
    assert [wire.answer().status for _ in range(3)] == [200, 422, 404]


def test_a_pipeline_longer_than_the_cap_is_answered_whole(wire):
    wire.send(b"".join(request("POST", "/predict", {"value": n}) for n in range(500)))
    assert [wire.answer().json() for _ in range(500)] == list(range(500))


@pytest.mark.smoke
def test_a_chunked_body_is_put_together(wire):
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head + b'1\r\n{\r\na;ext=1\r\n"value": 5\r\n')
    wire.send(b"1\r\n}\r\n0\r\nTrailer: x\r\n\r\n")
    assert wire.answer().json() == 5.0
    assert wire.post("/predict", {"value": 6}).answer().json() == 6.0


def test_a_request_may_come_a_byte_at_a_time(wire):
    for byte in request("POST", "/predict", {"value": 5}):
        wire.send(bytes([byte]))
    assert wire.answer().json() == 5.0


def test_a_client_that_expects_it_is_told_to_continue(wire):
    wire.send(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert wire.answer().status == 100
    assert wire.send(b"{}").answer().json() == 0.0


def test_a_client_that_expects_it_is_refused_before_it_sends_a_body(wire):
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    assert wire.send(head).answer().status == 413


@pytest.mark.parametrize("length", ["16777216", "16777217"])
def test_the_limit_of_a_body_is_16_mebibytes(shared, length):
    wire = shared.wire()
    wire.send(f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
    if length == "16777217":
        assert wire.answer().status == 413
    else:
        body = b'{"value": 1, "pad": "'
        wire.send(body + b"x" * (16777216 - len(body) - 2) + b'"}')
        assert wire.answer().json() == 1.0


def test_upgrade_is_ignored(wire):
    fields = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    wire.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
    assert wire.answer().status == 200
