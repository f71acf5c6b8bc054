"""A worker of the old batching protocol as an incarnation: what its slot sends and hears, without a socket."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.errors import ProtocolError
from penstock.runtime.ventu_incarnation import VentuIncarnation
from penstock.testing.virtual_clock import VirtualClock, rest
from penstock.transport.external_channel import CUT_AFTER_SECONDS
from penstock.transport.framing import Kind, Status, encode_batch, encode_control
from penstock.transport.messages import Hello, Problem, unpack
from penstock.transport.ventu_ import FIRST_CLAIM

PACK = msgspec.msgpack.encode
HELLO = bytes(4)
OK, INVALID, FAILED, EXPIRED = map(int, list(Status)[:4])


class Transport(asyncio.Transport):
    """What an event loop gives to a protocol; `reads` says whether the other end takes what is written."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.closing = self.eof = self.aborted = False
        self.reads = True
        self.protocol = None

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        assert not self.closing
        assert not self.eof
        self.written.append(bytes(data))

    def writelines(self, parts):
        for part in parts:
            self.write(part)

    def is_closing(self):
        return self.closing

    def write_eof(self):
        """End the stream; a worker that reads closes its own end then."""
        self.eof = True
        if self.reads:
            self.lose()

    def abort(self):
        self.aborted = self.closing = True
        self.lose()

    def lose(self, error=None):
        self.closing = True
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)

    def receive(self, data):
        """Bytes come, as an event loop hands them over."""
        while data and not self.closing:
            buffer = self.protocol.get_buffer(-1)
            n = min(len(buffer), len(data))
            buffer[:n] = data[:n]
            self.protocol.buffer_updated(n)  # while there is a view of the buffer: it cannot be resized
            buffer.release()
            data = data[n:]


class Greeter:
    def __init__(self, refuse=""):
        self.heard = []
        self.refuse = refuse

    def greeted(self, peer, hello):
        self.heard.append(("greeted", hello))
        if self.refuse:
            raise ProtocolError(self.refuse)

    def refused(self, peer, why):
        self.heard.append(("refused", why))

    def left(self, peer):
        self.heard.append(("left",))


class Slot:
    """An owner that notes what it hears."""

    def __init__(self):
        self.peer = None
        self.frames = []
        self.ends = []

    def broken(self, error):
        self.peer.kill(str(error))

    def frame_received(self, frame):
        assert not self.ends
        self.frames.append(frame)

    def ended(self, reason):
        self.ends.append(reason)

    @property
    def kinds(self):
        return [frame.kind for frame in self.frames]


class Rig:
    """A worker that has said hello; `serve` gives it a slot."""

    def __init__(self, refuse="", data=HELLO):
        self.clock = VirtualClock()
        self.greeter = Greeter(refuse)
        self.transport = Transport()
        self.slot = Slot()
        self.peer = VentuIncarnation(self.greeter, self.clock, 77)
        self.slot.peer = self.peer
        self.peer.channel.adopt(self.transport, data)

    async def serve(self, max_body=1000):
        self.peer.serve(self.slot, max_body=max_body, max_items=4)
        assert self.slot.frames == []
        await rest()
        self.peer.send(encode_control(Kind.LAUNCH, b"what it is told to be"))
        await rest()
        assert self.slot.kinds == [Kind.HELLO, Kind.READY]
        self.slot.frames.clear()
        return self

    def send(self, *payloads, frame_id=1, remaining=10.0):
        n = len(payloads)
        columns = (range(n), payloads, list(map(len, payloads)), [remaining] * n, [1] * n, [1] * n)
        self.peer.send(encode_batch(frame_id, self.clock.now(), *columns))

    @property
    def sent(self):
        """The last map that the worker was sent."""
        return msgspec.msgpack.decode(self.transport.written[-1][4:])

    def answer(self, value):
        packed = PACK(value)
        self.transport.receive(len(packed).to_bytes(4, "big") + packed)

    def echo(self):
        self.answer(self.sent)


async def test_it_greets_with_its_first_message_and_says_nothing_of_codecs():
    rig = Rig()
    [(what, hello)] = rig.greeter.heard
    assert what == "greeted"
    assert hello.pid == rig.peer.pid == 77
    assert hello.stage is None
    assert not hello.health
    assert hello.language == ""
    assert set(hello.codecs) == {"json", "msgpack", "raw", "npy"}


