"""What calls become, and what their answers mean: without a wire and without time."""

from __future__ import annotations

import msgspec
import pytest

from penstock.client.batch_call import BatchCall
from penstock.client.client_options import CallTerms, ClientOptions
from penstock.client.job_asking import Asking
from penstock.client.job_calls import Ended, JobCallMaker, id_of, may_lie_elsewhere, submitted_options
from penstock.client.making_calls import CallMaker
from penstock.client.replies import NoReply, Reply
from penstock.client.retry_rules import Retry
from penstock.client.single_call import Finished
from penstock.client.tries import Setback
from penstock.client.world import World, new_name
from penstock.errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidItem,
    JobFailed,
    JobNotFound,
    Overloaded,
    QuotaExceeded,
    ServerError,
    StageFailed,
)
from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import JobState

WALL = 1.7e9
LOST = NoReply(sent=True, detail="reset")


def maker(**options):
    ids = iter(f"r{n}" for n in range(1, 100))
    return CallMaker(ClientOptions(**options), World(new_id=lambda: next(ids), connect=lambda *_: None))


def job_calls(**options):
    return JobCallMaker(maker(**options), 30.0)


def reply(status, value, content_type="application/json", **headers):
    names = {name.replace("_", "-"): told for name, told in headers.items()}
    return Reply(status, {"content-type": content_type, **names}, msgspec.json.encode(value))


def refused(**headers):
    problem = {"type": "urn:penstock:problem:overloaded", "reason": "queue_full"}
    return reply(503, problem, "application/problem+json", **headers)


def outcomes(*answers):
    return reply(207, {"outcomes": list(answers)})


def item(kind, status, **members):
    return {"error": {"type": f"urn:penstock:problem:{kind}", "status": status, **members}}


# -- one item ---------------------------------------------------------------------------------------------------------


def test_a_call_of_one_item_has_all_that_was_asked_for():
    call = maker(api_key="k", tenant_header="X-Tenant", retry_non_idempotent=True).predict(
        5, CallTerms("rank", 1, "gold", 2.0, "mine")
    )
    head = call.head
    assert (head.method, head.path, head.request_id, head.timeout, head.urgency) == (
        "POST", "/rank/predict", "mine", 2.0, 1,
    )  # fmt: skip
    assert head.headers == {
        "user-agent": "penstock-client",
        "authorization": "Bearer k",
        "priority": "u=1",
        "x-tenant": "gold",
    }
    assert (head.harmless, head.flow_controlled, call.body().body) == (True, True, b"5")


def test_a_call_that_asks_for_nothing_has_the_clients_own():
    head = maker(timeout=7.0).predict(5, CallTerms()).head
    assert (head.path, head.request_id, head.timeout, head.urgency, head.harmless) == ("/predict", "r1", 7.0, 3, False)
    assert head.headers == {"user-agent": "penstock-client"}


def test_a_tenant_without_its_header_is_told():
    with pytest.raises(ConfigError, match="tenant_header"):
        maker().predict(5, CallTerms(tenant="gold"))


def test_a_success_is_its_value_and_one_that_cannot_be_read_is_final():
    call = maker(retry_non_idempotent=True).predict(5, CallTerms())
    assert call.take(reply(200, {"y": 1}), WALL) == Finished({"y": 1})
    setback = call.take(Reply(200, {"content-type": "text/html"}, b"<h1>"), WALL)
    assert (type(setback.error), setback.retry, setback.error.request_id) == (ServerError, Retry.NEVER, "r1")
    with pytest.raises(ServerError):
        call.give_up(setback.error)


def test_a_setback_has_what_the_server_said_of_another_try():
    call = maker().predict(5, CallTerms())
    setback = call.take(refused(x_should_retry="true", retry_after_ms="250"), WALL)
    assert (type(setback.error), setback.retry, setback.told, setback.is_refusal) == (
        Overloaded, Retry.ASKED, 0.25, True,
    )  # fmt: skip
    assert call.take(LOST, WALL).retry is Retry.NEVER
    assert call.take(LOST, WALL).told is None


