"""`penstock.stages`: fetches and uploads in an event loop, many at once, refused, tried again, and cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from waiting import until
from web_servers import Asked, web_server

import penstock as ps
from penstock.errors import ConfigError, InvalidItem, TransferFailed
from penstock.stages import Fetch, Outgoing, Upload
from penstock.transfer import carrier

LOOPBACK = "127.0.0.0/8"


@contextlib.asynccontextmanager
async def at_work(kind, **options):
    """A stage between its `setup` and its `teardown`, as a worker has it; it leaves no thread."""
    stage = kind()
    await stage.setup(**options)
    try:
        yield stage
    finally:
        own = list(stage._carrier._threads._threads)
        await stage.teardown()
        assert [thread.name for thread in own if thread.is_alive()] == []


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-transfer")]


def sockets():
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            found.append(str(descriptor.readlink()))
    return sorted(each for each in found if each.startswith("socket:"))


def answers(*statuses):
    """An answer for each request, and the last one from then on."""
    left = list(statuses)

    def answer(asked: Asked) -> None:
        asked.body()
        asked.answer(left.pop(0) if len(left) > 1 else left[0], b"here")

    return answer


@pytest.fixture(autouse=True)
def short_rests(monkeypatch):
    monkeypatch.setattr(carrier, "FIRST_REST_SECONDS", 0.001)


# -- what is taken and given ------------------------------------------------------------------------------------------


def test_the_annotations_say_what_callers_send_and_get():
    assert get_type_hints(Fetch.predict) == {"url": str, "return": bytes}
    assert get_type_hints(Upload.predict) == {"outgoing": Outgoing, "return": str}
    sent = msgspec.json.decode(b'{"url": "s3://a/b", "body": "YWJj"}', type=Outgoing)
    assert sent == Outgoing("s3://a/b", b"abc", "application/octet-stream")


def test_the_defaults_are_those_of_the_documentation():
    for kind, allowed in ((Fetch, "allow_input"), (Upload, "allow_output")):
        defaults = {p.name: p.default for p in inspect.signature(kind.setup).parameters.values() if p.name != "self"}
        assert defaults == {
            allowed: None,
            "allow_net": None,
            "max_bytes": 16 * 1024 * 1024,
            "timeout": 30.0,
            "retries": 2,
        }


@pytest.mark.parametrize("kind", [Fetch, Upload])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_bytes": 0}, "max_bytes must be a whole number of at least 1"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"retries": -1}, "retries must be a whole number of at least 0"),
        ({"retries": "2"}, "retries must be a whole number of at least 0"),
        ({"allow_net": "10.0.0.0/99"}, "allow_net: "),
        ({"allow_net": ["10.0.0.0/8"]}, "allow_net must be a string of comma-separated values"),
    ],
)
async def test_an_option_that_is_not_valid_is_told_before_a_thread_is_started(kind, options, said):
    with pytest.raises(ConfigError, match=said):
        await kind().setup(**options)
    assert threads() == []


async def test_a_prefix_that_is_none_names_the_argument():
    with pytest.raises(ConfigError, match=r"^allow_input: .* is not a URL"):
        await Fetch().setup(allow_input="/data")
    with pytest.raises(ConfigError, match=r"^allow_output: .* allow networks with allow_net"):
        await Upload().setup(allow_output="http://a/")


async def test_a_page_is_fetched_and_a_body_is_put():
    found = []

    def answer(asked: Asked) -> None:
        found.append((asked.method, asked.target, asked.fields.get("content-type"), asked.body()))
        asked.answer(body=b"abc")

    with web_server(answer) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch, at_work(Upload, allow_net=LOOPBACK) as upload:
            assert await fetch.predict(f"{server.url}/a?b=c") == b"abc"
            outgoing = Outgoing(f"{server.url}/d", b"result", "text/plain")
            assert await upload.predict(outgoing) == outgoing.url
    assert found == [("GET", "/a?b=c", None, b""), ("PUT", "/d", "text/plain", b"result")]


async def test_files_are_read_and_written_below_their_prefixes(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"abc")
    (tmp_path / "out").mkdir()
    async with (
        at_work(Fetch, allow_input=f"file://{tmp_path}/in") as fetch,
        at_work(Upload, allow_output=f"file://{tmp_path}/out") as upload,
    ):
        assert await fetch.predict(f"file://{tmp_path}/in/a") == b"abc"
        for body in (b"first", b"second"):
            await upload.predict(Outgoing(f"file://{tmp_path}/out/x/a", body))
            assert [(path.name, path.read_bytes()) for path in (tmp_path / "out" / "x").iterdir()] == [("a", body)]
        with pytest.raises(InvalidItem, match="not below a prefix of allow_input"):
            await fetch.predict(f"file://{tmp_path}/out/x/a")
        with pytest.raises(InvalidItem, match="not below a prefix of allow_output"):
            await upload.predict(Outgoing(f"file://{tmp_path}/in/a", b""))


async def test_objects_are_read_and_written(s3):
    async with at_work(Fetch, allow_input="s3://in") as fetch, at_work(Upload, allow_output="s3://in/x") as upload:
        assert await upload.predict(Outgoing("s3://in/x/a", b"abc", "text/plain")) == "s3://in/x/a"
        assert (s3.objects, s3.kinds["/in/x/a"]) == ({"/in/x/a": b"abc"}, "text/plain")
        assert await fetch.predict("s3://in/x/a") == b"abc"
        with pytest.raises(InvalidItem, match="the object or the bucket does not exist"):
            await fetch.predict("s3://in/x/b")


async def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with at_work(Fetch):
        assert list(tmp_path.iterdir()) == []


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://localhost:1/", "http://169.254.169.254/latest"])
async def test_an_address_that_is_not_public_is_invalid_without_its_network(url):
    async with at_work(Fetch) as fetch, at_work(Upload) as upload:
        for call in (fetch.predict(url), upload.predict(Outgoing(url, b""))):
            with pytest.raises(InvalidItem, match="is not a public address; allow_net allows networks"):
                await call


@pytest.mark.parametrize("url", ["file:///etc/passwd", "s3://in/a", "ftp://a/b", "nothing"])
async def test_without_a_prefix_there_are_no_files_and_no_objects(url):
    async with at_work(Fetch) as fetch, at_work(Upload) as upload:
        for call in (fetch.predict(url), upload.predict(Outgoing(url, b""))):
            with pytest.raises(InvalidItem):
                await call


async def test_what_is_too_large_is_invalid(tmp_path: Path):
    with web_server(answers(200)) as server:
        async with (
            at_work(Fetch, allow_net=LOOPBACK, max_bytes=3) as fetch,
            at_work(Upload, allow_net=LOOPBACK, max_bytes=3) as upload,
        ):
            with pytest.raises(InvalidItem, match="4 bytes, which is more than 3"):
                await fetch.predict(server.url)
            with pytest.raises(InvalidItem, match=r"the body has 4 bytes, which is more than max_bytes \(3\)"):
                await upload.predict(Outgoing(server.url, b"here"))
        assert server.connections == 1, "nothing was uploaded"


async def test_a_page_that_is_not_there_is_invalid_and_asked_for_once():
    with web_server(answers(404)) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch, at_work(Upload, allow_net=LOOPBACK) as upload:
            for call in (fetch.predict(server.url), upload.predict(Outgoing(server.url, b""))):
                with pytest.raises(InvalidItem, match="the server responded with status 404"):
                    await call
        assert server.connections == 2


# -- what is tried again ----------------------------------------------------------------------------------------------


async def test_what_failed_is_tried_again():
    with web_server(answers(503, 429, 200)) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch:
            assert await fetch.predict(server.url) == b"here"
    with web_server(answers(503, 429, 200)) as server:
        async with at_work(Upload, allow_net=LOOPBACK) as upload:
            assert await upload.predict(Outgoing(server.url, b"result")) == server.url
        assert [asked.method for asked in server.asked] == ["PUT"] * 3


@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (2, 3)])
async def test_what_fails_in_all_tries_is_raised(retries, tries):
    with web_server(answers(503)) as server:
        async with (
            at_work(Fetch, allow_net=LOOPBACK, retries=retries) as fetch,
            at_work(Upload, allow_net=LOOPBACK, retries=retries) as upload,
        ):
            for call in (fetch.predict(server.url), upload.predict(Outgoing(server.url, b""))):
                with pytest.raises(TransferFailed, match="the server responded with status 503"):
                    await call
        assert server.connections == 2 * tries


async def test_a_server_that_says_nothing_has_failed_at_the_timeout():
    with web_server(Asked.wait_for_the_end) as server:
        async with at_work(Fetch, allow_net=LOOPBACK, timeout=0.05, retries=1) as fetch:
            with pytest.raises(TransferFailed, match=r"transfer timed out after 0\.05 s"):
                await fetch.predict(server.url)
        assert server.connections == 2


async def test_an_object_that_could_not_be_put_in_its_place_leaves_no_part(s3):
    s3.fails = lambda method, path: 503 if method == "PUT" and ".part" not in path else 0  # a move is a copy first
    async with at_work(Upload, allow_output="s3://in", retries=1) as upload:
        with pytest.raises(TransferFailed):
            await upload.predict(Outgoing("s3://in/a", b"abc"))
        assert s3.objects == {}
        s3.fails = lambda method, path: 0
        await upload.predict(Outgoing("s3://in/a", b"abc"))
    assert s3.objects == {"/in/a": b"abc"}


# -- what is cancelled ------------------------------------------------------------------------------------------------


def send_without_end(asked: Asked) -> None:
    asked.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
    asked.wait_for_the_end()


async def test_a_cancelled_call_ends_with_its_transfer_and_its_thread_is_free():
    before = sockets()
    with web_server(send_without_end) as server:
        with_server = sockets()
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch:
            for _ in range(3):
                calls = [asyncio.create_task(fetch.predict(server.url)) for _ in range(8)]
                asked = len(server.asked) + 8
                await until(lambda: len(server.asked) == asked, "all to be fetched")  # noqa: B023  # awaited here
                for call in calls:
                    call.cancel()
                assert {type(ended) for ended in await asyncio.gather(*calls, return_exceptions=True)} == {
                    asyncio.CancelledError
                }
                assert fetch._carrier._running == {}
                await until(lambda: sockets() == with_server, "the connections to be closed")
            assert len(threads()) <= 16
    assert sockets() == before


async def test_an_upload_that_is_cancelled_ends(tmp_path: Path):
    with web_server(Asked.wait_for_the_end) as server:
        async with at_work(Upload, allow_net=LOOPBACK) as upload:
            call = asyncio.create_task(upload.predict(Outgoing(server.url, b"x" * 1_000_000)))
            await until(lambda: server.asked, "the upload")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert server.connections == 1


async def test_a_call_that_is_cancelled_twice_ends_only_with_its_transfer():
    with web_server(send_without_end) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch:
            call = asyncio.create_task(fetch.predict(server.url))
            await until(lambda: server.asked, "the fetch")
            call.cancel()
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert fetch._carrier._running == {}


async def test_a_call_that_waits_for_a_bucket_keeps_its_place_until_the_server_answers(s3):
    asked, go_on = threading.Event(), threading.Event()
    s3.fails = lambda method, path: asked.set() or go_on.wait(30) * 0
    s3.objects["/in/a"] = b"abc"
    async with at_work(Fetch, allow_input="s3://in") as fetch:
        call = asyncio.create_task(fetch.predict("s3://in/a"))
        await until(asked.is_set, "the request")
        call.cancel()
        (stop,) = fetch._carrier._running.values()
        await until(stop.is_set, "the transfer to be told")
        assert not call.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_call_that_is_cancelled_in_its_rest_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(carrier, "FIRST_REST_SECONDS", 1e6)
    monkeypatch.setattr(carrier, "LONGEST_REST_SECONDS", 1e6)
    with web_server(answers(503)) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch:
            call = asyncio.create_task(fetch.predict(server.url))
            await until(lambda: server.asked and not fetch._carrier._running, "the rest")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert server.connections == 1


async def test_teardown_stops_what_is_in_progress():
    with web_server(send_without_end) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch:
            call = asyncio.create_task(fetch.predict(server.url))
            await until(lambda: server.asked, "the fetch")
        with pytest.raises(Exception, match="transfer cancelled"):
            await call


# -- many at once -----------------------------------------------------------------------------------------------------


async def test_as_many_are_in_progress_as_are_asked_for():
    """Each is answered once all have been asked for: 64 threads, where a pool of the usual size would have hung."""
    together = threading.Barrier(64)

    def answer(asked: Asked) -> None:
        together.wait(30)
        asked.answer(body=asked.target.encode())

    with web_server(answer) as server:
        async with at_work(Fetch, allow_net=LOOPBACK) as fetch:
            for _ in range(2):
                found = await asyncio.gather(*(fetch.predict(f"{server.url}/{n}") for n in range(64)))
                assert found == [f"/{n}".encode() for n in range(64)]
            assert 64 <= len(threads()) <= 128


async def test_uploads_to_one_place_at_once_leave_one_of_them_and_no_part(tmp_path: Path):
    async with at_work(Upload, allow_output=f"file://{tmp_path}") as upload:
        bodies = [bytes([n]) * 10_000 for n in range(16)]
        await asyncio.gather(*(upload.predict(Outgoing(f"file://{tmp_path}/a", body)) for body in bodies))
    (left,) = tmp_path.iterdir()
    assert left.name == "a"
    assert left.read_bytes() in bodies


# -- in workers -------------------------------------------------------------------------------------------------------


def fetching(**options) -> ps.Service:
    return ps.Service(ps.stage(Fetch, setup={"allow_net": LOOPBACK, **options}), name="fetching")


@pytest.mark.parametrize("inline", [False, True], ids=["processes", "inline"])
async def test_a_service_fetches_and_tells_refusals_from_failures(inline):
    with web_server(answers(503)) as failing, web_server(answers(200)) as server:
        async with fetching(retries=1).configured(inline=inline) as service:
            assert await service.predict_many([server.url] * 100) == [b"here"] * 100
            with pytest.raises(ps.InvalidItem, match="is not a public address"):
                await service.predict("http://10.0.0.1/")
            with pytest.raises(ps.StageFailed, match="the server responded with status 503") as failed:
                await service.predict(failing.url)
            assert failed.value.is_a(TransferFailed)
    assert threads() == []


@pytest.mark.parametrize("inline", [False, True], ids=["processes", "inline"])
async def test_a_transfer_whose_caller_has_left_is_stopped(inline):
    left = threading.Semaphore(0)

    def answer(asked: Asked) -> None:
        send_without_end(asked)
        left.release()

    with web_server(answer) as server:
        async with fetching().configured(inline=inline) as service:
            calls = [asyncio.create_task(service.predict(server.url)) for _ in range(8)]
            await until(lambda: len(server.asked) == 8, "all to be fetched")
            for call in calls:
                call.cancel()
            for _ in calls:
                await until(lambda: left.acquire(blocking=False), "a connection to be closed by the worker")
    assert threads() == []