async def test_it_says_hello_and_is_ready_when_it_is_launched():
    rig = Rig()
    rig.peer.serve(rig.slot, max_body=1000, max_items=4)
    assert rig.slot.frames == []  # nothing is reported before `serve` has returned
    await rest()
    assert rig.slot.kinds == [Kind.HELLO]
    assert unpack(rig.slot.frames[0].payloads[0], Hello).pid == 77
    rig.peer.send(encode_control(Kind.LAUNCH, b""))
    assert rig.slot.kinds == [Kind.HELLO]  # its slot is not done with sending
    await rest()
    assert rig.slot.kinds == [Kind.HELLO, Kind.READY]
    assert rig.transport.written == []  # the worker is told nothing of all that
    assert await rig.peer.stacks() == ""


async def test_a_batch_is_one_message_written_at_once_and_its_answer_one_frame():
    rig = await Rig().serve()
    rig.send(b"a", b"b" * 2000, frame_id=5)
    await rest()
    assert len(rig.transport.written) == 1
    assert list(rig.sent.values()) == [b"a", b"b" * 2000]
    await rig.clock.advance(0.25)
    first, second = rig.sent
    rig.answer({first: b"A", second: "no", "error_ids": second})
    [frame] = rig.slot.frames
    assert (frame.frame_id, frame.ids, frame.statuses) == (5, (0, 1), (OK, INVALID))
    assert (frame.seconds, frame.calls) == (0.25, 1)
    assert bytes(frame.payloads[0]) == b"A"
    assert unpack(frame.payloads[1], Problem).message == "no"


async def test_an_answer_that_is_larger_than_the_first_claim_comes_in_pieces():
    rig = await Rig().serve(max_body=1 << 20)
    rig.send(b"a" * 3 * FIRST_CLAIM)
    await rest()
    rig.echo()
    [frame] = rig.slot.frames
    assert bytes(frame.payloads[0]) == b"a" * 3 * FIRST_CLAIM
    rig.send(b"b", frame_id=2)
    await rest()
    rig.echo()
    assert bytes(rig.slot.frames[1].payloads[0]) == b"b"


async def test_a_batch_that_is_sent_ahead_is_held_until_the_answer_has_come():
    rig = await Rig().serve()
    rig.send(b"a", frame_id=1)
    rig.send(b"b", frame_id=2)
    await rest()
    assert len(rig.transport.written) == 1
    rig.echo()
    assert len(rig.transport.written) == 2
    rig.echo()
    assert [(frame.frame_id, bytes(frame.payloads[0])) for frame in rig.slot.frames] == [(1, b"a"), (2, b"b")]


async def test_what_expires_while_it_is_held_is_answered_in_its_turn_and_not_sent():
    rig = await Rig().serve()
    rig.send(b"a", frame_id=1)
    rig.send(b"b", frame_id=2, remaining=1.0)
    rig.send(b"c", frame_id=3)
    await rig.clock.advance(2.0)
    rig.echo()
    assert list(rig.sent.values()) == [b"c"]
    rig.echo()
    found = [(frame.frame_id, frame.statuses) for frame in rig.slot.frames]
    assert found == [(1, (OK,)), (2, (EXPIRED,)), (3, (OK,))]


async def test_a_batch_that_has_expired_is_answered_after_the_slot_has_sent_it():
    rig = await Rig().serve()
    rig.send(b"a", remaining=0.0)
    assert rig.slot.frames == []
    await rest()
    [frame] = rig.slot.frames
    assert (frame.statuses, frame.seconds, frame.calls) == ((EXPIRED,), 0.0, 0)
    assert rig.transport.written == []


async def test_its_end_of_stream_comes_after_the_last_answer():
    rig = await Rig().serve()
    rig.send(b"a", frame_id=1)
    rig.send(b"b", frame_id=2)
    rig.peer.close()
    await rest()
    assert not rig.transport.eof
    rig.echo()
    assert not rig.transport.eof
    rig.echo()
    assert rig.transport.eof
    assert [frame.frame_id for frame in rig.slot.frames] == [1, 2]
    rig.transport.lose()
    await rest()
    assert rig.slot.ends == ["it closed its connection"]


