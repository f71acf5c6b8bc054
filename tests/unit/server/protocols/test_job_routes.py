"""`/jobs` over a queue in memory that does as each test says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from penstock.errors import (
    ConfigError,
    JobConflict,
    JobFailed,
    JobNotFound,
    QueueFull,
    StoreUnavailable,
    UnsupportedMediaType,
)
from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import JobState
from penstock.server.pages import jobs_document
from penstock.testing.virtual_clock import rest

JSON = b"application/json"


class FakePort:
    """Notes each call, and answers with `answers` by the name of the call; an exception there is raised."""

    def __init__(self, **answers):
        self.max_inline = 100
        self.calls = []
        self.answers = answers
        self.gate = None

    def schemas(self):
        return {"Job": {"type": "object", "title": "Job"}}

    def check(self, options):
        self.calls.append(("check", dict(options)))
        self._raise("check")

    def _raise(self, name):
        if isinstance(self.answers.get(name), Exception):
            raise self.answers[name]

    async def _call(self, name, *given):
        self.calls.append((name, *given))
        if self.gate is not None:
            await self.gate.wait()
        self._raise(name)
        return self.answers.get(name, shown())

    async def submit(self, body, options):
        return await self._call("submit", body, options)

    async def get(self, job_id, wait=0.0):
        return await self._call("get", job_id, wait)

    async def result(self, job_id):
        return await self._call("result", job_id)

    async def list_jobs(self, state, limit, after):
        return await self._call("list_jobs", state, limit, after)

    async def cancel(self, job_id):
        return await self._call("cancel", job_id)

    async def retry(self, job_id):
        return await self._call("retry", job_id)


def shown(*, ended=False):
    return SimpleNamespace(id="a", ended=ended, text=b'{"id":"a"}')


@pytest.fixture
def ask(fakes):
    """Sends a request to an app with a `FakePort`, and gives the call once it was answered."""

    async def send(port, method, path, body=b"", cors_allow_origin=(), **headers):
        call = fakes.call(fakes.app(jobs=port, cors_allow_origin=cors_allow_origin), method, path, body=body, **headers)
        if not call.refused:
            await rest()
        return call

    return send


async def test_a_body_is_submitted_with_the_options_of_the_query(ask):
    port = FakePort()
    call = await ask(port, "POST", "/jobs?priority=5&delay=2&service=s&input_url=s3%3A%2F%2Fb%2Fk", b"[1]",
                     content_type="application/json")  # fmt: skip
    options = {
        "priority": 5, "delay": 2.0, "service": "s", "input_url": "s3://b/k", "content_type": "application/json",
    }  # fmt: skip
    assert port.calls == [("check", options), ("submit", b"[1]", options)]
    assert (call.status, call.headers[b"location"], call.json) == (202, b"/jobs/a", {"id": "a"})


async def test_the_header_names_a_key_as_the_query_does(ask):
    port = FakePort()
    await ask(port, "POST", "/jobs", idempotency_key="k")
    await ask(port, "POST", "/jobs?key=k", idempotency_key="k")
    assert [call[1] for call in port.calls if call[0] == "check"] == [{"key": "k"}, {"key": "k"}]
    call = await ask(port, "POST", "/jobs?key=other", idempotency_key="k")
    assert (call.status, call.refused) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/jobs?prioritx=5", "did you mean 'priority'"),
        ("POST", "/jobs?key=a&key=b", "repeated"),
        ("GET", "/jobs?limit=0", "limit must be from 1 to 1000"),
        ("GET", "/jobs?limit=1001", "limit"),
        ("GET", "/jobs/a?wait=1", "unknown parameter 'wait'"),
        ("GET", "/jobs/a/result?wait=61", "wait must be 0 to 60 seconds"),
        ("GET", "/jobs/a/result?wait=-1", "wait"),
        ("GET", "/jobs/a/result?wait=nan", "must be a number"),
        ("DELETE", "/jobs/a?force=1", "this path has no parameters"),
        ("POST", "/jobs/a/retry?x", "this path has no parameters"),
    ],
)
async def test_a_query_that_is_wrong_is_refused_by_the_head(ask, method, path, words):
    port = FakePort()
    call = await ask(port, method, path)
    assert (call.status, call.refused, port.calls) == (400, True, [])
    assert words in call.json["detail"]


async def test_what_the_queue_does_not_take_is_refused_before_the_body(ask):
    call = await ask(FakePort(check=UnsupportedMediaType("no such format")), "POST", "/jobs", content_type="audio/wav")
    assert (call.status, call.refused) == (415, True)
    call = await ask(FakePort(check=ConfigError("which service?")), "POST", "/jobs")
    assert (call.status, call.json["detail"]) == (400, "which service?")


async def test_an_input_that_is_too_large_is_refused_by_its_length_and_as_it_comes(fakes, ask):
    port = FakePort()
    call = await ask(port, "POST", "/jobs", content_length="101")
    assert (call.status, call.refused, port.calls) == (413, True, [])
    assert "input_url" in call.json["detail"]
    call = await ask(port, "POST", "/jobs", b"1" * 101)  # in chunks, all at once
    assert (call.status, [name for name, *_ in port.calls]) == (413, ["check"])
    app = fakes.app(jobs=port)
    request = fakes.call(app, "POST", "/jobs").request
    assert app.overfull(request, 100) is None
    assert app.overfull(request, 101).status == 413


CHANGES = pytest.mark.parametrize(
    ("method", "path"), [("POST", "/jobs?input_url=s3%3A%2F%2Fb%2Fk"), ("POST", "/jobs/a/retry"), ("DELETE", "/jobs/a")]
)
ELSEWHERE = {"sec_fetch_site": "cross-site", "origin": "https://app.example"}


@CHANGES
async def test_a_page_of_another_site_changes_nothing_behind_its_readers_back(ask, method, path):
    port = FakePort()
    for origins in ((), "https://other.example", "*"):
        call = await ask(port, method, path, cors_allow_origin=origins, **ELSEWHERE)
        assert (call.status, call.refused, port.calls) == (403, True, [])
    for headers in ({"sec_fetch_site": "same-origin"}, {**ELSEWHERE, "x_api_key": "k"}, {}):
        assert (await ask(port, method, path, **headers)).status == 202


@CHANGES
async def test_a_page_whose_origin_is_named_may_change_jobs(ask, method, path):
    for origins in ("https://app.example", ["*", "https://app.example"]):
        call = await ask(FakePort(), method, path, cors_allow_origin=origins, **ELSEWHERE)
        assert (call.status, call.headers[b"access-control-allow-origin"]) == (202, b"https://app.example")


async def test_a_page_of_another_site_may_ask_for_jobs(ask):
    for path in ("/jobs/a", "/jobs/a/result"):
        call = await ask(FakePort(), "GET", path, cors_allow_origin="*", **ELSEWHERE)
        assert (call.refused, call.headers[b"access-control-allow-origin"]) == (False, b"*")


async def test_jobs_are_listed(ask):
    port = FakePort(list_jobs=b"[1,2]")
    assert (await ask(port, "GET", "/jobs?state=dead&limit=7&after=b")).json == {"jobs": [1, 2]}
    await ask(port, "GET", "/jobs")
    assert port.calls == [("list_jobs", "dead", 7, "b"), ("list_jobs", None, 100, None)]


async def test_a_job_is_shown_and_never_kept_by_a_cache(ask):
    port = FakePort()
    call = await ask(port, "GET", "/jobs/a")
    assert (call.status, call.response.content_type, call.json) == (200, JSON, {"id": "a"})
    assert call.headers[b"cache-control"] == b"no-store"
    assert port.calls == [("get", "a", 0.0)]


async def test_a_result_comes_in_its_own_media_type(ask):
    port = FakePort(get=shown(ended=True), result=SimpleNamespace(body=b"\x93NUMPY", content_type="application/x-npy"))
    call = await ask(port, "GET", "/jobs/a/result?wait=2.5")
    assert (call.status, call.response.content_type, call.response.body) == (200, b"application/x-npy", b"\x93NUMPY")
    assert port.calls == [("get", "a", 2.5), ("result", "a")]


async def test_a_job_that_has_not_ended_is_202(ask):
    assert (await ask(FakePort(), "GET", "/jobs/a/result")).status == 202
    # Somebody has retried it between the two questions.
    assert (await ask(FakePort(get=shown(ended=True), result=None), "GET", "/jobs/a/result")).status == 202


@pytest.mark.parametrize(("cause", "status"), [("application", 500), ("invalid_input", 422), ("", 500)])
async def test_a_dead_job_has_its_problem_for_a_result(ask, cause, status):
    port = FakePort(get=shown(ended=True), result=JobFailed("job a is dead: boom", job_id="a", cause=cause))
    call = await ask(port, "GET", "/jobs/a/result")
    assert (call.status, call.json["type"], call.json["id"]) == (status, "urn:penstock:problem:job-failed", "a")


@pytest.mark.parametrize(("ended", "status"), [(True, 200), (False, 202)])
async def test_a_cancelled_job_has_ended_or_will(ask, ended, status):
    assert (await ask(FakePort(cancel=shown(ended=ended)), "DELETE", "/jobs/a")).status == status


async def test_a_retried_job_is_accepted(ask):
    port = FakePort()
    assert (await ask(port, "POST", "/jobs/a/retry")).status == 202
    assert port.calls == [("retry", "a")]


@pytest.mark.parametrize(
    ("error", "status"),
    [(JobNotFound(), 404), (JobConflict(), 409), (QueueFull("full"), 429), (StoreUnavailable("gone"), 503)],
)
async def test_an_error_of_the_queue_is_a_problem(ask, error, status):
    for name, method, path in (
        ("submit", "POST", "/jobs"),
        ("list_jobs", "GET", "/jobs"),
        ("get", "GET", "/jobs/a"),
        ("get", "GET", "/jobs/a/result"),
        ("cancel", "DELETE", "/jobs/a"),
        ("retry", "POST", "/jobs/a/retry"),
    ):
        call = await ask(FakePort(**{name: error}), method, path)
        assert call.status == status
        assert (b"retry-after" in call.headers) is (status in (429, 503))


async def test_a_mistake_of_ours_is_answered_too(ask, caplog):
    call = await ask(FakePort(get=ZeroDivisionError("secret")), "GET", "/jobs/a")
    assert (call.status, "secret" in call.json["detail"]) == (500, False)
    assert "internal error, no response could be made" in caplog.text


async def test_a_client_that_leaves_is_waited_for_no_longer(fakes):
    port = FakePort()
    port.gate = asyncio.Event()
    app = fakes.app(jobs=port)
    call = fakes.call(app, "GET", "/jobs/a/result?wait=60")
    await rest()
    task = call.request.ticket
    app.cancel(call.request)
    await rest()
    assert task.cancelled()
    assert call.request.ticket is None
    assert len(call.replies) == 1  # which nobody is sent


async def test_a_call_that_waits_holds_up_no_other(fakes):
    port = FakePort()
    port.gate = asyncio.Event()
    app = fakes.app(jobs=port)
    calls = [fakes.call(app, "GET", f"/jobs/{n}/result?wait=60") for n in range(50)]
    await rest()
    assert [call.replies for call in calls] == [[]] * 50
    port.gate.set()
    await rest()
    assert {call.status for call in calls} == {202}


async def test_jobs_are_refused_while_too_many_bytes_of_pages_are_held(fakes):
    port = FakePort()
    service = fakes.Service(max_queued_bytes=1000)
    app = fakes.app(service, jobs=port)
    slow = fakes.call(app, "POST", "/jobs").request
    app.hold(slow, 1001)
    assert app.overfull(slow, 50).status == 503
    assert app.overfull(slow, 1001) is None or app.overfull(slow, 1001).status == 413
    assert fakes.call(app, "GET", "/jobs").status == 503
    app.hold(slow, -1001)
    await rest()


def test_without_a_queue_there_is_no_such_path(fakes):
    app = fakes.app()
    assert fakes.call(app, "GET", "/jobs").status == 404
    assert "/jobs" not in fakes.call(app, "GET", "/openapi.json").json["paths"]


def test_a_service_cannot_be_called_jobs_beside_a_queue(fakes):
    with pytest.raises(ConfigError, match="the server itself uses the path /jobs"):
        fakes.app(fakes.Service(name="jobs"), jobs=FakePort())


def test_every_call_is_in_the_document_with_its_parameters_and_statuses(fakes, tmp_path):
    document = fakes.call(fakes.app(jobs=FakePort()), "GET", "/openapi.json").json
    submit = document["paths"]["/jobs"]["post"]
    assert {p["name"] for p in submit["parameters"]} == {"Idempotency-Key", *jobs_document.SUBMITTING}
    assert set(submit["responses"]) == {"202", "400", "403", "406", "409", "413", "415", "422", "503"}
    result = document["paths"]["/jobs/{id}/result"]["get"]
    assert set(result["responses"]) == {"200", "202", "400", "404", "410", "422", "500", "503"}
    assert [p["name"] for p in result["parameters"]] == ["id", "wait"]
    assert document["components"]["schemas"]["Job"] == {"type": "object", "title": "Job"}
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    app = fakes.app(jobs=FakePort(), api_key_file=str(keys))
    document = fakes.call(app, "GET", "/openapi.json", x_api_key="k" * 32).json
    for path in ("/jobs", "/jobs/{id}", "/jobs/{id}/result", "/jobs/{id}/retry"):
        assert all("401" in told["responses"] for told in document["paths"][path].values())
        assert fakes.call(app, "GET", path.replace("{id}", "a")).status == 401


def test_the_document_names_the_states_of_a_job():
    assert set(jobs_document.LISTING["state"]["schema"]["enum"]) == set(JobState)
    assert "state" in Job.__struct_fields__
