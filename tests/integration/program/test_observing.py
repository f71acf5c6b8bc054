"""What operators see: health while everything computes, metrics that add up, documents that hold."""

from __future__ import annotations

import os
import re
import signal
from html.parser import HTMLParser

import pytest

PROBES = ("/livez", "/readyz", "/health", "/metrics")


def test_probes_are_answered_while_every_worker_computes(serve):
    server = serve(services=("two_workers",))
    busy = [server.wire().post("/predict", {"do": "spin", "value": n}) for n in range(2)]
    pending = [server.wire().post("/predict", {"value": n}) for n in range(20)]
    ran = server.folder / "ran"
    server.until(lambda: ran.exists() and len(ran.read_text().split()) == 2, "both workers to compute")
    for path in PROBES * 20:
        assert server.http.get(path).status_code == 200
    states = [worker["state"] for worker in server.health()["services"]["pairs"]["stages"]["Obey"]["workers"]]
    assert states == ["busy", "busy"], "they were to compute all the while"
    server.open_gate()
    assert [wire.answer().json() for wire in busy + pending] == [0.0, 1.0, *map(float, range(20))]


@pytest.mark.smoke
def test_health_tells_the_state_of_every_part(serve):
    server = serve(services=("two_stages", "batched"))
    held = server.wire().post("/chain/predict", {"do": "hold"})
    server.until(lambda: server.health()["services"]["chain"]["in_flight"] == 1)
    health = server.health()
    assert health["state"] == "ready"
    assert health["version"]
    assert health["uptime"] > 0
    chain, batched = health["services"]["chain"], health["services"]["batched"]
    assert (chain["queued"], batched["queued"]) == (1, 0)
    assert chain["bytes"] > 0
    assert list(chain["stages"]) == ["Obey", "AddHundred"]
    worker = chain["stages"]["Obey"]["workers"][0]
    assert (worker["index"], worker["state"], worker["restarts"]) == (0, "busy", 0)
    assert worker["pid"] in server.survivors()
    server.open_gate()
    assert held.answer().json() == 100.0


def test_a_worker_that_was_stopped_stalls_its_service_until_it_goes_on(serve):
    server = serve("--progress-deadline", "0.3", "--liveness-deadline", "1.5", "--health-path", "/health_check")
    (worker,) = server.health()["services"]["orders"]["stages"]["Obey"]["workers"]
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        first = server.wire().post("/predict", {"value": 1})
        server.until(lambda: server.health()["state"] == "stalled")
        unready = server.http.get("/readyz")
        assert (unready.status_code, unready.json()["state"]) == (503, "stalled")
        told = r"orders is stalled: stage 'Obey' has work but has completed nothing for \d+ s"
        assert re.fullmatch(told, unready.json()["detail"])
        found = server.http.get("/health_check")
        assert (found.status_code, found.json()) == (503, {"status": "failed"})
        assert server.metric("penstock_stage_progress_age_seconds") >= 0.3
        assert server.metric("penstock_state", state="stalled") == 1
        second = server.wire().post("/predict", {"value": 2})
        server.until(
            lambda: server.health()["services"]["orders"]["queued"] == 2, "what comes to be taken all the same"
        )
        server.until(lambda: server.http.get("/livez").status_code == 503)
        server.wait_for("stage 'Obey' has stalled: it has work but has completed nothing for")
    finally:
        os.kill(worker["pid"], signal.SIGCONT)
    assert (first.answer().json(), second.answer().json()) == (1.0, 2.0)
    server.wait_for("stage 'Obey' is no longer stalled: a batch completed")
    assert server.http.get("/readyz").json() == {"state": "ready"}
    assert server.http.get("/livez").status_code == 200
    assert server.metric("penstock_stage_progress_age_seconds") == 0


