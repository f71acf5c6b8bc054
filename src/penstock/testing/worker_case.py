"""The coordinator as the suite of workers plays it: a listening socket, a connection, and what it expects of both.

Everything here blocks, and nothing waits for longer than the check's patience: what should have come by then counts as
not coming.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import socket
import struct
import tempfile
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import msgspec

from penstock.codec.formats import Codec
from penstock.errors import ConfigError, ProtocolError
from penstock.transport.external_messages import FAILURE_BYTES, HANDSHAKE_BYTES, ExternalHello, ExternalLaunch
from penstock.transport.framing import (
    MAX_ITEMS,
    VERSION,
    Frame,
    FrameDecoder,
    Kind,
    Status,
    encode_batch,
    encode_control,
)
from penstock.transport.messages import Problem

MAX_BODY: Final = 16 * 1024 * 1024
"""What the suite's LAUNCH lets a worker send in one frame."""
QUIET_SECONDS: Final = 0.3
"""For so long a worker must say nothing where it has nothing to say."""
WITHOUT_SERVER_SECONDS: Final = 0.8
"""For so long no server is there: a worker tries after 0.1, 0.3 and 0.7 s."""
LOOK_SECONDS: Final = 0.1
"""So often it is seen whether a worker that should connect has ended: nothing else tells of that on a socket."""
_IN_TIME: Final = "; its time is up `remaining` after the `seconds` of the frame, on the clock CLOCK_MONOTONIC"
_POLL_SECONDS: Final = 0.0005
"""Between two looks at whether the worker has read what it was sent: nothing tells of that."""


class CheckFailed(AssertionError):
    """A worker does not do what a check asks of it."""


class NoWorker(CheckFailed):
    """No worker has connected and said a HELLO that can be read."""


class CheckSkipped(Exception):
    """A check does not apply to this worker."""


class Ability(Enum):
    """What a check needs beyond frames."""

    OUTSIDE = "its handshake is that of our own workers"
    """It speaks JSON in the handshake and in failures, and is refused and cut off by FAILED."""
    PROCESS = "it is no process"
    """It can be asked to leave by SIGTERM, and ends with an exit status."""
    RECONNECTS = "it does not connect again"
    """Once its connection is gone it makes another."""

    # The values say why a check is left out for a worker that lacks the ability.


class Dialect(Protocol):
    """How the payloads of the handshake and of failures are written."""

    def read_hello(self, payload: bytes) -> ExternalHello:
        """What a HELLO says; ProtocolError if it is none."""

    def write_launch(self, launch: ExternalLaunch) -> bytes:
        """The payload of a LAUNCH."""

    def read_failure(self, payload: bytes) -> Problem:
        """What a failed answer says; ProtocolError if it says nothing that can be read."""


class WorkerUnderTest(Protocol):
    """A worker as the suite starts it: one life at a time."""

    dialect: Dialect
    abilities: frozenset[Ability]

    def start(self, path: str) -> None:
        """Start a worker that connects to the socket at `path`."""

    def ask_to_leave(self) -> None:
        """Have it detach, as SIGTERM does."""

    def wait(self, timeout: float) -> int | None:
        """Its exit status once it has ended; None if it has not within `timeout` seconds."""

    def stop(self) -> None:
        """End what is left of it; harmless where nothing is."""

    def last_words(self) -> str:
        """The end of what it had written for its operator when it was stopped, or ""."""


@dataclass(frozen=True)
class SuiteTerms:
    """What the suite says to a worker, and how long it waits."""

    stage: str = "square"
    codecs: tuple[Codec, ...] = (Codec.JSON, Codec.MSGPACK)
    """The formats that it is spoken to in, the first of them where one will do."""
    max_size: int = 8
    patience: float = 20.0
    """Seconds that one check may take."""


@dataclass(frozen=True)
class Sent:
    """One item of a batch, and what its answer must be."""

    payload: bytes
    status: Status
    value: Any = None
    """The result; of no meaning unless `status` is OK."""
    codec_in: Codec = Codec.JSON
    codec_out: Codec = Codec.JSON
    remaining: float = 60.0


def write_value(codec: Codec, value: Any) -> bytes:
    """`value` as JSON or as MessagePack."""
    return msgspec.json.encode(value) if codec is Codec.JSON else msgspec.msgpack.encode(value)


def read_value(codec: Codec, payload: bytes) -> Any:
    """What a payload says; CheckFailed if it is not of this format."""
    try:
        return msgspec.json.decode(payload) if codec is Codec.JSON else msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckFailed(
            f"expected a result as {codec.name}, got something else: {error}; it begins with {payload[:40]!r}"
        ) from None


