"""A queue as the server sees it, over a store in memory; and which jobs it takes."""

from __future__ import annotations

import msgspec
import pytest

from fake_work import Double, InlineThreads, Measure, fake_service
from penstock.errors import (
    ConfigError,
    InputTooLarge,
    InvalidItem,
    JobCancelled,
    JobConflict,
    JobFailed,
    JobNotFound,
    NotAcceptable,
    StoreUnavailable,
    TransferRejected,
    UnsupportedMediaType,
)
from penstock.jobs.job import AttemptError
from penstock.jobs.queue_port import QueuePort
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.jobs.submit_rules import SubmitRules
from penstock.jobs.submitting import JobQueue
from penstock.jobs.work_options import QueueOptions
from penstock.testing.virtual_clock import VirtualClock

JSON = {"content_type": "application/json"}


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def port(store):
    return QueuePort(
        lambda: JobQueue(store, max_inline_bytes=100),
        [fake_service()],
        QueueOptions(max_inline_bytes=100),
        clock=VirtualClock(),
        threads=InlineThreads,
    )


def claim(store):
    (job,) = store.claim("me", lease=30, rooms=[Room(("",), 1, 1000), Room(("",), 1, 1000, of_host=1)])
    return job


def end(store, to, **how):
    store.end_attempts([AttemptEnd(claim(store).hold, to, **how)])


async def test_a_body_becomes_a_job(port, store):
    job = await port.submit(b"[1]", JSON | {"priority": 5, "key": "k"})
    shown = msgspec.json.decode(job.text)
    assert (shown["id"], shown["state"], shown["priority"], job.ended) == (job.id, "queued", 5, False)
    assert (await port.submit(b"[1]", JSON | {"priority": 5, "key": "k"})).id == job.id
    claimed = claim(store)
    assert (claimed.body, claimed.content_type) == (b"[1]", "application/json")


async def test_a_body_without_a_type_is_json(port, store):
    await port.submit(b"[1]", {})
    assert claim(store).content_type == "application/json"
    with pytest.raises(InvalidItem, match="not valid application/json"):
        await port.submit(b"[1", {})
    with pytest.raises(InvalidItem):
        await port.submit(b"", {})


async def test_an_input_at_a_url_has_no_body_and_perhaps_no_type(port, store):
    await port.submit(b"", {"input_url": "https://example.org/a"})
    claimed = claim(store)
    assert (claimed.body, claimed.content_type, claimed.input_url) == (b"", "", "https://example.org/a")
    with pytest.raises(ConfigError, match="give input or input_url, not both"):
        await port.submit(b"[1]", {"input_url": "https://example.org/a"})


async def test_what_cannot_be_kept_is_told(port):
    await port.submit(b"[1]", JSON | {"key": "k"})
    with pytest.raises(JobConflict):
        await port.submit(b"[2]", JSON | {"key": "k"})
    with pytest.raises(InputTooLarge):
        await port.submit(b"[" + b"1" * 200 + b"]", JSON)
    for deadline in (5.0, 1e15):
        with pytest.raises(ConfigError, match="deadline"):
            await port.submit(b"[1]", JSON | {"deadline": deadline})


async def test_a_result_is_passed_on_as_it_is(port, store):
    job = await port.submit(b"1", JSON)
    assert await port.result(job.id) is None
    end(store, JobState.SUCCEEDED, result=b"\x93NUMPY", content_type="application/x-npy")
    assert await port.result(job.id) == (b"\x93NUMPY", "application/x-npy")
    assert (await port.get(job.id)).ended


async def test_the_result_of_a_job_with_an_output_says_where_it_is(port, store):
    job = await port.submit(b"1", JSON | {"output_url": "https://example.org/out"})
    end(store, JobState.SUCCEEDED, content_type="application/json")
    found = await port.result(job.id)
    assert (msgspec.json.decode(found.body), found.content_type) == (
        {"output_url": "https://example.org/out"},
        "application/json",
    )


@pytest.mark.parametrize("cause", [FailureCause.INVALID_INPUT, FailureCause.APPLICATION])
async def test_a_dead_job_says_what_it_died_of(port, store, cause):
    job = await port.submit(b"1", JSON)
    for _ in range(2 if cause is FailureCause.APPLICATION else 0):
        end(store, JobState.QUEUED, cause=cause, counts=True)
    end(
        store, JobState.DEAD, cause=cause, counts=True, problem=AttemptError("builtins.ValueError", "boom", "Traceback")
    )
    with pytest.raises(JobFailed, match=r"builtins\.ValueError: boom") as failed:
        await port.result(job.id)
    assert (failed.value.cause, failed.value.job_id) == (cause, job.id)


