"""The Python clients against `penstock serve`: formats, threads, calls that are ended, and jobs."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from served import PATIENCE_SECONDS, PENSTOCK, Program, serving
from waiting import until, until_now

import penstock as ps
from penstock.client import AsyncClient, Client
from penstock.errors import JobFailed, JobNotFound

FORMATS = """
import numpy as np
import penstock as ps

class Reverse(ps.Stage):
    def predict(self, x: bytes) -> bytes:
        return x[::-1]

class Double(ps.Stage):
    def predict(self, x: np.ndarray) -> np.ndarray:
        return x * 2

class Upper(ps.Stage):
    def predict(self, x: str) -> str:
        return x.upper()

reverse = ps.Service(Reverse, name="reverse")
double = ps.Service(Double, name="double")
upper = ps.Service(Upper, name="upper")
"""


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("formats"), source=FORMATS, services=("reverse", "double", "upper")) as server:
        yield server


def cancelled(server):
    return server.metric("penstock_items_ended_total", ending="cancelled")


def in_flight(server):
    return server.health()["services"]["orders"]["in_flight"]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_every_format_goes_there_and_back(formats, codec):
    with Client(formats.address, format=codec) as c:
        assert c.predict("\u00fcber", service="upper") == "\u00dcBER"
        assert c.predict(b"\0\1\2", service="reverse") == b"\2\1\0"
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        doubled = c.predict(array, service="double")
        assert doubled.dtype == np.float32
        assert np.array_equal(doubled, 2 * array)
        assert c.predict_many(["a", "b", "c"], service="upper", batch_size=2) == ["A", "B", "C"]
        assert c.predict_many([array, array], service="double") == [(2 * array).tolist()] * 2
        several = c.predict_many([b"\0\1"], service="reverse")
        assert several == ([b"\1\0"] if codec == "msgpack" else ["AQA="])


def test_the_errors_of_a_server_are_those_of_a_call_in_process(shared):
    with Client(shared.address) as c:
        with pytest.raises(ps.InvalidItem, match="not today") as caught:
            c.predict({"do": "refuse"}, request_id="mine")
        assert (caught.value.status, caught.value.request_id) == (422, "mine")
        assert caught.value.problem["title"] == "Invalid item"
        with pytest.raises(ps.StageFailed):
            c.predict({"do": "raise"})
        with pytest.raises(ps.RequestError) as caught:
            c.predict({}, service="nobody")
        assert caught.value.status == 404
        found = c.predict_many([{"value": 1.0}, {"do": "raise"}, {"value": "x"}], return_exceptions=True)
        assert [type(one) for one in found] == [float, ps.StageFailed, ps.InvalidItem]
        assert c.health()["state"] in ("ready", "busy")


@pytest.mark.smoke
def test_one_client_serves_many_threads(shared):
    with Client(shared.address) as c, ThreadPoolExecutor(16) as pool:
        values = [float(number) for number in range(400)]
        assert list(pool.map(lambda value: c.predict({"value": value}), values)) == values
        assert c.stats.requests == 400
        assert c.stats.in_flight == c.stats.waiting == 0


def test_over_tls_to_a_server_that_is_trusted(serve, tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make certificates")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert)
    made = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subprocess.run(["openssl", "req", *made, *named], check=True, capture_output=True)
    server = serve("--tls-cert", cert, "--tls-key", key)
    url = f"https://localhost:{server.port}"
    for written in (url, url.replace("https", "HTTPS")):
        with Client(written, max_retries=0) as c:
            with pytest.raises(ps.ConnectionFailed, match=r"(?i)certificate") as caught:
                c.predict({"value": 2.0})
            assert not caught.value.sent
    monkeypatch.setenv("SSL_CERT_FILE", cert)
    with Client(url) as c:
        assert c.predict({"value": 2.0}) == 2.0


def test_a_host_that_no_url_may_have_is_told_at_once():
    with pytest.raises(ps.ConfigError, match=": Invalid IDNA hostname"):
        Client("http://\u00fc-")
    with pytest.raises(ps.ConfigError, match=r"^the server must be a URL, got 'http://xn--a\.example': "):
        Client("http://xn--a.example")


def test_the_key_the_tenant_and_the_try_reach_the_server(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("the-key\n")
    server = serve("--access-log", "--tenant-header", "X-Tenant", "--api-key-file", str(keys))
    with Client(server.address, api_key="the-key", tenant_header="X-Tenant") as c:
        c.predict({"value": 1.0}, tenant="gold", urgency=1, request_id="mine")
    server.wait_for(r"POST /predict 200 3 0\.\d+ mine tenant=gold u=1 attempt=1\b")
    with Client(server.address) as c, pytest.raises(ps.RequestError) as caught:
        c.predict({"value": 1.0})
    assert caught.value.status == 401


def test_a_server_that_comes_later_is_reached_by_a_further_try(serve, tmp_path):
    """The client begins before there is a server."""
    path = tmp_path / "late.sock"
    with Client(f"http+unix://{path}", max_retries=1000, timeout=60.0) as c, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(c.predict, {"value": 2.0})
        until_now(lambda: c.stats.retries >= 1, "a further try", PATIENCE_SECONDS)
        server = serve("--access-log", where=("--uds", str(path)))
        assert answer.result(60.0) == 2.0
    server.wait_for(r"attempt=([2-9]|\d\d+)\b")


def test_a_full_server_gets_fewer_requests_and_answers_all(two_waiting):
    server = two_waiting
    with Client(server.address, timeout=60.0, max_retries=100) as c, ThreadPoolExecutor(16) as pool:
        orders = [{"do": "nap", "seconds": 0.01, "value": float(number)} for number in range(60)]
        assert list(pool.map(c.predict, orders)) == [order["value"] for order in orders]
        stats = c.stats
        assert stats.limit < 8
        assert stats.client_initiated_retries == 0


# -- calls that are ended ----------------------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_a_cancelled_task_withdraws_its_item(shared):
    server = shared
    async with AsyncClient(server.address) as c:
        call = asyncio.create_task(c.predict({"do": "hold"}))
        await until(lambda: in_flight(server) == 1, "the item at its worker")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: cancelled(server) == 1, "the withdrawal")
        server.open_gate()
        assert await c.predict({"value": 2.0}) == 2.0, "the client goes on"


async def test_a_try_that_is_given_up_has_its_connection_closed():
    ended = asyncio.get_running_loop().create_future()

    async def say_nothing(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        ended.set_result(await reader.read())
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent, AsyncClient(f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}") as c:
        with pytest.raises(ps.DeadlineExceeded) as caught:
            await c.predict(1, timeout=0.1)
        assert caught.value.status is None
        assert await asyncio.wait_for(ended, PATIENCE_SECONDS) == b"1", "the body, and then the end"


async def test_closing_an_async_client_withdraws_what_it_has_in_hand(shared):
    server = shared
    c = AsyncClient(server.address)
    one = asyncio.create_task(c.predict({"do": "hold"}))
    many = asyncio.create_task(c.predict_many([{"do": "hold"}, {"do": "hold"}]))
    await until(lambda: server.health()["services"]["orders"]["queued"] == 3, "the items")
    await c.close()
    for call in (one, many):
        with pytest.raises(ps.Cancelled):
            await call
    await until(lambda: cancelled(server) == 3, "the withdrawal")
    server.open_gate()


def test_leaving_with_ends_the_calls_of_other_threads_and_withdraws_their_items(shared):
    server = shared
    with ThreadPoolExecutor(4) as pool:
        with Client(server.address) as c:
            calls = [pool.submit(c.predict, {"do": "hold"}) for _ in range(4)]
            until_now(lambda: server.health()["services"]["orders"]["queued"] == 4, "the items")
        for call in calls:
            with pytest.raises(ps.Cancelled):
                call.result(PATIENCE_SECONDS)
    until_now(lambda: cancelled(server) == 4, "the withdrawal")
    server.open_gate()
    with pytest.raises(ps.ConfigError, match="the client is closed"):
        c.predict({})
    assert (c.stats.requests, c.stats.in_flight) == (4, 0)
    c.close()


INTERRUPTED = """
import sys
from penstock.client import Client
with Client(sys.argv[1]) as c:
    try:
        c.predict({"do": "hold"})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.read()  # the client stays open