# -- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_metrics_of_known_traffic_are_the_right_numbers(serve):
    server = serve("--max-in-flight", "8", services=("batched",))
    metric, wire = server.metric, server.wire

    held = wire().post("/predict", {"do": "hold"})  # a batch of one, because it found an idle worker
    server.until((server.folder / "ran").exists)
    four = [wire().post("/predict", {"value": n}) for n in range(4)]  # a full batch, prefetched
    server.until(lambda: metric("penstock_stage_in_flight_items") == 5)
    late = wire().post("/predict", {"value": 9}, X_Request_Timeout="5")
    leaver = wire().post("/predict", {"value": 9})
    pair = wire().post("/batch", [{"value": 5}])
    server.until(lambda: metric("penstock_items_in_flight") == 8)
    assert metric("penstock_items_in_flight_limit") == 8
    assert wire().post("/predict", {"value": 9}).answer().status == 503
    assert late.answer().status == 503
    leaver.close()
    server.until(lambda: metric("penstock_items_in_flight") == 6)
    assert metric("penstock_stage_queued_items") == 1
    server.open_gate()
    assert [sent.answer().status for sent in (held, *four, pair)] == [200] * 6

    culprit = [{"do": "raise"}, {"value": 1}]
    assert wire().post("/batch", culprit).answer().status == 207  # one batch of two, bisected
    assert wire().post("/predict", {"value": "x"}).answer().status == 422
    assert wire().post("/predict", {"do": "die"}).answer().status == 500  # two deaths
    server.until(lambda: metric("penstock_stage_workers_up") == 1)
    assert wire().post("/predict", {"value": 1}).answer().status == 200
    assert wire().post("/nowhere", {}).answer().status == 404
    assert wire().send(b"nonsense\r\n\r\n").answer().status == 400

    requests = {
        (route, status): metric("penstock_http_requests_total", service="batched", route=route, status=status)
        for route, status in [
            ("/predict", "200"), ("/predict", "503"), ("/predict", "499"), ("/predict", "422"), ("/predict", "500"),
            ("/batch", "200"), ("/batch", "207"),
        ]
    }  # fmt: skip
    assert list(requests.values()) == [6, 2, 1, 1, 1, 1, 1]
    assert metric("penstock_http_request_seconds_count", route="/predict") == 11
    assert metric("penstock_http_requests_total", service="", status="404") == 1
    assert metric("penstock_http_requests_total", service="", status="400") == 1

    assert metric("penstock_items_accepted_total") == 13
    assert metric("penstock_items_rejected_total") == 1
    assert {
        ending: metric("penstock_items_ended_total", ending=ending)
        for ending in ("succeeded", "failed", "invalid", "expired", "cancelled", "worker_lost", "aborted")
    } == {
        "succeeded": 8, "failed": 1, "invalid": 1, "expired": 1, "cancelled": 1, "worker_lost": 1, "aborted": 0,
    }  # fmt: skip

    # held (1), four (4), pair (1), the culprit's two (2), invalid (1), the deadly one (1 and 1), the last one (1)
    assert metric("penstock_stage_batches_total") == metric("penstock_stage_batch_items_count") == 8
    assert metric("penstock_stage_batch_items_sum") == metric("penstock_stage_queue_seconds_count") == 12
    assert [metric("penstock_stage_batch_items_bucket", le=bound) for bound in ("1.0", "2.0", "4.0")] == [6, 7, 8]
    reasons = ("full", "idle", "bulk", "retry", "timeout", "idle_gap", "deadline", "drain")
    assert [metric("penstock_stage_batches_closed_total", reason=reason) for reason in reasons] == [
        1,
        4,
        2,
        1,
        0,
        0,
        0,
        0,
    ]
    assert metric("penstock_stage_bisected_batches_total") == 1
    assert metric("penstock_stage_retried_items_total") == 1
    assert metric("penstock_stage_worker_restarts_total") == 2
    assert metric("penstock_stage_run_seconds_count") == 6
    assert metric("penstock_items_in_flight") == metric("penstock_reserved_bytes") == 0
    assert metric("penstock_stage_workers", state="idle") == 1


# -- documents ----------------------------------------------------------------------------------------------------


def test_the_document_is_openapi_3_1_and_every_path_of_it_is_served(shared):
    answer = shared.http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["title"]
    assert document["info"]["version"]
    assert {"/predict", "/batch"} <= document["paths"].keys()
    for path, methods in document["paths"].items():
        for method in methods.keys() & {"get", "post"}:
            assert shared.http.request(method.upper(), path, json=[] if path == "/batch" else {}).status_code == 200
            assert methods[method]["responses"]
    order = document["components"]["schemas"]["Order"]
    assert set(order["properties"]) == {"do", "value", "seconds"}


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href")]


def test_the_page_of_the_document_and_all_it_needs_come_from_this_server(shared):
    page = shared.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    links = Links()
    links.feed(page.text)
    assert len(links.found) == 5
    for link in links.found:
        assert "//" not in link
        asset = shared.http.get(f"/{link}")
        assert asset.status_code == 200
        assert len(asset.content) > 50
    assert "openapi.json" in shared.http.get("/docs/start.js").text