async def test_jobs_are_cancelled_retried_and_listed(port, store):
    first, second = await port.submit(b"1", JSON), await port.submit(b"2", JSON)
    assert (await port.cancel(first.id)).ended
    with pytest.raises(JobCancelled):
        await port.result(first.id)
    assert [job["id"] for job in msgspec.json.decode(await port.list_jobs("cancelled", 10, None))] == [first.id]
    assert not (await port.retry(first.id)).ended
    assert [job["id"] for job in msgspec.json.decode(await port.list_jobs(None, 10, first.id))] == [second.id]
    claim(store)
    assert not (await port.cancel(first.id)).ended
    with pytest.raises(JobNotFound):
        await port.get("nobody")
    with pytest.raises(ConfigError, match="did you mean queued"):
        await port.list_jobs("queud", 10, None)


async def test_the_schemas_are_those_of_a_job(port):
    schemas = port.schemas()
    assert {"Job", "Attempt", "AttemptError", "JobState"} == set(schemas)
    assert schemas["Job"]["properties"]["attempts"]["items"] == {"$ref": "#/components/schemas/Attempt"}


async def test_a_store_that_cannot_be_reached_at_the_start_is_told_in_the_log(store, caplog):
    def gone():
        raise StoreUnavailable("refused")

    port = QueuePort(gone, [fake_service()], QueueOptions(), clock=VirtualClock(), threads=InlineThreads)
    await port.start()
    assert "cannot reach the job store, rejecting calls about jobs: refused" in caplog.text
    await port.close()


async def test_a_port_is_closed_once_nobody_comes_any_more(port):
    await port.start()
    port.let_go()
    job = await port.submit(b"1", JSON)
    assert not (await port.get(job.id, 60.0)).ended
    await port.close()
    with pytest.raises(StoreUnavailable):
        await port.get(job.id)


# -- what is taken ----------------------------------------------------------------------------------------------------


def rules(*targets, **options):
    services = [fake_service(target, name=f"s{n}") for n, target in enumerate(targets or (Double,))]
    return SubmitRules(services, QueueOptions(**options))


def test_of_one_service_the_name_may_be_left_out():
    rules().check({})
    rules().check({"service": "s0"})


def test_of_several_services_a_job_names_one():
    with pytest.raises(ConfigError, match=r"give the service of the job \(service\): s0, s1"):
        rules(Double, Double).check({})
    rules(Double, Double).check({"service": "s1"})


@pytest.mark.parametrize("name", ["s00", "films"])
def test_a_service_that_is_not_here_is_told(name):
    with pytest.raises(ConfigError, match=f"there is no service '{name}' here"):
        rules(Double, Double).check({"service": name})


def test_formats_are_those_of_the_service():
    rules().check({"content_type": "application/msgpack", "accept": "application/json"})
    with pytest.raises(UnsupportedMediaType):
        rules().check({"content_type": "audio/wav"})
    with pytest.raises(NotAcceptable):
        rules().check({"accept": "audio/wav"})


def test_a_service_that_takes_files_takes_inputs_by_url_only():
    with pytest.raises(UnsupportedMediaType, match="input_url"):
        rules(Measure).check({})
    rules(Measure).check({"input_url": "https://example.org/a", "content_type": "audio/wav"})


def test_an_option_that_cannot_be_is_told():
    with pytest.raises(ConfigError, match="priority"):
        rules().check({"priority": 10**12})


@pytest.mark.parametrize("option", ["input_url", "output_url"])
def test_files_are_named_over_http_only_where_that_is_allowed(option):
    allowed = {"allow_input": "file:///data", "allow_output": "file:///data"}
    given = {option: "file:///data/a"}
    with pytest.raises(TransferRejected, match="--allow-file-from-http"):
        rules(**allowed).check(given)
    rules(**allowed, allow_file_from_http=True).check(given)
    with pytest.raises(TransferRejected, match="it is not below a prefix of"):
        rules(**allowed, allow_file_from_http=True).check({option: "file:///etc/passwd"})


@pytest.mark.parametrize("option", ["input_url", "output_url"])
def test_objects_and_addresses_are_those_that_a_consumer_may_use(option):
    allowed = {"allow_input": "s3://in/jobs", "allow_output": "s3://in/jobs", "allow_net": "10.0.0.0/8"}
    rules(**allowed).check({option: "s3://in/jobs/a"})
    rules(**allowed).check({option: "http://10.0.0.1/a"})
    for url in ("s3://in/other", "http://127.0.0.1/a", "http://169.254.169.254/"):
        with pytest.raises(TransferRejected):
            rules(**allowed).check({option: url})


def test_rules_that_cannot_be_read_are_told_at_the_start():
    with pytest.raises(ConfigError, match="--allow-input"):
        rules(allow_input="https://example.org")
