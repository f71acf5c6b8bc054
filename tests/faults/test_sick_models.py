"""Models that hang, that fail on bad input and that fail on everything: what each does to those who ask for good."""

from __future__ import annotations

import re

import pytest
from served import serving

SOURCE = """
import threading
import time

import penstock as ps

lock = threading.Lock()
lock.acquire()


class Model(ps.Stage):
    def predict(self, x: float) -> float:
        if x == -1:
            lock.acquire()
        if x == -2:
            sum(range(10**12))  # keeps the interpreter, for minutes
        return 1 / x


class Knowing(Model):
    examples = (1.0,)


def broken(x: float) -> float:
    raise RuntimeError(f"CUDA error: device-side assert at {x}")


def echo(x: float) -> float:
    return x


hangs = ps.Service(ps.stage(Model, orphan_timeout=2.0), name="hangs")
zero = ps.Service(Knowing, name="zero")
plain = ps.Service(Model, name="plain")
sick = ps.Service(ps.stage(broken, unhealthy_after=0), name="sick")
two = ps.Service(ps.stage(echo, name="first"), ps.stage(broken, unhealthy_after=0), name="two")
beside = ps.Service(echo, name="beside")
"""


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(service, *flags):
        started.append(serving(tmp_path, *flags, source=SOURCE, services=(service, "beside")))
        return started[-1].__enter__()

    yield start
    for server in started:
        server.__exit__(None, None, None)


def ask(server, service, item, **headers):
    """The status of one request."""
    return server.http.post(f"/{service}/predict", json=item, headers=headers).status_code


def worker(server, service):
    """The one worker of a service as `/health` tells it."""
    (stage,) = server.health()["services"][service]["stages"].values()
    return stage["workers"][0]


def metric(server, name, service):
    found = re.search(rf'^{name}{{service="{service}",[^}}]*}} (\S+)$', server.http.get("/metrics").text, re.MULTILINE)
    return float(found[1])


@pytest.mark.parametrize("item", [-1.0, -2.0])
def test_a_batch_that_runs_on_for_nobody_does_not_take_the_worker_with_it(serve, item):
    server = serve("hangs", "--timeout", "10")
    before = worker(server, "hangs")
    assert (before["state"], before["busy_seconds"]) == ("idle", None)
    assert ask(server, "hangs", item, **{"x-request-timeout": "0.5"}) == 504
    during = worker(server, "hangs")
    assert during["state"] == "busy"
    # It counts from when the batch was sent, which may be later than the request came.
    server.until(lambda: worker(server, "hangs")["busy_seconds"] >= 0.5, "it to be busy for as long as it was asked")
    assert ask(server, "beside", 7) == 200
    assert ask(server, "hangs", 4) == 200, "it waited for the worker that came next"
    assert worker(server, "hangs")["pid"] != before["pid"]
    assert metric(server, "penstock_stage_orphan_kills_total", "hangs") == 1
    for least, line in (
        (1.0, "it has been running an abandoned batch; it keeps running"),
        (2.0, ".*; the worker is killed"),
    ):
        told = server.wait_for(rf'for (\d+\.\d) s {line}.*\n(?s:.)*?model\.py", line \d+ in predict\n')
        assert float(told[1]) >= least


def test_five_bad_requests_in_a_row_cost_nobody_a_restart(serve):
    server = serve("zero")
    pid = worker(server, "zero")["pid"]
    for _ in range(4):
        for _ in range(5):
            assert ask(server, "zero", 0) == 500
        assert ask(server, "zero", 4) == 200
    assert worker(server, "zero")["pid"] == pid
    assert metric(server, "penstock_stage_worker_unhealthy_restarts_total", "zero") == 0
    assert metric(server, "penstock_stage_batches_total", "zero") == 24, "an example is no batch of a client's"


def test_five_bad_requests_in_a_row_cost_nobody_a_restart_without_an_example_either(serve):
    server = serve("plain")
    pid = worker(server, "plain")["pid"]
    for _ in range(12):
        assert ask(server, "plain", 0) == 500
    assert ask(server, "plain", 4) == 200
    assert worker(server, "plain")["pid"] == pid


@pytest.mark.parametrize("service", ["sick", "two"])
def test_a_model_that_fails_on_everything_leaves_the_rotation(serve, service):
    server = serve(service)
    answers = []

    def failed():
        answers.append(server.http.post(f"/{service}/predict", json=len(answers)))
        assert ask(server, "beside", 7) == 200
        return server.http.get("/readyz").status_code == 503

    server.until(failed, limit=20)
    assert {answer.status_code for answer in answers} <= {500, 503}
    assert 15 <= sum(answer.status_code == 500 for answer in answers) <= 40
    readyz = server.http.get("/readyz").json()
    assert readyz["state"] == "failed"
    assert "RuntimeError: CUDA error: device-side assert" in readyz["detail"]
    refused = server.http.post(f"/{service}/predict", json=1)
    assert refused.status_code == 503
    assert 15 < int(refused.headers["retry-after"]) == refused.json()["retry_after"] <= 30, "of a rest of 30 s"
    assert 15 < readyz["retry_after"] <= 30
    assert "CUDA error" in refused.json()["detail"]
    told = {name: stage["retry_in_seconds"] for name, stage in server.health()["services"][service]["stages"].items()}
    assert 15 < told.pop("broken") <= 30
    assert set(told.values()) <= {None}, "another stage does not rest"
    assert server.http.get("/livez").status_code == 200
    server.wait_for("next attempt in 30 s")
