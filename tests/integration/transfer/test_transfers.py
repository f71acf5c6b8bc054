"""The one door for inputs and outputs, over files, the web and S3."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from web_servers import Asked, web_server

from penstock.errors import ConfigError, TransferCancelled, TransferFailed, TransferRejected
from penstock.transfer import transfers as transfers_module
from penstock.transfer.addresses import parse_nets
from penstock.transfer.allowed_places import AllowedPlaces
from penstock.transfer.transfers import TransferOptions, Transfers


def open_door(folder: Path, places: str = "", nets: str = "127.0.0.0/8", **options) -> Transfers:
    return Transfers(
        TransferOptions(
            folder / "downloads",
            allowed_inputs=AllowedPlaces.parse(places, "--allow-input"),
            allowed_outputs=AllowedPlaces.parse(places, "--allow-output"),
            allowed_nets=parse_nets(nets),
            **options,
        )
    )


# -- what may be named ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "s3://in/a", "ftp://a/b", "http://127.0.0.1/", "http://[::1]/", "nothing"]
)
def test_what_is_not_allowed_is_refused_before_anything_is_opened(tmp_path, url):
    transfers = open_door(tmp_path, nets="")
    for check in (transfers.check_input, transfers.check_output):
        with pytest.raises(TransferRejected):
            check(url)
    for call in (transfers.read, lambda url: transfers.download(url, "job", 1)):
        with pytest.raises(TransferRejected):
            call(url)
    for call in (transfers.finish_output, transfers.discard_output, lambda *a: transfers.write_output(*a, b"")):
        with pytest.raises(TransferRejected):
            call(url, "job", 1)
    assert list(transfers.options.folder.iterdir()) == []


def test_what_is_allowed_is_let_pass_without_a_look(tmp_path):
    transfers = open_door(tmp_path, f"file://{tmp_path}/none,s3://in/a")
    for url in (f"file://{tmp_path}/none/a", "s3://in/a/b", "http://nowhere.invalid/", "http://127.0.0.1:1/"):
        transfers.check_input(url)
        transfers.check_output(url)


def test_outputs_below_one_folder_or_in_one_bucket_have_one_target(tmp_path):
    transfers = open_door(tmp_path, f"file://{tmp_path}/out,s3://in/a,s3://in/b")
    urls = (f"file://{tmp_path}/out/a/b", "s3://in/a/1", "s3://in/b/1", "http://nowhere.invalid/")
    assert [transfers.target_of(url) for url in urls] == [f"file://{tmp_path}/out", "s3://in", "s3://in", ""]
    with pytest.raises(TransferRejected):
        transfers.target_of("s3://other/a")


def test_the_name_of_a_part_is_no_output(tmp_path):
    transfers = open_door(tmp_path, f"file://{tmp_path},s3://in")
    for url in (f"file://{tmp_path}/.a.job.1.part", "s3://in/.a.job.1.part"):
        transfers.check_input(url)
        with pytest.raises(TransferRejected, match="reserved for unfinished outputs"):
            transfers.check_output(url)
        with pytest.raises(TransferRejected, match="reserved for unfinished outputs"):
            transfers.write_output(url, "job", 1, b"")


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "downloads").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        open_door(tmp_path)
    (tmp_path / "downloads").chmod(0o700)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "downloads").symlink_to(tmp_path / "downloads")
    with pytest.raises(ConfigError, match="chmod 700"):
        open_door(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot create the download directory"):
        open_door(tmp_path / "file")


@pytest.mark.parametrize("options", [{"max_input": 0}, {"timeout": 0}, {"timeout": "1"}])
def test_options_are_checked_at_birth(tmp_path, options):
    with pytest.raises(ConfigError):
        open_door(tmp_path, **options)


# -- the web ----------------------------------------------------------------------------------------------------------


def test_a_page_is_downloaded_into_a_file_of_its_own(tmp_path):
    transfers = open_door(tmp_path)
    with web_server(lambda asked: asked.answer(body=b"abc", Content_Type="audio/wav")) as server:
        found = transfers.download(f"{server.url}/x/a.wav?signature=b.c", "job", 3)
        read = transfers.read(server.url)
    assert (found.path, found.nbytes, found.content_type) == (tmp_path / "downloads/job.3.wav", 3, "audio/wav")
    assert (found.path.read_bytes(), read.body, read.content_type) == (b"abc", b"abc", "audio/wav")


@pytest.mark.parametrize("name", ["a.tar.%2e%2e", "a.%00", "a." + "b" * 17, "a", "a/"])
def test_a_suffix_that_may_mean_something_to_a_shell_is_left_out(tmp_path, name):
    with web_server(lambda asked: asked.answer(body=b"abc")) as server:
        assert open_door(tmp_path).download(f"{server.url}/{name}", "job", 3).path.name == "job.3"


def test_a_folder_for_downloads_that_somebody_has_removed_is_made_again(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"abc")
    transfers = open_door(tmp_path, f"file://{tmp_path}/in")
    shutil.rmtree(transfers.options.folder)
    assert transfers.download(f"file://{tmp_path}/in/a", "job", 1).path.read_bytes() == b"abc"
    assert transfers.options.folder.stat().st_mode & 0o777 == 0o700


def test_a_download_that_fails_leaves_nothing(tmp_path):
    transfers = open_door(tmp_path)
    with (
        web_server(lambda asked: asked.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")) as server,
        pytest.raises(TransferFailed, match="6 of 9 bytes are missing"),
    ):
        transfers.download(server.url, "job", 3)
    assert list(transfers.options.folder.iterdir()) == []


def test_a_full_disk_is_a_failure_of_the_download_and_leaves_nothing(tmp_path, monkeypatch):
    transfers = open_door(tmp_path)

    def on_a_full_disk(path, mode, opener):
        with open(path, mode, opener=opener):
            return Path("/dev/full").open("wb")

    monkeypatch.setattr(transfers_module, "open", on_a_full_disk, raising=False)
    with (
        web_server(lambda asked: asked.answer(body=b"x" * 100_000)) as server,
        pytest.raises(TransferFailed, match="No space left"),
    ):
        transfers.download(server.url, "job", 3)
    assert list(transfers.options.folder.iterdir()) == []


def test_a_transfer_that_is_stopped_before_it_begins_asks_nobody(tmp_path):
    with web_server(lambda asked: asked.answer()) as server:
        with pytest.raises(TransferCancelled):
            open_door(tmp_path).read(server.url, lambda: True)
        with pytest.raises(TransferCancelled):
            open_door(tmp_path).write_output(server.url, "job", 1, b"", stopped=lambda: True)
        assert server.connections == 0


def test_an_output_for_the_web_is_put_at_once_and_has_no_part(tmp_path):
    found = []

    def answer(asked: Asked) -> None:
        found.append((asked.method, asked.body(), asked.fields["content-type"]))
        asked.answer()

    transfers = open_door(tmp_path)
    with web_server(answer) as server:
        transfers.write_output(server.url, "job", 1, b"result", "text/plain")
        transfers.finish_output(server.url, "job", 1)
        transfers.discard_output(server.url, "job", 1)
    assert found == [("PUT", b"result", "text/plain")]


# -- S3 ---------------------------------------------------------------------------------------------------------------

URL = "s3://out/results/a%20b.json"
PLACE = "/out/results/a b.json"
PART = "/out/results/.a b.json.job.7.part"
LARGE = os.urandom(20_000_000)


@pytest.fixture
def objects(tmp_path, s3):
    return open_door(tmp_path, "s3://out/results,s3://in", max_input=len(LARGE))


@pytest.mark.parametrize("body", [b"", b"result", LARGE], ids=len)
def test_an_object_is_written_moved_and_read(objects, s3, body):
    objects.write_output(URL, "job", 7, body, "text/plain")
    assert s3.objects == {PART: body}
    for _ in range(2):
        objects.finish_output(URL, "job", 7)
        assert s3.objects == {PLACE: body}
    found = objects.read(URL)
    assert (found.body, found.content_type) == (body, "text/plain")
    assert objects.download(URL, "job", 7).path.read_bytes() == body


def test_an_object_of_a_dead_attempt_is_removed(objects, s3):
    objects.write_output(URL, "job", 7, b"result")
    for _ in range(2):
        objects.discard_output(URL, "job", 7)
        assert s3.objects == {}
    with pytest.raises(TransferRejected, match="the object or the bucket does not exist"):
        objects.finish_output(URL, "job", 7)


def test_a_move_that_was_cut_off_between_copy_and_removal_is_done_again(objects, s3):
    objects.write_output(URL, "job", 7, b"result")
    s3.fails = lambda method, path: 500 if "delete" in path else 0
    with pytest.raises(TransferFailed):
        objects.finish_output(URL, "job", 7)
    assert s3.objects == {PART: b"result", PLACE: b"result"}
    s3.fails = lambda method, path: 0
    objects.finish_output(URL, "job", 7)
    assert s3.objects == {PLACE: b"result"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, TransferRejected), (403, TransferRejected), (404, TransferRejected), (429, TransferFailed),
     (500, TransferFailed), (503, TransferFailed)],
)  # fmt: skip
def test_what_the_store_answers_says_whether_to_try_again(objects, s3, status, kind):
    s3.fails = lambda method, path: status
    calls = [lambda: objects.read(URL), lambda: objects.write_output(URL, "job", 7, b"result")]
    for call in calls:
        with pytest.raises(kind, match="s3://out/results"):
            call()
    assert len(s3.log) == 2, "tried once each"


def test_no_connection_to_a_store_that_failed_is_used_again(objects, s3):
    """The name of the endpoint may lead elsewhere by now."""
    s3.objects[PLACE] = b"result"
    together = threading.Barrier(2)
    s3.fails = lambda method, path: together.wait() * 0
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(objects.read, [URL, URL]))  # so that one is left besides that of the failure
    s3.fails = lambda method, path: 503
    with pytest.raises(TransferFailed):
        objects.read(URL)
    s3.fails = lambda method, path: 0
    before = len(s3.open)
    assert objects.read(URL).body == b"result"
    assert len(s3.open) == before + 1


def test_an_object_that_is_cut_off_is_a_failure_and_leaves_nothing(objects, s3):
    s3.objects[PLACE], s3.fails = b"x" * 1000, lambda method, path: -1
    with pytest.raises(TransferFailed, match="s3://out/results"):
        objects.download(URL, "job", 7)
    assert list(objects.options.folder.iterdir()) == []


def test_an_object_that_is_too_large_is_refused(objects, s3):
    s3.objects[PLACE] = b"x" * 11
    with pytest.raises(TransferRejected, match="11 bytes, which is more than 10"):
        objects.read(URL, most_bytes=10)


def test_an_upload_that_is_stopped_or_fails_leaves_no_parts(objects, s3):
    looks = iter([False] * 60)
    with pytest.raises(TransferCancelled):
        objects.write_output(URL, "job", 7, LARGE, stopped=lambda: next(looks, True))
    s3.fails = lambda method, path: 500 if "partNumber=2" in path else 0
    with pytest.raises(TransferFailed):
        objects.write_output(URL, "job", 7, LARGE)
    assert (s3.objects, s3.uploads) == ({}, {})


def test_a_store_that_is_not_there_may_be_there_later(tmp_path, s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(TransferFailed):
        open_door(tmp_path, "s3://in").read("s3://in/a")


def test_a_missing_library_is_said_at_start(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "penstock.transfer.obstore_", None)
    open_door(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[s3\]'"):
        open_door(tmp_path, "s3://in")
