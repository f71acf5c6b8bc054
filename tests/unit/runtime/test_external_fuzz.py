"""Peers at the door that say anything at any moment: every request is settled, and nothing is raised or left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from night import examples
from penstock.config import Batch
from penstock.errors import NotReady
from penstock.runtime.external_spec import remote
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import FrameDecoder, Kind, encode_answers, encode_control

HELLO = {"version": 4, "pid": 77, "language": "test", "codecs": ["json"], "health": True}


class Socket:
    """Is asked for its number, and has none."""

    def fileno(self) -> int:
        return -1


class Wire:
    """The transport of one connection: what the door writes is decoded, and what the peer says is handed over."""

    def __init__(self) -> None:
        self.protocol: asyncio.BufferedProtocol | None = None
        self.batches = []
        self.checks = []
        self._decoder = FrameDecoder()
        self._closing = False
        self._ended = False

    # -- what the door calls

    def get_extra_info(self, name: str):
        assert name == "socket"
        return Socket()

    def set_protocol(self, protocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data) -> None:
        assert not self._ended, "written to the half that was ended"
        for frame in self._decoder.feed(bytes(data)):
            if frame.kind is Kind.BATCH:
                self.batches.append(frame)
            elif frame.kind is Kind.CHECK:
                self.checks.append(frame)

    def writelines(self, pieces) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._ended = True

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._lost)

    def _lost(self) -> None:
        self.protocol.connection_lost(None)

    # -- what the peer does

    def say(self, data: bytes) -> None:
        while data and not self._closing:
            buffer = self.protocol.get_buffer(-1)
            n = min(len(buffer), len(data))
            assert n > 0
            buffer[:n] = data[:n]
            del buffer
            self.protocol.buffer_updated(n)
            data = data[n:]

    def end(self) -> None:
        if not self._closing and not self.protocol.eof_received():
            self.close()


def control(kind, payload=b"", frame_id=0) -> bytes:
    return b"".join(encode_control(kind, payload, frame_id))


texts = st.sampled_from(["", "odd", "\x00\x1b[2J\r\nfake", "é" * 5000, "$.x"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
failures = st.one_of(
    st.fixed_dictionaries({}, optional=dict.fromkeys(["message", "type", "traceback", "path", "raised_at"], texts)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(["message", "type", "path"], json_values)),
    json_values,
).map(lambda value: json.dumps(value).encode())
payloads = st.one_of(
    st.sampled_from([b"9", b"", b"null", b'"\\ud800"', b'{"message":"\\ud800"}', b'"\xff"', b"NaN", b"[" * 3000]),
    failures,
    st.binary(max_size=40),
)
seconds = st.sampled_from([0.0, 0.1, -1.0, math.inf, -math.inf, math.nan, 1e300, 5e-324])
steps = st.one_of(
    st.tuples(st.just("connect")),
    st.tuples(st.just("greet"), st.fixed_dictionaries({}, optional=dict.fromkeys(HELLO, json_values))),
    st.tuples(st.just("attach")),
    st.tuples(st.just("control"), st.sampled_from(Kind), payloads, st.integers(0, 3)),
    st.tuples(st.just("checked"), payloads),
    st.tuples(
        st.just("answer"),
        st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 255]), payloads), min_size=4, max_size=4),
        seconds,
        st.sampled_from([0, 1, 2**32 - 1]),
    ),
    st.tuples(st.just("answer well"), seconds),
    st.tuples(st.just("answer wrong ids"), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("garbage"), st.binary(min_size=1, max_size=60)),
    st.tuples(st.just("damage"), st.integers(0, 35), st.integers(0, 255)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("close")),
    st.tuples(st.just("call"), st.integers(1, 5), st.sampled_from([0.5, 20.0, math.inf])),
    st.tuples(st.just("time"), st.sampled_from([0.1, 3.0, 11.0])),
)


class Play:
    """One history: which peer speaks is told with each step."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.wires = [Wire(), Wire()]
        self.connected = [False, False]

    def connect(self, who: int) -> Wire:
        if not self.connected[who] or self.wires[who].is_closing():
            self.wires[who] = wire = Wire()
            self.connected[who] = True
            wire.protocol = self.rig.engine._door._accepted()
            wire.protocol.connection_made(wire)
        return self.wires[who]

    async def do(self, who: int, name: str, *more) -> None:
        wire = self.connect(who)
        match name:
            case "greet":
                wire.say(control(Kind.HELLO, json.dumps({**HELLO, **more[0]}).encode()))
            case "attach":
                wire.say(control(Kind.HELLO, json.dumps(HELLO).encode()))
                await rest()
                wire.say(control(Kind.READY))
                await rest()
            case "control":
                wire.say(control(*more))
            case "checked":
                await self.rig.clock.advance(11.0)
                wire.say(control(Kind.CHECKED, more[0], wire.checks.pop(0).frame_id if wire.checks else 1))
            case "answer":
                await self.answer(wire, *more)
            case "answer well":
                await self.answer(wire, [(0, b"9")] * 5, more[0], 1)
            case "answer wrong ids":
                frame_id, first = more
                ids = range(first, first + 2)
                wire.say(b"".join(encode_answers(frame_id, 0.1, 1, ids, [b"9"] * 2, [0] * 2)))
            case "garbage":
                wire.say(more[0])
            case "damage":
                place, byte = more
                frame = bytearray(b"".join(encode_answers(1, 0.1, 1, [1, 2], [b"9", b"8"], [0, 0])))
                frame[place] = byte
                wire.say(bytes(frame))
            case "cut":
                wire.say(control(Kind.READY)[:20])
            case "close":
                wire.end()
            case "call":
                self.call(*more)
            case "time":
                await self.rig.clock.advance(more[0])

    def call(self, n: int, within: float) -> None:
        with contextlib.suppress(NotReady):  # then nobody waits
            self.rig.submit(*[b"3"] * n, within=within)

    async def answer(self, wire: Wire, answers, seconds: float, calls: int) -> None:
        if not wire.batches:
            self.call(2, math.inf)
            await rest()
        if wire.batches:
            batch = wire.batches.pop(0)
            pairs = [answers[i % len(answers)] for i in range(len(batch.ids))]
            said = [payload for _, payload in pairs]
            statuses = [status for status, _ in pairs]
            wire.say(b"".join(encode_answers(batch.frame_id, seconds, calls, batch.ids, said, statuses)))