"""


def test_an_interrupt_in_a_thread_that_waits_withdraws_its_item(shared):
    server = shared
    command = [sys.executable, "-c", INTERRUPTED, server.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        until_now(lambda: in_flight(server) == 1, "the item at its worker", PATIENCE_SECONDS)
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        until_now(lambda: cancelled(server) == 1, "the withdrawal")
        program.stdin.close()
    assert program.returncode == 0
    server.open_gate()


def test_a_fork_is_told_to_make_a_client_of_its_own(shared):
    with Client(shared.address) as c:
        assert c.predict({"value": 1.0}) == 1.0
        context = multiprocessing.get_context("fork")
        told = context.SimpleQueue()

        def ask():
            try:
                c.predict({"value": 1.0})
            except ps.ConfigError as error:
                told.put(str(error))
            c.close()  # does nothing, and does not hang

        child = context.Process(target=ask)
        child.start()
        child.join(PATIENCE_SECONDS)
        assert child.exitcode == 0
        assert "make another one after the fork" in told.get()
        assert c.predict({"value": 2.0}) == 2.0


def test_a_client_that_was_never_closed_ends_with_its_last_reference(shared):
    def loops():
        return Counter(thread.name for thread in threading.enumerate())["penstock loop"]

    before = loops()
    c = Client(shared.address)
    assert c.predict({"value": 1.0}) == 1.0
    assert loops() == before + 1
    del c
    until_now(lambda: loops() == before, "the end of its thread")


def test_a_call_in_the_clients_own_thread_is_told(shared):
    with Client(shared.address, timeout=math.inf) as c:

        async def ask_in_the_loop():
            return c.predict({"value": 1.0})

        with pytest.raises(ps.ConfigError, match="this would deadlock"):
            c._thread.run(ask_in_the_loop())


def test_a_client_that_a_finalizer_closes_in_its_own_thread_ends_all_the_same(shared):
    with Client(shared.address) as c, ThreadPoolExecutor(1) as pool:

        async def finalize():
            c.close()

        assert c.predict({"value": 1.0}) == 1.0
        thread = c._thread._thread
        pool.submit(c._thread.run, finalize()).result(PATIENCE_SECONDS)
        with pytest.raises(ps.ConfigError, match="the client is closed"):
            c.predict({})
        until_now(lambda: not thread._thread.is_alive(), "the end of its thread")


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def farm(tmp_path):
    """A server that lets jobs in, and one consumer."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/q.db"
        server = stack.enter_context(serving(tmp_path, "--queue-url", url))
        consumer = Program(tmp_path, *PENSTOCK, "consume", "orders:service", "--queue-url", url,
                           "--poll-interval", "0.02", "--retry-backoff", "0.01", "--lease", "2")  # fmt: skip
        stack.callback(consumer.destroy)
        consumer.wait_for("working on")
        yield server