def batch_bytes(
    frame_id: int, items: Sequence[Sent], *, first_id: int = 0, sent: float | None = None, request_ids: bytes = b""
) -> bytes:
    """A BATCH of `items`, whose ids count up from `first_id`, sent at `sent` on the monotonic clock, by default now."""
    payloads = [item.payload for item in items]
    buffers = encode_batch(
        frame_id,
        time.monotonic() if sent is None else sent,
        range(first_id, first_id + len(items)),
        payloads,
        list(map(len, payloads)),
        [item.remaining for item in items],
        [item.codec_in for item in items],
        [item.codec_out for item in items],
        request_ids,
    )
    return b"".join(buffers)


class CoordinatorPeer:
    """The coordinator's side of one connection.  What fails is a CheckFailed that says what was expected."""

    def __init__(self, sock: socket.socket, dialect: Dialect, deadline: float) -> None:
        self._sock = sock
        self._dialect = dialect
        self._deadline = deadline
        self._decoder = FrameDecoder(max_body=HANDSHAKE_BYTES, max_items=1, first_claim=HANDSHAKE_BYTES)
        self._frames: deque[Frame] = deque()
        self._over = False
        self.hello = ExternalHello()
        """What the worker has said of itself."""

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._sock.settimeout(self._left("to read what it is sent"))
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise CheckFailed(f"expected the worker to read what it is sent: {len(data)} bytes do not leave") from None
        except OSError as error:
            raise CheckFailed(f"the worker closed the connection while it was sent to: {error.strerror}") from None

    def send_apart(self, pieces: Sequence[bytes]) -> None:
        """Send each piece once the worker has read the one before, so that it reads each by itself."""
        for piece in pieces:
            self.send(piece)
            unread = bytearray(struct.calcsize("i"))
            while fcntl.ioctl(self._sock, termios.TIOCOUTQ, unread) == 0 and any(unread):
                self._left("to read what it is sent, while frames come in pieces")
                time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Send nothing more, and read on: what a coordinator does that drains."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    # -- reading ------------------------------------------------------------------------------------------------

    def next_frame(self, what: str) -> Frame | None:
        """The next frame, or None at the end of the stream; `what` is what the worker is expected to do."""
        while not self._frames:
            if self._over:
                return None
            self._sock.settimeout(self._left(what))
            try:
                n = self._sock.recv_into(self._decoder.get_buffer())
                if n == 0:
                    self._over = True
                    self._decoder.end()
                else:
                    self._frames.extend(self._decoder.advance(n))
            except TimeoutError:
                self._late(what)
            except ProtocolError as error:
                raise CheckFailed(f"expected the worker {what}; what it sent is no frame: {error}") from None
            except OSError as error:
                raise CheckFailed(f"expected the worker {what}; the connection broke: {error.strerror}") from None
        return self._frames.popleft()

    def peek(self, what: str) -> Frame | None:
        """The next frame, or None at the end of the stream, which is still to be taken."""
        frame = self.next_frame(what)
        if frame is not None:
            self._frames.appendleft(frame)
        return frame

    def expect(self, kind: Kind, what: str) -> Frame:
        """The next frame, which is of `kind`."""
        frame = self.next_frame(what)
        if frame is None:
            raise CheckFailed(f"expected the worker {what}; it closed the connection instead")
        if frame.kind is not kind:
            raise CheckFailed(f"expected the worker {what}; it sent {_shown(frame)} instead")
        return frame

    def expect_end(self, why: str) -> None:
        """The worker closes the connection, and sends nothing before that."""
        frame = self.next_frame(f"to close the connection {why}")
        if frame is not None:
            raise CheckFailed(f"expected the worker to close the connection {why}; it sent {_shown(frame)} instead")

    def expect_quiet(self, why: str, seconds: float = QUIET_SECONDS) -> None:
        """Nothing comes for a while, and the connection stays."""
        if self._frames:
            raise CheckFailed(f"expected the worker to wait {why}; it sent {_shown(self._frames[0])}")
        self._sock.settimeout(seconds)
        try:
            data = self._sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return
        except OSError as error:
            raise CheckFailed(f"expected the worker to wait {why}; the connection broke: {error.strerror}") from None
        did = "sent something" if data else "closed the connection"
        raise CheckFailed(f"expected the worker to wait {why}; it {did}")

    # -- the handshake ------------------------------------------------------------------------------------------

    def read_hello(self) -> None:
        """Take the worker's HELLO."""
        try:
            frame = self.expect(Kind.HELLO, "to say HELLO once it has connected")
        except CheckFailed as error:
            raise NoWorker(str(error)) from None
        try:
            self.hello = self._dialect.read_hello(bytes(frame.payloads[0]))
        except ProtocolError as error:
            raise NoWorker(f"expected a HELLO that can be read: {error}") from None

    def launch_bytes(self, terms: SuiteTerms, max_body: int = MAX_BODY) -> bytes:
        """The LAUNCH that the worker is sent."""
        launch = ExternalLaunch(
            service="suite",
            stage=terms.stage,
            index=0,
            count=1,
            batched=True,
            max_size=terms.max_size,
            accepts=tuple(codec.name.lower() for codec in terms.codecs),
            max_body=max_body,
            validate_results=False,
            allow_nan=False,
        )
        return b"".join(encode_control(Kind.LAUNCH, self._dialect.write_launch(launch)))

    def expect_ready(self) -> None:
        """The worker has been sent its LAUNCH, and is ready in time."""
        self._decoder.bound(max_body=max(MAX_BODY, FAILURE_BYTES), max_items=MAX_ITEMS)
        self.expect(Kind.READY, "to say READY after LAUNCH")

    # -- batches ------------------------------------------------------------------------------------------------

    def expect_answers(self, frame_id: int, items: Sequence[Sent], *, first_id: int = 0) -> None:
        """The answers to a batch of `items`, each as it must be, and in the order of the items."""
        frame = self.expect(Kind.ANSWERS, f"to answer the batch {frame_id}, of {len(items)} items, by ANSWERS")
        if frame.frame_id != frame_id:
            raise CheckFailed(f"expected ANSWERS to the batch {frame_id}; they are to {frame.frame_id}")
        ids = tuple(range(first_id, first_id + len(items)))
        if frame.ids != ids:
            raise CheckFailed(f"expected answers to the items {_few(ids)}, in that order; got {_few(frame.ids)}")
        if not (math.isfinite(frame.seconds) and frame.seconds >= 0):
            raise CheckFailed(f"expected the seconds that the batch took in the header; got {frame.seconds}")
        for place, (item, status, payload) in enumerate(zip(items, frame.statuses, frame.payloads, strict=True)):
            self._check_answer(f"item {place} of {len(items)}", item, status, bytes(payload))

    def run(self, frame_id: int, items: Sequence[Sent], **more: Any) -> None:
        """Send a batch of `items`, and take its answers."""
        self.send(batch_bytes(frame_id, items, **more))
        self.expect_answers(frame_id, items, first_id=more.get("first_id", 0))

    def _check_answer(self, where: str, item: Sent, status: int, payload: bytes) -> None:
        if status != item.status:
            got = Status(status).name if status in set(Status) else "which is none"
            raise CheckFailed(
                f"{where}, {item.payload[:40]!r}: expected status {item.status.value} ({item.status.name}), "
                f"got {status} ({got}){_quoted(payload)}{_IN_TIME if status == Status.EXPIRED else ''}"
            )
        if item.status is Status.EXPIRED:
            if payload:
                raise CheckFailed(f"{where} has expired: expected an empty payload, got {len(payload)} bytes")
        elif item.status is Status.OK:
            value = read_value(item.codec_out, payload)
            if value != item.value:
                raise CheckFailed(f"{where}, {item.payload[:40]!r}: expected {_cut(item.value)}, got {_cut(value)}")
        else:
            try:
                problem = self._dialect.read_failure(payload)
            except ProtocolError as error:
                raise CheckFailed(f"{where} failed: expected to read why; {error}") from None
            if not problem.message:
                raise CheckFailed(f"{where} failed: expected a message with the reason, got an empty one")

    # -- time ---------------------------------------------------------------------------------------------------

    def _left(self, what: str) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            self._late(what)
        return left

    def _late(self, what: str) -> NoReturn:
        raise CheckFailed(f"expected the worker {what}; it has not in the time that a check may take")


