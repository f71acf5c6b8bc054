"""`/metrics` tells, in text that Prometheus reads, what the plain counters hold."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from penstock.core.counters import INLINE_REASONS, StageCounters
from penstock.core.series import SeriesCounts
from penstock.core.state import State, WorkerState
from penstock.errors import REFUSAL_REASONS
from penstock.hosting.build import is_compiled


def scrape(fakes, app, accept="", **headers):
    call = fakes.call(app, "GET", "/metrics", accept=accept, **headers)
    assert call.status == 200
    read = read_openmetrics if b"openmetrics" in call.response.content_type else read_prometheus
    return {family.name: family for family in read(call.response.body.decode())}


def value(families, sample, **labels):
    """The one sample of that name with those labels among all of its own."""
    found = [
        s.value for f in families.values() for s in f.samples if s.name == sample and labels.items() <= s.labels.items()
    ]
    assert len(found) == 1, (sample, labels, found)
    return found[0]


def names_of(counters):
    """The attributes of `counters`, on the sources and compiled alike."""
    names = [name for name in dir(counters) if not name.startswith("_")]
    assert names
    return names


def test_requests_are_counted_by_service_route_and_status(fakes):
    app = fakes.app(fakes.Service(name="one"), fakes.Service(name="two"))
    for path, status in (("/one/predict", 200), ("/one/predict", 200), ("/two/batch", 207), ("/nowhere", 404)):
        app.answered(fakes.call(app, path=path, body=b"[]").request, status, 1)
    app.refuse(503, "too many connections")
    found = scrape(fakes, app)
    count = "penstock_http_requests_total"
    assert value(found, count, service="one", route="/one/predict", status="200") == 2
    assert value(found, count, service="two", route="/two/batch", status="207") == 1
    assert value(found, count, service="", route="", status="404") == 1
    assert value(found, count, service="", route="", status="503") == 1


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (415, "POST", {"content_type": "text/html"}),
        (406, "POST", {"accept": "text/html"}),
        (400, "POST", {"x_request_timeout": "x"}),
        (405, "GET", {}),
        (401, "POST", {"x_api_key": "wrong"}),
    ],
)
def test_a_refusal_at_the_head_is_counted_by_its_route(fakes, tmp_path, status, method, headers):
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    app = fakes.app(api_key_file=str(keys))
    call = fakes.call(app, method, **{"x_api_key": "right"} | headers)
    assert call.status == status
    app.answered(call.request, call.status, 1)
    requests = scrape(fakes, app, x_api_key="right")["penstock_http_requests"]
    found = [(s.labels["service"], s.labels["route"], s.labels["status"]) for s in requests.samples]
    assert found == [("echo", "/predict", str(status))]


def test_latency_is_a_histogram_of_seconds_since_arrival(fakes):
    app = fakes.app(clock=fakes.StillClock(1000.0))  # a moment without the CPU would count as latency
    call = fakes.call(app)
    call.request.arrived -= 0.2
    app.answered(call.request, 200, 1)
    app.answered(fakes.call(app).request, 200, 1)
    found = scrape(fakes, app)
    bucket = "penstock_http_request_seconds_bucket"
    assert value(found, bucket, route="/predict", le="0.1") == 1
    assert value(found, bucket, route="/predict", le="0.5") == 2
    assert value(found, bucket, route="/predict", le="+Inf") == 2
    assert value(found, "penstock_http_request_seconds_count", route="/predict") == 2
    assert 0.2 <= value(found, "penstock_http_request_seconds_sum", route="/predict") < 2


def test_connections_stand_beside_their_limit_where_there_is_a_listener(fakes):
    app = fakes.app()
    assert "penstock_connections" not in scrape(fakes, app)
    listener = SimpleNamespace(connections=3, most_connections=10, certificate_expires=None)
    app.metrics.watch(listener)
    for number in (3, 12):
        listener.connections = number
        found = scrape(fakes, app)
        assert value(found, "penstock_connections") == number
        assert value(found, "penstock_connections_limit") == 10


def test_the_date_of_a_certificate_is_told_where_it_is_known(fakes):
    app = fakes.app()
    listener = SimpleNamespace(connections=0, most_connections=10, certificate_expires=None)
    app.metrics.watch(listener)
    name = "penstock_tls_certificate_expires_timestamp_seconds"
    assert not scrape(fakes, app)[name].samples
    listener.certificate_expires = 1797927803.0
    assert value(scrape(fakes, app), name) == 1797927803


def test_items_are_counted_by_their_ending(fakes):
    service = fakes.Service()
    counters = service.engine.counters
    for number, name in enumerate(names_of(counters), 1):
        setattr(counters, name, number * 11)
    found = scrape(fakes, fakes.app(service))
    assert value(found, "penstock_items_accepted_total", service="echo") == counters.accepted
    for reason in (*REFUSAL_REASONS, "not_ready"):
        refused = value(found, "penstock_items_rejected_total", service="echo", reason=reason)
        assert refused == getattr(counters, f"rejected_{reason}")
    for ending in ("succeeded", "failed", "invalid", "expired", "cancelled", "worker_lost", "aborted", "preempted"):
        assert value(found, "penstock_items_ended_total", ending=ending) == getattr(counters, ending)


def test_bounds_stand_beside_what_they_bound(fakes):
    service = fakes.Service(max_in_flight=7, max_queued_bytes=70)
    service.engine.queued, service.engine.held_bytes, service.engine.answer_bytes = 5, 50, 20
    service.engine.backlog_seconds = 2.5
    found = scrape(fakes, fakes.app(service))
    assert value(found, "penstock_items_in_flight") == 5
    assert value(found, "penstock_backlog_seconds", service="echo") == 2.5
    assert value(found, "penstock_items_in_flight_limit") == 7
    assert value(found, "penstock_reserved_bytes") == 50
    assert value(found, "penstock_unsent_response_bytes") == 20
    assert value(found, "penstock_reserved_bytes_limit") == 70


def test_available_memory_is_told_of_services_that_look_at_it(fakes):
    watching, other = fakes.Service(name="watching"), fakes.Service(name="other")
    assert "penstock_memory_available_bytes" not in scrape(fakes, fakes.app(watching, other))
    watching.engine.memory_available = 4096
    found = scrape(fakes, fakes.app(watching, other))["penstock_memory_available_bytes"]
    assert [(sample.labels, sample.value) for sample in found.samples] == [({"service": "watching"}, 4096)]


def test_each_shared_memory_tells_its_size_and_what_is_used_of_it(fakes):
    service, other = fakes.Service(name="ours"), fakes.Service(name="other")
    service.engine.slabs = [
        SimpleNamespace(name="arrivals", nbytes=40960, used_bytes=8192, kept_bytes=4096),
        SimpleNamespace(name="embed", nbytes=20480, used_bytes=0, kept_bytes=0),
    ]
    service.engine.inline_reasons = dict.fromkeys(INLINE_REASONS, 0) | {"full": 3, "chunked": 1}
    found = scrape(fakes, fakes.app(service, other))
    for name, arrivals, embed in (("", 40960, 20480), ("used_", 8192, 0), ("retained_", 4096, 0)):
        samples = found[f"penstock_shm_{name}bytes"].samples
        assert [(s.labels, s.value) for s in samples] == [
            ({"service": "ours", "memory": "arrivals"}, arrivals),
            ({"service": "ours", "memory": "embed"}, embed),
        ]
    inline = found["penstock_shm_fallbacks"].samples
    assert {s.labels["reason"]: s.value for s in inline} == {
        "full": 3,
        "kept": 0,
        "chunked": 1,
        "moved": 0,
        "waiting": 0,
    }
    assert {(s.name, s.labels["service"]) for s in inline} == {("penstock_shm_fallbacks_total", "ours")}


@pytest.mark.parametrize("state", State)
def test_exactly_one_state_is_1(fakes, state):
    service = fakes.Service()
    service.engine.state = state
    samples = scrape(fakes, fakes.app(service))["penstock_state"].samples
    assert {s.labels["state"]: s.value for s in samples} == {s.value: float(s is state) for s in State}


def test_a_stage_shows_its_queue_and_its_workers(fakes):
    service = fakes.Service()
    (stage,) = service.engine.stages
    worker = stage.workers[0]
    states = (WorkerState.IDLE, WorkerState.BUSY, WorkerState.BUSY, WorkerState.DOWN)
    stage.workers = [type(worker)(**vars(worker) | {"state": state}) for state in states]
    found = scrape(fakes, fakes.app(service))
    assert value(found, "penstock_stage_queued_items", stage="echo") == 3
    assert value(found, "penstock_stage_in_flight_items", stage="echo") == 2
    assert value(found, "penstock_stage_progress_age_seconds", stage="echo") == 0.0
    assert value(found, "penstock_stage_last_batch_delay_seconds", stage="echo") == 0.004
    assert value(found, "penstock_stage_batch_delay_seconds_total", stage="echo") == 1.5
    assert value(found, "penstock_stage_workers_up", stage="echo") == 3
    counts = {"starting": 0, "idle": 1, "busy": 2, "down": 1}
    for state, count in counts.items():
        assert value(found, "penstock_stage_workers", stage="echo", state=state) == count


def test_device_memory_is_told_of_the_workers_that_have_told_of_theirs(fakes):
    service = fakes.Service(name="ours")
    (stage,) = service.engine.stages
    worker = stage.workers[0]
    told = (None, 1 << 30, 0)
    stage.workers = [type(worker)(**vars(worker) | {"index": i, "device_memory": told[i]}) for i in range(3)]
    found = scrape(fakes, fakes.app(service))["penstock_worker_device_memory_bytes"]
    assert [(sample.labels, sample.value) for sample in found.samples] == [
        ({"service": "ours", "stage": "echo", "worker": "1"}, 1 << 30),
        ({"service": "ours", "stage": "echo", "worker": "2"}, 0),
    ]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_what_stages_count_stands_in_one_family_whoever_counts_it(fakes, accept):
    one, two = fakes.Service(name="one"), fakes.Service(name="two")
    counted = one.engine.stages[0].counters.series
    counted.add(("user_hits", (("lang", 'e"n\n'), ("top", "1"))), 2.0)
    counted.add(("user_hits", (("lang", "de"), ("top", "1"))), 0.5)
    counted.add(("rows_fetched", (("table", "user"),)), 7.0)
    two.engine.stages[0].counters.series.add(("user_hits", ()), 1.0)
    found = scrape(fakes, fakes.app(one, two), accept)
    assert [(s.name, s.labels, s.value) for s in found["penstock_user_hits"].samples] == [
        ("penstock_user_hits_total", {"service": "one", "stage": "echo", "lang": 'e"n\n', "top": "1"}, 2.0),
        ("penstock_user_hits_total", {"service": "one", "stage": "echo", "lang": "de", "top": "1"}, 0.5),
        ("penstock_user_hits_total", {"service": "two", "stage": "echo"}, 1.0),
    ]
    assert value(found, "penstock_rows_fetched_total", service="one", stage="echo", table="user") == 7.0
    assert found["penstock_rows_missing"].samples == []


def test_every_batch_is_explained(fakes):
    service = fakes.Service()
    counters: StageCounters = service.engine.stages[0].counters
    counters.batches, counters.restarts, counters.unhealthy_restarts, counters.retried, counters.bisected = (
        1,
        2,
        3,
        4,
        5,
    )
    counters.orphan_kills = 8
    counters.batches_closed = {"full": 6, "idle": 7}
    counters.batch_size.add(8)
    counters.queue_seconds.add(0.003)
    counters.run_seconds.add(100.0)
    found = scrape(fakes, fakes.app(service))
    for name, number in {
        "batches": 1,
        "worker_restarts": 2,
        "worker_unhealthy_restarts": 3,
        "retried_items": 4,
        "bisected_batches": 5,
        "orphan_kills": 8,
    }.items():
        assert value(found, f"penstock_stage_{name}_total", stage="echo") == number
    assert value(found, "penstock_stage_batches_closed_total", reason="full") == 6
    assert value(found, "penstock_stage_batches_closed_total", reason="idle") == 7
    assert value(found, "penstock_stage_batch_items_bucket", le="4.0") == 0
    assert value(found, "penstock_stage_batch_items_bucket", le="8.0") == 1
    assert value(found, "penstock_stage_queue_seconds_sum") == 0.003
    assert value(found, "penstock_stage_run_seconds_bucket", le="60.0") == 0
    assert value(found, "penstock_stage_run_seconds_bucket", le="+Inf") == 1


def test_every_counter_of_the_engine_is_shown(fakes):
    """A counter that somebody adds and forgets here would be a number that nobody can see."""
    service = fakes.Service()
    engine = service.engine
    for counters in (engine.counters, engine.stages[0].counters):
        for number, name in enumerate(names_of(counters), 1001):
            held = getattr(counters, name)
            if isinstance(held, int):
                setattr(counters, name, number * 7 + id(counters) % 5)
            elif isinstance(held, dict):
                held["why"] = 424242
            elif isinstance(held, SeriesCounts):
                held.add(("user_hits", ()), 434343)
            else:
                held.total = number * 1.5
    shown = {s.value for f in scrape(fakes, fakes.app(service)).values() for s in f.samples}
    for counters in (engine.counters, engine.stages[0].counters):
        for name in set(names_of(counters)) - {"rejected"}:  # a sum, whose parts are shown
            held = getattr(counters, name)
            if isinstance(held, SeriesCounts):
                number = 434343
            else:
                number = held if isinstance(held, int) else 424242 if isinstance(held, dict) else held.total
            assert number in shown, name


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_no_name_can_break_the_text(fakes, accept):
    name = 'a"b\\c\nd{e}'
    service = fakes.Service(name=name)
    service.engine.stages[0].name = name
    service.engine.stages[0].counters.batches_closed = {name: 1}
    app = fakes.app(service)
    app.answered(fakes.call(app).request, 200, 1)
    found = scrape(fakes, app, accept)
    assert value(found, "penstock_stage_batches_closed_total", service=name, stage=name, reason=name) == 1
    assert value(found, "penstock_http_requests_total", service=name, route="/predict") == 1


def test_each_service_tells_its_version(fakes):
    service = fakes.Service(name="ours")
    service.version, service.model_version = "of-today", 7
    found = scrape(fakes, fakes.app(service, fakes.Service(name="other")))
    assert value(found, "penstock_service_info", service="ours", version="of-today", model_version="7") == 1
    assert value(found, "penstock_service_info", service="other", version="", model_version="") == 1


def test_a_service_without_an_engine_is_starting_and_breaks_nothing(fakes):
    found = scrape(fakes, fakes.app(fakes.Service(started=False)))
    assert value(found, "penstock_state", state="starting") == 1


def test_the_process_is_in_it_and_every_name_is_ours_and_explained(fakes):
    app = fakes.app()
    app.answered(fakes.call(app).request, 200, 1)
    found = scrape(fakes, app)
    assert value(found, "process_resident_memory_bytes") > 0
    assert value(found, "penstock_info", compiled="true" if is_compiled() else "false") == 1
    for family in found.values():
        assert re.fullmatch("(penstock|process)(_[a-z]+)*", family.name)
        assert len(family.documentation) > 10, family.name


def test_two_apps_in_one_process_do_not_share_numbers(fakes):
    one, two = fakes.app(), fakes.app()
    one.answered(fakes.call(one).request, 200, 1)
    assert "penstock_http_requests" in scrape(fakes, one)
    assert not scrape(fakes, two)["penstock_http_requests"].samples