async def test_an_idle_worker_is_told_at_once():
    rig = await Rig().serve()
    rig.peer.close()
    await rest()
    assert rig.transport.eof


async def test_it_is_cut_off_without_a_word():
    rig = await Rig().serve()
    rig.send(b"a")
    await rest()
    rig.peer.kill("a batch ran longer than 1 s")
    assert rig.slot.ends == []
    await rest()
    assert rig.slot.ends == ["a batch ran longer than 1 s"]
    assert len(rig.transport.written) == 1
    assert rig.transport.closing
    assert not rig.transport.aborted
    assert rig.clock.waiting == []
    rig.peer.kill("again")
    rig.send(b"b")
    await rest()
    assert len(rig.slot.ends) == 1


async def test_one_that_does_not_read_is_cut_off_after_a_second():
    rig = await Rig().serve()
    rig.transport.reads = False
    rig.peer.kill("it only fails")
    await rest()
    assert rig.slot.ends == ["it only fails"]
    await rig.clock.advance(CUT_AFTER_SECONDS - 0.001)
    assert not rig.transport.aborted
    await rig.clock.advance(0.001)
    assert rig.transport.aborted
    assert len(rig.slot.ends) == 1


async def test_its_death_is_reported():
    rig = await Rig().serve()
    rig.send(b"a")
    await rest()
    rig.transport.lose(ConnectionResetError("reset"))
    await rest()
    assert rig.slot.ends == ["it closed its connection"]


async def test_its_death_inside_an_answer_is_reported_as_such():
    rig = await Rig().serve()
    rig.send(b"a")
    await rest()
    rig.transport.receive(b"\x00\x00\x00\x09\x81")
    rig.transport.lose()
    await rest()
    assert rig.slot.ends == ["the connection ended inside a message"]
    assert rig.slot.frames == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xff", "a message announces 4294967295 bytes; the limit is 1000"),
        (b"\x00\x00\x00\x01\x90", "not a map"),
        (HELLO, "not a map"),
        (b"\x00\x00\x00\x05\x81\xa1x\xa1y", "an unknown id"),
    ],
)
async def test_who_sends_what_no_worker_sends_is_cut_off_and_its_slot_is_told_why(data, reason):
    rig = await Rig().serve()
    rig.send(b"a")
    await rest()
    rig.transport.receive(data)
    assert rig.transport.closing
    await rest()
    [why] = rig.slot.ends
    assert reason in why
    assert rig.slot.frames == []


async def test_one_that_talks_though_it_has_no_batch_is_cut_off_even_before_it_has_a_slot():
    rig = Rig()
    rig.transport.receive(b"\x00")
    assert rig.transport.closing
    rig.peer.serve(rig.slot, max_body=1000, max_items=4)
    await rest()
    assert rig.slot.ends == ["the worker sent a message without having a batch"]
    rig = await Rig().serve()
    rig.transport.receive(b"\x00")
    await rest()
    assert rig.slot.ends == ["the worker sent a message without having a batch"]


async def test_one_that_is_refused_is_cut_off():
    rig = Rig(refuse="another stage")
    assert rig.greeter.heard[1] == ("refused", "another stage")
    assert rig.transport.closing
    assert rig.transport.written == []


async def test_a_first_message_that_is_not_empty_is_refused():
    rig = Rig(data=b"\x00\x00\x00\x07")
    [(what, why)] = rig.greeter.heard
    assert what == "refused"
    assert "first message" in why


async def test_one_that_leaves_before_it_has_a_slot_has_left():
    rig = Rig()
    rig.transport.lose()
    await rest()
    assert len(rig.greeter.heard) == 1, "its stage has it"
    rig.peer.serve(rig.slot, max_body=1000, max_items=4)
    await rest()
    assert rig.slot.ends == ["it closed its connection"]


async def test_one_that_leaves_while_it_gets_a_slot_is_reported_after_that():
    rig = Rig()
    rig.peer.serve(rig.slot, max_body=1000, max_items=4)
    rig.transport.lose()
    assert rig.slot.ends == []
    await rest()
    assert rig.slot.ends == ["it closed its connection"]


async def test_nothing_is_reported_after_its_end():
    rig = await Rig().serve()
    rig.send(b"a", remaining=0.0)
    rig.peer.kill("over")
    await rest()
    assert rig.slot.ends == ["over"]
    assert rig.slot.frames == []