class WorkerCase:
    """One run of one check: a folder with the server's socket, a worker, and the connections it makes."""

    def __init__(self, worker: WorkerUnderTest, terms: SuiteTerms) -> None:
        self.worker = worker
        self.terms = terms
        self._deadline = time.monotonic() + terms.patience
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-")
        self.path = str(Path(self._folder.name) / "workers.sock")
        self._listener: socket.socket | None = None
        self._peers: list[CoordinatorPeer] = []

    # -- the server ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Have a server at `path`; ConfigError where the folder for temporary files has no place for it."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.path)
        except OSError as error:
            listener.close()
            raise ConfigError(f"there can be no socket at {self.path}: {error}") from None
        listener.listen()
        self._listener = listener

    def go_away(self) -> None:
        """Have no server there any more: no connection and no socket."""
        for peer in self._peers:
            peer.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            Path(self.path).unlink()

    def accept(self, when: str = "to connect to the socket") -> CoordinatorPeer:
        """The next connection, whose HELLO has been read."""
        assert self._listener is not None
        self._listener.settimeout(LOOK_SECONDS)
        while True:
            try:
                sock, _ = self._listener.accept()
                break
            except TimeoutError:
                status = self.worker.wait(0)
                if status is not None:
                    raise NoWorker(f"expected the worker {when}; it ended with status {status}") from None
                if time.monotonic() >= self._deadline:
                    raise NoWorker(f"expected the worker {when}; it has not within {self.terms.patience:g} s") from None
        peer = CoordinatorPeer(sock, self.worker.dialect, self._deadline)
        self._peers.append(peer)
        peer.read_hello()
        return peer

    # -- the worker ---------------------------------------------------------------------------------------------

    def greeted(self) -> CoordinatorPeer:
        """A worker that has been started and has said HELLO."""
        self.listen()
        self.worker.start(self.path)
        return self.accept()

    def expect_patience(self) -> None:
        """While nobody listens the worker goes on, for some of its attempts to connect."""
        status = self.worker.wait(WITHOUT_SERVER_SECONDS)
        if status is not None:
            raise CheckFailed(
                f"expected the worker to try again while no server is there; it ended with status {status}"
            )

    def make_ready(self, peer: CoordinatorPeer) -> CoordinatorPeer:
        """Launch a worker that has said HELLO, and wait until it is ready."""
        peer.send(peer.launch_bytes(self.terms))
        peer.expect_ready()
        return peer

    def ready(self) -> CoordinatorPeer:
        """A worker that has been started and is ready."""
        return self.make_ready(self.greeted())

    def expect_exit(self, why: str, good: Callable[[int], bool], expected: str) -> None:
        """The worker's process ends in time, with a status that is `good`."""
        status = self.worker.wait(max(self._deadline - time.monotonic(), 0.001))
        if status is None:
            raise CheckFailed(f"expected the worker to end {why}; it keeps running")
        if not good(status):
            raise CheckFailed(f"expected the worker to end {why} with {expected}; it ended with status {status}")

    # -- items --------------------------------------------------------------------------------------------------

    def codec(self) -> Codec:
        """The format for what is not about formats."""
        return self.terms.codecs[0]

    def number(self, value: float | list[int], **more: Any) -> Sent:
        """An item that is a number, or a list of numbers, and has to be squared."""
        codec_in = more.setdefault("codec_in", self.codec())
        more.setdefault("codec_out", self.codec())
        squares = [x * x for x in value] if isinstance(value, list) else value * value
        return Sent(write_value(codec_in, value), Status.OK, squares, **more)

    def invalid(self, value: Any) -> Sent:
        """An item that is no number."""
        return Sent(write_value(self.codec(), value), Status.INVALID, codec_in=self.codec(), codec_out=self.codec())

    def no_bytes(self) -> Sent:
        """An item of no bytes, which is nothing in JSON and in MessagePack."""
        return Sent(b"", Status.INVALID, codec_in=self.codec(), codec_out=self.codec())

    def failing(self) -> Sent:
        """The item at which the model fails."""
        return Sent(write_value(self.codec(), -1), Status.FAILED, codec_in=self.codec(), codec_out=self.codec())

    def expired(self, value: int = -1, remaining: float = -0.001) -> Sent:
        """An item whose time has passed; if it is run nevertheless, the model fails at it."""
        payload = write_value(self.codec(), value)
        return Sent(payload, Status.EXPIRED, codec_in=self.codec(), codec_out=self.codec(), remaining=remaining)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the worker, and leave no socket and no file."""
        try:
            self.go_away()
        finally:
            self.worker.stop()
            self._folder.cleanup()


@contextmanager
def open_case(worker: WorkerUnderTest, terms: SuiteTerms) -> Iterator[WorkerCase]:
    """A case that is closed in the end."""
    case = WorkerCase(worker, terms)
    try:
        yield case
    finally:
        case.close()


def check_version(said: object) -> None:
    """CheckFailed unless a HELLO says the version of this protocol."""
    if said != VERSION:
        raise CheckFailed(f"expected the version {VERSION} in HELLO, got {said!r}")


def _shown(frame: Frame) -> str:
    if frame.kind in (Kind.BATCH, Kind.ANSWERS):
        return f"{frame.kind.name} {frame.frame_id}"
    return f"{frame.kind.name}{_quoted(bytes(frame.payloads[0]))}"


def _quoted(payload: bytes) -> str:
    return f": {payload[:200].decode(errors='replace')}" if payload else ""


def _few(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
