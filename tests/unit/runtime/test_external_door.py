"""The socket at which workers attach: who may stay, who is refused, what they are told, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import math
import os
import socket
import stat
import struct
import tracemalloc
from pathlib import Path

import pytest
from processes import open_files
from waiting import until

from penstock.config import Batch
from penstock.core.state import State
from penstock.errors import StartFailed
from penstock.runtime import external_door
from penstock.runtime.external_spec import remote
from penstock.runtime.external_stage import EARLY_SECONDS
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.external_channel import MOST_PARTING
from penstock.transport.external_messages import HANDSHAKE_BYTES
from penstock.transport.framing import FrameDecoder, Kind, Status, encode_answers, encode_control

BIG = struct.Struct("<2sBBIIQdQ")
HELLO = {"version": 4, "pid": 77, "language": "test", "stage": "square", "codecs": ["json"]}


def hello(**changes) -> bytes:
    return control(Kind.HELLO, json.dumps({**HELLO, **changes}).encode())


def control(kind, payload=b"", frame_id=0) -> bytes:
    return b"".join(encode_control(kind, payload, frame_id))


class Peer:
    """The other end of a connection, and the frames that came there."""

    def __init__(self, reader, writer) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames = []

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self):
        """The next frame; None at the end."""
        while not self._frames:
            data = await asyncio.wait_for(self.reader.read(65536), 20)
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def refused(self) -> str:
        """Why it was refused; it reads the end after that."""
        frame = await self.frame()
        assert frame.kind is Kind.FAILED
        assert await self.frame() is None
        return json.loads(bytes(frame.payloads[0]))["message"]

    async def attach(self, **changes) -> dict:
        """Say HELLO and READY; returns what it was told to be."""
        await self.say(hello(**changes))
        launch = await self.frame()
        assert launch.kind is Kind.LAUNCH
        await self.say(control(Kind.READY))
        return json.loads(bytes(launch.payloads[0]))

    async def gone(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Door:
    def __init__(self, rig, path) -> None:
        self.rig = rig
        self.engine = rig.engine
        self.path = path
        self.stage = rig.engine.stages[0]
        self.peers: list[Peer] = []

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_unix_connection(self.path))
        self.peers.append(peer)
        return peer

    async def attached(self, **changes) -> Peer:
        peer = await self.connect()
        await peer.attach(**changes)
        await self.until(lambda: any(worker.ready for worker in self.stage.workers))
        return peer

    async def until(self, true) -> None:
        """Let the loop turn until `true()`."""
        await until(true, patience=10, pause=0)


@pytest.fixture
async def make(make_rig, tmp_path):
    made = []

    async def make(*specs, **options) -> Door:
        path = str(tmp_path / "workers")
        specs = specs or (remote("square", batch=Batch(max_size=4), accepts=("json",)),)
        rig = make_rig(*specs, remote_worker_socket=path, **options)
        await rig.engine.start()
        made.append(Door(rig, path))
        return made[-1]

    yield make
    for door in made:
        for peer in door.peers:
            peer.writer.close()


# -- the file -------------------------------------------------------------------------------------------------------


async def test_the_socket_is_its_users_alone_and_gone_after_the_stop(make, tmp_path):
    door = await make()
    assert stat.S_IMODE(Path(door.path).stat().st_mode) == 0o600
    await door.rig.stop()
    assert list(tmp_path.iterdir()) == []


async def test_its_mode_can_be_given(make):
    door = await make(remote_worker_socket_mode=0o660)
    assert stat.S_IMODE(Path(door.path).stat().st_mode) == 0o660


async def test_a_stale_file_is_replaced_and_a_live_one_refused(make, make_rig, tmp_path):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "workers"))
    door = await make()
    other = make_rig(remote("square"), remote_worker_socket=door.path)
    with pytest.raises(StartFailed, match="another server listens there"):
        await other.engine.start()
    assert other.engine.state is State.STOPPED
    await door.attached()


async def test_an_engine_that_is_abandoned_leaves_no_file_and_no_worker_waiting(make, tmp_path):
    door = await make()
    peer = await door.attached()
    door.engine.abandon()
    assert list(tmp_path.iterdir()) == []
    assert await peer.frame() is None


# -- in good order --------------------------------------------------------------------------------------------------


async def test_a_worker_attaches_answers_and_leaves(make, caplog):
    caplog.set_level(logging.INFO)
    door = await make()
    peer = await door.connect()
    told = await peer.attach()
    assert (told["stage"], told["index"], told["count"], told["batched"]) == ("square", 0, 64, True)
    await door.until(lambda: door.engine.state is State.READY)
    call = await door.rig.call(b"3", b"4", b"5", b"6", within=EARLY_SECONDS)
    batch = await peer.frame()
    failures = [b'{"message": "odd", "path": "$"}', b'{"type": "ValueError", "message": "bad", "new": 1}']
    statuses = [Status.OK, Status.INVALID, Status.FAILED, Status.EXPIRED]
    await peer.say(b"".join(encode_answers(batch.frame_id, 0.1, 1, batch.ids, [b"9", *failures, b""], statuses)))
    await door.until(lambda: call.done)
    outcomes = call.told[0]
    assert bytes(outcomes[0].payload) == b"9"
    assert (outcomes[1].error.reason, outcomes[1].error.path) == ("odd", "$")
    assert (outcomes[2].error.type_name, outcomes[2].error.message) == ("ValueError", "bad")
    (worker,) = door.stage.workers
    assert (worker.pid, worker.language) == (os.getpid(), "test")
    await peer.say(control(Kind.DETACH))
    assert await peer.frame() is None, "it is sent nothing more"
    await peer.gone()
    await door.until(lambda: not door.stage.workers)
    assert f"worker 0 of stage 'square' attached (pid {os.getpid()}, uid {os.getuid()}, test)" in caplog.text
    assert "worker 0 of stage 'square' detached" in caplog.text


@pytest.mark.parametrize(
    ("said", "taken"),
    [(0.5, 0.5), (2.0, 2.0), (2.5, 2.0), (2e3, 2.0), (-1.0, 2.0), (math.inf, 2.0), (-math.inf, 2.0), (math.nan, 2.0)],
)
async def test_a_worker_is_believed_no_time_that_cannot_be(make, said, taken):
    door = await make()
    peer = await door.attached()
    call = await door.rig.call(b"3")
    batch = await peer.frame()
    await door.rig.clock.advance(2.0)
    await peer.say(b"".join(encode_answers(batch.frame_id, said, 1, batch.ids, [b"9"], [0])))
    await door.until(lambda: call.done)
    assert door.stage.counters.run_seconds.total == taken
    assert door.stage.queue.expected_run(1) == taken


async def test_a_worker_that_leaves_while_its_health_does_not_return_is_cut_off(make):
    door = await make()
    peer = await door.attached(health=True)
    await door.rig.clock.advance(10.0)
    assert (await peer.frame()).kind is Kind.CHECK
    call = await door.rig.call(b"3")
    await peer.say(control(Kind.DETACH))
    await door.until(lambda: door.stage.workers[0].leaving)
    await door.rig.clock.advance(10.0)
    assert door.stage.workers == []
    other = await door.attached()
    batch = await other.frame()
    await other.say(b"".join(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"9"], [0])))
    await door.until(lambda: call.done)
    assert call.ends == [b"9"]


async def test_a_worker_that_cannot_be_set_up_and_does_not_close_keeps_no_number(make, caplog):
    door = await make()
    peer = await door.connect()
    await peer.say(hello())
    assert (await peer.frame()).kind is Kind.LAUNCH
    await peer.say(control(Kind.FAILED, b'{"message": "no weights", "traceback": "at line 3"}'))
    await door.until(lambda: not door.stage.workers)
    assert await peer.frame() is None
    assert "worker 0 of stage 'square' could not be set up: no weights" in caplog.text
    assert "at line 3" in caplog.text


@pytest.mark.parametrize("pid", [-5, 0, 1 << 31, 1 << 70])
async def test_a_process_id_that_cannot_be_is_none(make, monkeypatch, pid):
    monkeypatch.setattr(external_door, "peer_credentials", lambda _: external_door.Credentials(None, None))
    door = await make()
    await door.attached(pid=pid)
    assert [worker.pid for worker in door.stage.workers] == [None]


async def test_where_the_kernel_tells_no_process_id_a_worker_says_its_own(make, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(external_door, "peer_credentials", lambda _: external_door.Credentials(None, 7))
    door = await make()
    await door.attached(pid=4711)
    assert [worker.pid for worker in door.stage.workers] == [4711]
    assert "attached (pid 4711, uid 7, test)" in caplog.text


async def test_an_answer_may_be_no_longer_than_the_launch_said(make):
    door = await make(max_queued_bytes=5000)
    peer = await door.attached()
    await door.rig.call(b"3")
    batch = await peer.frame()
    await peer.say(b"".join(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"9" * 6000], [0])))
    assert "a frame announces 1 items in" in await peer.refused()


@pytest.mark.parametrize("greeted", [False, True])
async def test_what_is_claimed_takes_no_memory_before_it_comes(make, greeted):
    door = await make()
    peers = [await (door.attached() if greeted else door.connect()) for _ in range(20)]
    claim = (100 << 20) if greeted else HANDSHAKE_BYTES
    kind = Kind.ANSWERS if greeted else Kind.HELLO
    tracemalloc.start()
    try:
        for peer in peers:
            await peer.say(BIG.pack(b"PS", 4, kind, 1, 0, 0, 0.0, claim) + bytes(100))
        await rest()
        assert tracemalloc.get_traced_memory()[1] < 20 * 512 * 1024
    finally:
        tracemalloc.stop()


async def test_a_hello_longer_than_a_handshake_is_refused(make):
    peer = await (await make()).connect()
    await peer.say(BIG.pack(b"PS", 4, Kind.HELLO, 1, 0, 0, 0.0, HANDSHAKE_BYTES + 1))
    assert await peer.refused() == f"a frame announces 1 items in {HANDSHAKE_BYTES + 1} bytes"


@pytest.mark.parametrize("busy", [False, True])
async def test_a_worker_that_leaves_and_stays_is_cut_off(make, busy):
    door = await make(reattach_timeout=5.0)
    peer = await door.attached()
    call = await door.rig.call(b"3") if busy else None
    batch = await peer.frame() if busy else None
    await peer.say(control(Kind.DETACH))
    assert await peer.frame() is None
    await door.rig.clock.advance(9.0)
    if busy:
        await peer.say(b"".join(encode_answers(batch.frame_id, 0.1, 1, batch.ids, [b"9"], [0])))
        await door.until(lambda: call.done)
        await door.rig.clock.advance(9.0)
    assert [worker.leaving for worker in door.stage.workers] == [True]
    await door.rig.clock.advance(1.0)
    assert door.stage.workers == []
    await door.rig.clock.advance(5.0)
    assert door.engine.state is State.FAILED, "nobody waits for who has gone"


async def test_the_stage_may_be_left_out_where_there_is_one(make):
    door = await make()
    peer = await door.connect()
    assert (await peer.attach(stage=None))["stage"] == "square"


async def test_on_drain_a_worker_reads_the_end_of_the_stream(make):
    door = await make()
    peer = await door.attached()
    stopping = await door.rig.stopping(30.0)
    assert await peer.frame() is None
    await peer.gone()
    await stopping


@pytest.mark.parametrize("drain", [0.0, 2.0])
async def test_a_stop_sends_no_worker_away_whatever_it_does(make, drain):
    door = await make()
    busy = await door.attached()
    await door.rig.call(b"3")
    idle = await door.attached()
    loading = await door.connect()
    await loading.say(hello())
    assert (await loading.frame()).kind is Kind.LAUNCH
    assert (await busy.frame()).kind is Kind.BATCH
    stopping = await door.rig.stopping(drain)
    await door.rig.clock.advance(drain)
    for peer in (busy, idle, loading):
        assert await peer.frame() is None, "FAILED would have it end, and not serve the next server"
        await peer.gone()
    await stopping


async def test_a_worker_that_chaos_strikes_is_told_so_and_what_it_ran_runs_once_more(make):
    door = await make()
    kills = []
    door.engine.watch_batches(lambda kill, _: kills.append(kill))
    peer = await door.attached()
    call = await door.rig.call(b"3", request_id=b"a")
    assert (await peer.frame()).kind is Kind.BATCH
    kills[0]()
    assert await peer.refused() == "chaos"
    other = await door.attached()
    batch = await other.frame()
    await other.say(b"".join(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"9"], [0])))
    await door.until(lambda: call.done)
    assert call.ends == [b"9"]
    assert door.stage.counters.retried == 1


# -- fools and enemies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a worker protocol: the connection starts with b'GET '"),
        (
            BIG.pack(b"PS", 3, 1, 1, 0, 0, 0.0, 2) + b"{}",
            "the peer uses version 3 of the protocol, this process version 4",
        ),
        (hello(version=5), "the worker uses version 5 of the protocol, the service version 4"),
        (hello(stage="cube"), "service 'service' has no remote stage 'cube'; it has 'square'"),
        (hello(stage="x" * 5000), "service 'service' has no remote stage 'xxx"),
        (hello(codecs=["msgpack"]), "stage 'square' also needs the formats json"),
        (hello(pid="me"), "invalid JSON in a HELLO: "),
        (control(Kind.HELLO, b"\xff\xfe"), "invalid JSON in a HELLO: "),
        (control(Kind.HELLO, b"[" * 60000), "invalid JSON in a HELLO: "),
        (control(Kind.READY), "the first frame must be a HELLO, got a READY"),
        (BIG.pack(b"PS", 4, 1, 1, 0, 0, 0.0, 1 << 40), "a frame announces 1 items in 1099511627776 bytes"),
        (BIG.pack(b"PS", 4, 5, 1 << 31, 0, 0, 0.0, 60000), "a frame announces 2147483648 items in 60000 bytes"),
        (BIG.pack(b"PS", 4, 99, 1, 0, 0, 0.0, 0), "unknown kind of frame: 99"),
        (hello() + control(Kind.READY) + control(Kind.READY), "a worker must wait for its LAUNCH"),
    ],
)
async def test_who_is_no_worker_is_refused_and_told_why(make, caplog, data, why):
    door = await make()
    bystander = await door.attached()
    peer = await door.connect()
    await peer.say(data)
    told = await peer.refused()
    assert why in told
    assert len(told) < 9000
    await door.until(lambda: len(door.stage.workers) == 1)
    call = await door.rig.call(b"3")
    batch = await bystander.frame()
    await bystander.say(b"".join(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"9"], [0])))
    await door.until(lambda: call.done)
    assert call.ends == [b"9"], "nobody else notices"
    assert why.split("x" * 3, 1)[0] in caplog.text
    if "LAUNCH" not in why:  # that one had a number, and the line is about the worker
        assert f"service 'service' rejected a worker (pid {os.getpid()}, uid {os.getuid()}): " in caplog.text


async def test_half_a_frame_and_then_silence_is_cut_off_after_ten_seconds(make):
    door = await make()
    silent, half, hesitant = [await door.connect() for _ in range(3)]
    await half.say(hello()[:50])
    await hesitant.say(b"PS")
    await door.until(lambda: len(door.engine._door._waiting) == 3)
    await rest()
    await door.rig.clock.advance(9.9)
    assert len(door.engine._door._waiting) == 3
    await door.rig.clock.advance(0.1)
    for peer in (silent, half, hesitant):
        assert await peer.refused() == "no HELLO received within 10 s"
    assert door.engine._door._waiting == {}


async def test_of_too_many_that_say_nothing_the_one_that_is_silent_for_longest_is_cut_off(make):
    door = await make(max_remote_workers=2)
    for _ in range(66):
        await door.connect()
    await door.until(lambda: len(door.engine._door._waiting) == 66)
    await door.attached()
    assert await door.peers[0].refused() == "no HELLO received, and 66 newer connections are waiting"
    await door.peers[1].attach()
    await door.peers[2].say(hello())
    assert await door.peers[2].refused() == "stage 'square' has reached max_remote_workers=2"


async def test_as_many_workers_as_there_may_be_can_come_at_once(make):
    door = await make(max_remote_workers=100)
    peers = [await door.connect() for _ in range(100)]
    for peer in peers:
        peer.writer.write(hello())
    assert sorted([json.loads(bytes((await peer.frame()).payloads[0]))["index"] for peer in peers]) == [*range(100)]


def counts(name, n):
    """What a worker tells of one counter, in JSON."""
    return f'{{"series": [{{"name": "{name}", "labels": {{"lang": "en"}}, "n": {n}}}]}}'.encode()


async def test_what_a_worker_has_counted_is_added_up_from_launch_on_and_until_it_closes(make):
    door = await make()
    peer = await door.connect()
    await peer.say(hello())
    assert (await peer.frame()).kind is Kind.LAUNCH
    for data in (counts("user_hits", "1"), counts("user_hits", "2.5")):
        await peer.say(control(Kind.COUNTS, data))
    await peer.say(control(Kind.READY))
    await peer.say(control(Kind.DETACH))
    await peer.say(control(Kind.COUNTS, counts("user_hits", "4")))
    series = door.stage.counters.series
    await door.until(lambda: dict(series.items()) == {("user_hits", (("lang", "en"),)): 7.5})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (hello(), "the worker sent an unexpected HELLO frame"),
        (control(Kind.READY), "the worker sent an unexpected READY frame"),
        (control(Kind.CHECKED), "the worker sent an unexpected CHECKED frame"),
        (control(Kind.EXAMINED), "the worker sent an unexpected EXAMINED frame"),
        (control(Kind.LAUNCH), "the worker sent an unexpected LAUNCH frame"),
        (control(Kind.FAILED, b'{"message": "now?"}'), "the worker sent an unexpected FAILED frame"),
        (control(Kind.COUNTS, b"none"), "invalid JSON in a COUNTS: "),
        (control(Kind.COUNTS, counts("user_hits", "1e999")), "invalid JSON in a COUNTS: "),
        (control(Kind.COUNTS, counts("user_hits", "-1")), "a count must be a number from 0 to 2**53, got -1.0"),
        (control(Kind.COUNTS, counts("hits", "1")), "'hits' is not a valid counter name"),
        (
            b"".join(encode_answers(9, 0.0, 1, [1], [b"9"], [0])),
            "the worker sent results of a batch that it does not have",
        ),
        (b"".join(encode_answers(1, 0.0, 1, [1], [b"not JSON"], [2])), "invalid JSON in a FAILURE: "),
        (b"".join(encode_answers(1, 0.0, 1, range(5), [b"9"] * 5, [0] * 5)), "a frame announces 5 items in 90 bytes"),
        (BIG.pack(b"PS", 4, 6, 1, 0, 0, 0.0, 1 << 40), "a frame announces 1 items in 1099511627776 bytes"),
        (b"what is this?" * 10, "not a frame"),
    ],
)
async def test_a_worker_that_sends_what_it_should_not_is_cut_off_and_its_items_go_to_another(make, caplog, data, why):
    door = await make()
    foolish = await door.attached()
    call = await door.rig.call(b"3")
    assert (await foolish.frame()).kind is Kind.BATCH
    await foolish.say(data)
    assert why in await foolish.refused()
    other = await door.attached()
    batch = await other.frame()
    await other.say(b"".join(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"9"], [0])))
    await door.until(lambda: call.done)
    assert call.ends == [b"9"]
    assert why in caplog.text


async def test_one_that_never_reads_is_cut_off_within_a_second(make):
    door = await make(remote("square", accepts=("json",), timeout=2.0))
    peer = await door.attached()
    peer.writer.transport.pause_reading()
    call = await door.rig.call(b"[" + b"1," * 2_000_000 + b"1]")
    await door.rig.clock.advance(2.0)
    await door.until(lambda: not door.stage.workers)
    other = await door.attached()
    batch = await other.frame()
    await other.say(b"".join(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"9"], [0])))
    await door.until(lambda: call.done)
    await door.rig.clock.advance(1.0)
    peer.writer.transport.resume_reading()
    async with asyncio.timeout(10):
        while await peer.reader.read(1 << 20):
            pass


async def test_the_old_protocol_needs_a_service_of_one_stage(make, caplog):
    door = await make(remote("square", accepts=("json",)), remote("cube", accepts=("json",)))
    peer = await door.connect()
    await peer.say(bytes(4))
    assert await peer.frame() is None, "it would read a message of ours as one of its own"
    assert "the old batching protocol supports only services with one stage" in caplog.text


async def test_a_stage_has_to_be_named_where_there_are_several(make):
    door = await make(remote("square", accepts=("json",)), remote("cube", accepts=("json",)))
    peer = await door.connect()
    await peer.say(hello(stage=None))
    assert await peer.refused() == "service 'service' has several remote stages: name one of 'square', 'cube'"


async def test_refusals_fill_no_log(make, caplog):
    door = await make()
    for _ in range(10):
        peer = await door.connect()
        await peer.say(b"garbage")
        await peer.refused()
    assert len([record for record in caplog.records if "rejected a worker" in record.getMessage()]) == 1
    await door.rig.clock.advance(1.0)
    peer = await door.connect()
    await peer.say(b"garbage")
    await peer.refused()
    assert "(9 more rejected since the last line)" in caplog.text


async def test_those_that_are_refused_again_and_again_take_few_descriptors(make):
    door = await make()
    before = open_files()
    peers = []
    for _ in range(80):
        peers.append(await door.connect())
        await peers[-1].say(b"garbage")
        with contextlib.suppress(ConnectionResetError):  # it is not told why
            await peers[-1].reader.read(1)
    assert len(open_files() - before) <= 80 + MOST_PARTING, "those of this test, and those that are told why"
    await door.rig.clock.advance(1.0)
    await door.until(lambda: len(open_files() - before) <= 80)
    peer = await door.connect()
    await peer.say(b"garbage")
    assert "not a worker protocol" in await peer.refused()


async def test_a_fork_keeps_no_connection_that_has_said_nothing(make):
    door = await make()
    peer = await door.connect()
    await door.until(lambda: len(door.engine._door._waiting) == 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until this test says so, or has ended
        os._exit(0)
    os.close(read)
    try:
        (first,) = door.engine._door._waiting
        first.transport.abort()
        assert await peer.frame() is None
    finally:
        os.close(write)
        os.waitpid(child, 0)


@pytest.mark.parametrize("data", [control(Kind.READY), b"what is this?" * 10], ids=["READY", "garbage"])
async def test_workers_that_attach_only_to_misbehave_fill_no_log(make, caplog, data):
    caplog.set_level(logging.INFO)
    door = await make()
    caplog.clear()
    for _ in range(40):
        peer = await door.attached()
        await peer.say(data)
        await peer.refused()
        await door.until(lambda: not door.stage.workers)
    assert len(caplog.records) <= 16 + 1, "those of workers that come, and one that tells what is wrong"


async def test_a_stop_cuts_off_who_has_not_attached(make):
    door = await make()
    peer = await door.connect()
    await peer.say(hello()[:20])
    await door.until(lambda: len(door.engine._door._waiting) == 1)
    await door.rig.stop()
    assert await peer.frame() is None, "it may serve the next server, and is not sent away"


async def test_one_that_closes_while_it_is_cut_off_is_forgotten_once(make):
    door = await make()
    raised = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    peer = await door.connect()
    await door.until(lambda: len(door.engine._door._waiting) == 1)
    (first,) = door.engine._door._waiting
    first.transport.close()  # as when its end is read: the loop tells of the loss in its next turn
    door.engine._door._cut_off(first, None)
    assert await peer.frame() is None
    await rest()
    assert door.engine._door._waiting == {}
    assert raised == []


async def test_a_peer_that_is_accepted_while_the_door_closes_does_not_wait_behind_it(make):
    door = await make()
    ours, theirs = socket.socketpair()
    door.engine._door.close()
    await asyncio.get_running_loop().connect_accepted_socket(door.engine._door._accepted, ours)
    peer = Peer(*await asyncio.open_unix_connection(sock=theirs))
    door.peers.append(peer)
    assert await peer.frame() is None
    assert door.engine._door._waiting == {}


async def test_a_start_that_finds_the_socket_taken_tells_one_error(make, make_rig):
    door = await make()
    raised = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    other = make_rig(remote("square"), remote_worker_socket=door.path)
    with pytest.raises(StartFailed, match="another server listens there"):
        await other.engine.start()
    del other
    gc.collect()
    await rest()
    assert raised == []


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_while_the_door_opens_leaves_no_worker(make_rig, tmp_path, turns):
    rig = make_rig(remote("square"), stage(math.sqrt), remote_worker_socket=str(tmp_path / "workers"))
    starting = asyncio.create_task(rig.engine.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    await rig.stop()
    with contextlib.suppress(StartFailed):
        await starting
    await rig.stop()  # where it was not started yet
    assert rig.workers.alive == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("turns", range(6))
async def test_a_start_that_is_cancelled_leaves_nobody_listening(make_rig, tmp_path, turns):
    path = str(tmp_path / "workers")
    rig = make_rig(remote("square"), remote_worker_socket=path)
    starting = asyncio.create_task(rig.engine.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await rig.stop()
    assert list(tmp_path.iterdir()) == []
    await rest()
    assert path not in Path("/proc/net/unix").read_text()


async def test_a_hundred_workers_come_and_go_and_leave_nothing(make, tmp_path):
    door = await make()
    await (await door.attached()).gone()
    await door.until(lambda: not door.stage.workers)
    before, tasks, files = open_files(), len(asyncio.all_tasks()), sorted(tmp_path.iterdir())
    for _ in range(100):
        peer = await door.attached()
        await peer.say(control(Kind.DETACH))
        assert await peer.frame() is None
        await peer.gone()
        await door.until(lambda: not door.stage.workers)
    assert open_files() <= before
    assert len(asyncio.all_tasks()) <= tasks
    assert sorted(tmp_path.iterdir()) == files
    assert len(door.rig.clock.waiting) == 1, "that of the grace"