def test_health_waits_for_nobody_and_is_an_object():
    call = maker().health()
    assert (call.head.method, call.head.path, call.head.flow_controlled, call.body()) == ("GET", "/health", False, None)
    assert call.take(LOST, WALL).retry is Retry.UNASKED
    assert call.take(reply(200, {"state": "ready"}), WALL) == Finished({"state": "ready"})
    assert isinstance(call.take(reply(200, [1]), WALL), Setback)


# -- many items -------------------------------------------------------------------------------------------------------


def batch(*items, **options):
    (call,) = maker(**options).predict_many(items, CallTerms(), 256, keep_going=True)
    return call


def test_chunks_have_ids_of_their_own():
    calls = maker().predict_many(range(5), CallTerms(), 2, keep_going=False)
    assert [(call.head.request_id, call.body().body) for call in calls] == [
        ("r1-0", b"[0,1]"),
        ("r1-1", b"[2,3]"),
        ("r1-2", b"[4]"),
    ]
    assert maker().predict_many([], CallTerms(), 2, keep_going=False) == []


@pytest.mark.parametrize("chunk", [0, -1, True, 2.0, None])
def test_a_chunk_is_a_number_of_items(chunk):
    with pytest.raises(ConfigError, match="chunk must be"):
        maker().predict_many([1], CallTerms(), chunk, keep_going=False)


def test_an_item_that_cannot_be_written_is_raised_or_stands_in_its_place_and_is_not_sent():
    with pytest.raises(InvalidItem):
        maker().predict_many([1, object()], CallTerms(), 256, keep_going=False)
    call = batch(1, object(), 3)
    assert call.body().body == b"[1,3]"
    (one, wrong, three) = call.take(outcomes({"result": 10}, {"result": 30}), WALL).value
    assert (one, type(wrong), three) == (10, InvalidItem, 30)
    assert batch(1).unsendable is None
    (only,) = batch(object()).unsendable
    assert isinstance(only, InvalidItem)


def test_only_what_may_be_retried_is_open_after_a_try():
    call = batch(1, 2, 3, 4)
    setback = call.take(
        outcomes(
            {"result": 10},
            item("overloaded", 503, reason="memory_budget", retry_after=1, retry_after_ms=300),
            item("stage-failed", 500),
            item("not-ready", 503, retry_after=2),
        ),
        WALL,
    )
    assert (setback.retry, setback.told, setback.is_refusal, type(setback.error)) == (
        Retry.ASKED, 2.0, True, Overloaded,
    )  # fmt: skip
    assert call.body().body == b"[2,4]"
    answers = call.take(outcomes({"result": 20}, {"result": None}), WALL).value
    assert (answers[0], answers[1], type(answers[2]), answers[3]) == (10, 20, StageFailed, None)


def test_a_quota_of_items_is_no_refusal():
    setback = batch(1).take(outcomes(item("quota-exceeded", 429, retry_after=1)), WALL)
    assert (type(setback.error), setback.is_refusal) == (QuotaExceeded, False)


def test_faults_of_items_are_sent_again_where_that_does_no_harm():
    call = batch(1, 2, retry_non_idempotent=True)
    setback = call.take(outcomes(item("worker-lost", 500), item("invalid-item", 422)), WALL)
    assert (setback.retry, setback.told, call.body().body) == (Retry.UNASKED, None, b"[1]")


def test_an_error_that_is_no_problem_is_as_none():
    (call,) = maker().predict_many([1, 2], CallTerms(), 10, keep_going=True)
    outcomes = [{"result": 10, "error": "none"}, {"result": 20, "error": None}]
    assert call.take(reply(200, {"outcomes": outcomes}), WALL) == Finished([10, 20])


