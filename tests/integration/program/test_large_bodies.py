"""Large bodies over HTTP, in each way that they can come: every answer is right, and nothing is held at the end."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading

import pytest
from large_clients import (
    HELD,
    LARGE,
    RAW,
    SERVICES,
    ask,
    body_of,
    checked,
    nothing_is_held,
    over_tls,
    post,
    samples,
    see_held_body,
)
from served import serving
from spoken import spoken

SIZES = (LARGE, 65_536, 65_535, 1_000_001, 4_096, 70_000)
WITHOUT_PROC = ("unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A server for all tests that ask nothing special of it; nothing is held after each."""
    folder = tmp_path_factory.mktemp("large")
    with serving(folder, source=SERVICES, services=("service", "back", "two")) as server:
        yield server


@pytest.fixture
def server(large):
    """The same server, of which nothing may be held at the end."""
    yield large
    large.until(lambda: nothing_is_held(large.wire), "nothing to be held")


@pytest.mark.parametrize("path", ["/digest/predict", "/two/predict"])
@pytest.mark.smoke
def test_each_body_gets_the_digest_of_its_own_bytes(server, path):
    before = samples(server.wire)["inline full"]
    for turn, nbytes in enumerate(SIZES):
        assert set(ask(server.wire, range(turn * 20, turn * 20 + 20), path, nbytes)) == {200}
    assert samples(server.wire)["inline full"] == before


@pytest.mark.parametrize("cut", [None, 9_973], ids=["at once", "in parts"])
def test_large_and_small_requests_may_be_pipelined_and_cut_anywhere(server, cut):
    sizes = [LARGE, 16, 100_000, 65_536, 4_096, 16, 16, 1_000_000, 32]
    wave = b"".join(post(n, nbytes, "/digest/predict") for n, nbytes in enumerate(sizes))
    wire = server.wire()
    with sending(wire, wave, cut or len(wave)):
        for n, nbytes in enumerate(sizes):
            assert checked(wire.answer(), n, nbytes) == 200


@contextlib.contextmanager
def sending(wire, data, cut):
    """Send parts of `cut` bytes in a thread while the block runs."""

    def send():
        for at in range(0, len(data), cut):
            wire.send(data[at : at + cut])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_an_answer_that_is_read_slowly_is_whole_and_one_that_nobody_reads_is_free_when_its_client_is_gone(server):
    slow, gone, half = (server.wire(small_buffer=True).send(post(n, 8_000_000, "/back/predict")) for n in range(3))
    server.until(lambda: server.metric("penstock_shm_used_bytes", memory="Back") >= 3 * 8_000_000, "three answers")
    assert samples(server.wire)["penstock_reserved_bytes"] > 8_000_000, "unread answers count"
    gone.drop()
    half.sock.recv(100_000)
    half.close()
    server.until(lambda: server.metric("penstock_shm_used_bytes", memory="Back") < 2 * 8_000_000, "two to be free")
    assert slow.answer().body == body_of(0, 8_000_000)


@pytest.mark.smoke
def test_a_chunked_body_goes_inline_and_is_counted(server):
    before = samples(server.wire)["inline chunked"]
    head = f"POST /digest/predict HTTP/1.1\r\nHost: test\r\nContent-Type: {RAW}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [body_of(3)[at : at + 99_999] for at in range(0, LARGE, 99_999)]
    wire = server.wire().send(head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in [*chunks, b""]))
    assert checked(wire.answer(), 3) == 200
    assert samples(server.wire)["inline chunked"] == before + 1


def test_over_tls(tmp_path, pair):
    with serving(tmp_path, *pair.options, source=SERVICES, services=("service", "two")) as server:

        def connect():
            return over_tls(server)

        assert ask(connect, range(40), "/digest/predict") == {200: 40}
        assert ask(connect, range(20), "/two/predict", 65_536) == {200: 20}
        wire = connect()
        wire.send(b"".join(post(n, path="/digest/predict") for n in range(6)))
        assert [checked(wire.answer(), n) for n in range(6)] == [200] * 6
        wire.send(post(HELD, path="/two/predict"))
        see_held_body(connect, tmp_path)
        assert checked(wire.answer(), HELD) == 200
        wire.close()
        server.until(lambda: nothing_is_held(connect), "nothing to be held")
        assert samples(connect)["inline full"] == 0


def test_over_a_unix_socket_with_more_clients_than_there_is_room_for(tmp_path):
    options = ("--shm-bytes", str(2 << 20))
    with serving(tmp_path, *options, source=SERVICES, where=("--uds", str(tmp_path / "s"))) as server:
        assert ask(server.wire, range(320), connections=64) == {200: 320}
        server.until(lambda: nothing_is_held(server.wire), "nothing to be held")
        assert samples(server.wire)["inline full"] > 0


@pytest.mark.parametrize("why", ["it is not wanted", "there is no proc"])
def test_without_shared_memory_the_answers_are_the_same(tmp_path, why):
    options, wrapper = (("--shm-bytes", "0"), ()) if why == "it is not wanted" else ((), WITHOUT_PROC)
    if wrapper and subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode:
        pytest.skip("what is mounted cannot be changed here")
    with serving(tmp_path, *options, source=SERVICES, services=("two",), wrapper=wrapper) as server:
        assert ask(server.wire, range(40)) == {200: 40}
        shown = samples(server.wire)
        assert (shown["penstock_shm_bytes"], shown["penstock_reserved_bytes"]) == (0, 0)
    assert server.output.count("shared memory is not available") == bool(wrapper)


def test_more_than_the_machine_has_is_refused_at_the_start(tmp_path):
    (tmp_path / "model.py").write_text("import penstock as ps\nservice = ps.Service(len, name='len')\n")
    found = spoken(tmp_path, "serve", "model:service", "--port", "0", "--shm-bytes", str(1 << 50))
    assert found.status == 1
    assert re.search(rf"shm_bytes={1 << 50} .* allows \d+ bytes of memory", found.refusal)