def test_jobs_are_submitted_waited_for_and_fail(farm):
    with Client(farm.address) as c:
        job = c.jobs.submit({"value": 3.0}, key="order-7", priority=2)
        assert c.jobs.submit({"value": 3.0}, key="order-7", priority=2).id == job.id
        assert c.jobs.result(job.id, timeout=60) == 3.0
        assert c.jobs.get(job).state == "succeeded"
        dead = c.jobs.submit({"do": "raise"})
        with pytest.raises(JobFailed) as caught:
            c.jobs.result(dead, timeout=60)
        assert (caught.value.status, caught.value.job_id) == (500, dead.id)
        assert [one.state for one in c.jobs.wait([dead.id, job], timeout=60)] == ["dead", "succeeded"]
        later = c.jobs.submit({"value": 1.0}, delay=1000, id="later")
        with pytest.raises(ps.DeadlineExceeded, match="job later is still scheduled after 0 s"):
            c.jobs.result(later, timeout=0)
        assert c.jobs.cancel("later").state == "cancelled"
        with pytest.raises(JobNotFound):
            c.jobs.get("nobody")


async def test_jobs_are_awaited(farm):
    async with AsyncClient(farm.address) as c:
        jobs = await asyncio.gather(*(c.jobs.submit({"value": float(number)}) for number in range(5)))
        assert await asyncio.gather(*(c.jobs.result(job, timeout=60) for job in jobs)) == [0.0, 1.0, 2.0, 3.0, 4.0]
        held = await c.jobs.submit({"do": "hold"})
        await until(lambda: farm.http.get(f"/jobs/{held.id}").json()["state"] == "running", "the lease")
        assert (await c.jobs.cancel(held)).state == "running"
        farm.open_gate()
        (ended,) = await c.jobs.wait([held], timeout=60)
        assert ended.is_finished