def test_giving_up_leaves_each_item_its_own_error_or_gives_all_that_are_open_one():
    call = batch(1, 2, 3)
    busy = item("overloaded", 503, reason="memory_budget", retry_after=1)
    setback = call.take(outcomes({"result": 10}, busy, item("not-ready", 503, retry_after=1)), WALL)
    one, two, three = call.give_up(setback.error)
    assert (one, type(two).__name__, type(three).__name__) == (10, "Overloaded", "NotReady")
    late = DeadlineExceeded()
    assert call.give_up(late) == [10, late, late]


def test_a_whole_answer_that_is_no_success_leaves_all_open():
    call = batch(1, 2)
    assert call.take(refused(x_should_retry="true"), WALL).retry is Retry.ASKED
    assert call.take(LOST, WALL).retry is Retry.NEVER
    assert call.take(outcomes({"result": 1}), WALL).retry is Retry.NEVER
    assert call.body().body == b"[1,2]"


def test_a_batch_is_never_asked_for_the_bytes_of_what_could_not_be_written():
    call = BatchCall(batch(1).head, [InvalidItem()], batch(1)._codec)
    with pytest.raises(AssertionError):
        call._written(0)


# -- jobs -------------------------------------------------------------------------------------------------------------


def job(state="queued", **more):
    return {"id": "j1", "queue": "q", "state": state, "created_at": 1.0, **more}


def test_a_job_is_submitted_with_its_options_in_the_query():
    options = submitted_options(priority=0, delay=1.5, service="", id="a.b", deadline=1.7e9 + 0.25, accept=None)
    call = job_calls().submit({"x": 1}, options, "k1")
    assert call.head.path == "/jobs?delay=1.5&id=a.b&deadline=1700000000.25"
    assert call.head.headers["idempotency-key"] == "k1"
    assert (call.head.harmless, call.head.flow_controlled) == (True, True)
    assert (call.body().body, call.body().content_type) == (b'{"x":1}', "application/json")
    assert call.take(reply(202, job()), WALL).value.state is JobState.QUEUED


def test_a_key_that_no_header_carries_stands_in_the_query():
    for key, told in (("b\u00fc&ch", "b%C3%BC%26ch"), (" k", "%20k"), ("a\nb", "a%0Ab")):
        call = job_calls().submit(1, {}, key)
        assert call.head.path == f"/jobs?key={told}"
        assert "idempotency-key" not in call.head.headers


def test_a_key_that_is_no_text_is_told():
    with pytest.raises(ConfigError, match="key must be a str, got 7"):
        job_calls().submit(1, {}, 7)


def test_an_input_elsewhere_has_no_body_and_may_have_a_type():
    call = job_calls().submit(msgspec.UNSET, {"input_url": "s3://b/a", "content_type": "audio/wav"}, "k1")
    assert (call.body(), call.head.path) == (None, "/jobs?input_url=s3%3A%2F%2Fb%2Fa")
    assert call.head.headers["content-type"] == "audio/wav"


def test_a_content_type_says_how_the_input_is_written():
    call = job_calls().submit([1], {"content_type": "application/msgpack"}, "k1")
    assert (call.body().body, call.body().content_type) == (b"\x91\x01", "application/msgpack")
    assert "content-type" not in call.head.headers
    for wrong in (5, "\u00e4", "a/b\nc", "a/b "):
        with pytest.raises(ConfigError, match="content_type must be"):
            job_calls().submit(b"1", {"content_type": wrong}, "k1")


def test_a_job_is_named_by_itself_or_by_its_id():
    found = msgspec.convert(job(), Job)
    assert [id_of(found), id_of("j1")] == ["j1", "j1"]
    for nothing in ("", None, 5):
        with pytest.raises(ConfigError, match="expected a Job or its id"):
            id_of(nothing)
    for none in ("a/b", "..", ".", "a?b", "a" * 129):
        with pytest.raises(JobNotFound):
            id_of(none)