async def play(rig_type, history, timeout: float | None) -> None:
    raised = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    stage = remote("square", batch=Batch(max_size=4), accepts=("json",), timeout=timeout, unhealthy_after=0.0)
    rig = rig_type(stage, remote_worker_socket="unused", remote_worker_socket_mode=0o600)
    door = rig.engine._door
    door.open = _opened
    door._server = Listening()
    await rig.engine.start()
    acting = Play(rig)
    await acting.do(0, "attach")
    assert rig.engine.stages[0].live_workers == 1
    for who, at_once, step in history:
        await acting.do(who, *step)
        if not at_once:
            await rest()
    counters = rig.engine.stages[0].counters
    assert 0 <= counters.run_seconds.total < math.inf
    assert 0 <= rig.engine.stages[0].queue.expected_run(4) < math.inf
    await rig.clock.advance(0.0)
    rig.calls = [call for call in rig.calls if call.request is not None]
    await rig.end()
    assert door._waiting == {}
    assert raised == []


class Listening:
    """Stands for the socket."""

    def close(self) -> None:
        """Nobody can connect any more."""


async def _opened() -> None:
    """No socket is needed: the test hands over the connections."""


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 1), st.booleans(), steps), min_size=1, max_size=25),
    st.sampled_from([None, 2.0]),
)
def test_whatever_peers_say_each_request_ends_once_and_nothing_is_raised_or_left(rig_type, history, timeout):
    asyncio.run(play(rig_type, history, timeout))