@pytest.mark.parametrize(("verb", "method"), [("get", "GET"), ("cancel", "DELETE")])
def test_a_job_is_read_or_the_answer_is_no_answer(verb, method):
    call = getattr(job_calls(), verb)("j1")
    assert (call.head.method, call.head.path, call.body()) == (method, "/jobs/j1", None)
    assert call.take(reply(200, job("running")), WALL).value.id == "j1"
    deep = b'{"x":' + b"[" * 100_000
    texts = (b'{"id":"j1"}', msgspec.json.encode(job("eaten")), b"{", b'"\xff"', deep)
    for wrong in (Reply(200, {}, text) for text in texts):
        setback = call.take(wrong, WALL)
        assert (type(setback.error), setback.retry) == (ServerError, Retry.NEVER)


def test_an_ask_is_a_result_or_a_job_and_a_jobs_own_end_is_final():
    call = job_calls().ask("j1", 12.5)
    assert (call.head.path, call.head.timeout, call.head.flow_controlled) == (
        "/jobs/j1/result?wait=12.500",
        42.5,
        False,
    )
    assert call.take(reply(202, job()), WALL).value.id == "j1"
    assert call.take(reply(200, [1]), WALL).value == Ended([1])
    assert call.take(Reply(200, {"content-type": "audio/wav"}, b"RIFF"), WALL).value == Ended(b"RIFF")
    dead = call.take(reply(500, {"type": "urn:penstock:problem:job-failed"}, "application/problem+json"), WALL)
    assert (type(dead.error), dead.retry) == (JobFailed, Retry.NEVER)
    assert call.take(reply(500, {}), WALL).retry is Retry.UNASKED


@pytest.mark.parametrize(
    ("result", "may"),
    [
        ({"output_url": "s3://b/a"}, True),
        ({"output_url": 5}, False),
        ({"output_url": "x", "y": 1}, False),
        ([1], False),
    ],
)
def test_a_result_that_may_be_a_place_is_seen(result, may):
    assert may_lie_elsewhere(result) is may


def test_names_are_never_the_same():
    assert len({new_name() for _ in range(100)}) == 100


# -- asking -----------------------------------------------------------------------------------------------------------


def test_an_ask_waits_for_what_is_left_and_at_most_twenty_seconds():
    asking = Asking(50.0, 100.0)
    assert [asking.wait_seconds(now) for now in (100.0, 130.0, 131.0, 150.0, 151.0)] == [20.0, 20.0, 19.0, 0.0, 0.0]
    assert [asking.deadline(now) for now in (100.0, 149.0, 150.0)] == [150.0, 150.0, None]


def test_without_a_timeout_an_ask_has_the_limit_of_a_call():
    asking = Asking(None, 100.0)
    assert (asking.wait_seconds(1e9), asking.deadline(1e9), asking.pause_seconds(20.0, 20.0, 1e9)) == (20.0, None, 0.0)


def test_a_timeout_of_0_asks_once():
    asking = Asking(0, 100.0)
    assert (asking.wait_seconds(100.0), asking.deadline(100.0), asking.pause_seconds(0.0, 0.0, 100.0)) == (
        0,
        None,
        None,
    )


def test_answers_that_come_too_soon_are_followed_by_longer_and_longer_pauses():
    asking = Asking(1000.0, 0.0)
    assert [asking.pause_seconds(20.0, 0.1, 0.0) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert [asking.pause_seconds(20.0, took, 0.0) for took in (10.0, 0.1)] == [0.0, 0.5]
    assert asking.pause_seconds(20.0, 0.1, 999.75) == 0.25


@pytest.mark.parametrize("timeout", [-1, "5", True, float("nan")])
def test_a_timeout_is_a_number_of_seconds_or_none(timeout):
    with pytest.raises(ConfigError, match="timeout must be at least 0"):
        Asking(timeout, 0.0)
