"""The server's end of the door for workers from outside, played by a test, and the program that attaches to it.

The test says what the server sends and when, byte for byte, and reads what the worker answers.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from served import PENSTOCK, Program

from penstock.codec.formats import Codec
from penstock.transport.framing import Frame, FrameDecoder, Kind, Status, encode_batch, encode_control

PATIENCE_SECONDS = 20.0
"""Seconds; only a broken test waits this long."""
LAUNCH = {
    "service": "shop", "stage": "square", "index": 0, "count": 64, "batched": False, "max_size": 1,
    "accepts": ["json", "msgpack"], "max_body": 1 << 28, "validate_results": False, "allow_nan": False,
}  # fmt: skip


class Peer:
    """One connection of a worker."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(PATIENCE_SECONDS)
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def send(self, buffers: Sequence[Any]) -> None:
        self.sock.sendall(b"".join(buffers))

    def control(self, kind: Kind, message: Any = None, frame_id: int = 0) -> None:
        self.send(encode_control(kind, b"" if message is None else json.dumps(message).encode(), frame_id))

    def frame(self) -> Frame | None:
        """The next frame; None at end-of-stream."""
        while not self._frames:
            data = self.sock.recv(1 << 16)
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def expect(self, kind: Kind) -> Frame:
        frame = self.frame()
        assert frame is not None, f"the worker has gone, where a {kind.name} was due"
        assert frame.kind is kind, (frame.kind, bytes(frame.payloads[0]))
        return frame

    def message(self, kind: Kind) -> dict[str, Any]:
        """The JSON of the next frame, which is of `kind`."""
        return json.loads(bytes(self.expect(kind).payloads[0]))

    def launch(self, **changed: Any) -> dict[str, Any]:
        """Have it be READY; its HELLO."""
        hello = self.message(Kind.HELLO)
        self.control(Kind.LAUNCH, {**LAUNCH, **changed})
        assert bytes(self.expect(Kind.READY).payloads[0]) == b""
        return hello

    def batch(self, frame_id: int, *payloads: bytes, codec: int = Codec.JSON, left: float = math.inf, **more) -> None:
        """Send a BATCH of items that each have `left` seconds."""
        n = len(payloads)
        lengths, codecs = list(map(len, payloads)), [codec] * n
        now = time.monotonic()
        ids = [10 * frame_id + i for i in range(n)]
        self.send(encode_batch(frame_id, now, ids, payloads, lengths, [left] * n, codecs, codecs, **more))

    def answers(self, frame_id: int) -> list[tuple[Status, Any]]:
        """What became of each item of the batch: its status, and what JSON has of it."""
        frame = self.expect(Kind.ANSWERS)
        assert frame.frame_id == frame_id
        assert frame.ids == tuple(10 * frame_id + i for i in range(len(frame.ids)))
        found = [json.loads(bytes(payload)) if len(payload) else None for payload in frame.payloads]
        return list(zip(map(Status, frame.statuses), found, strict=True))

    def half_close(self) -> None:
        """Send nothing more."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def ended(self) -> None:
        """Wait for the end of what the worker sends; nothing may come before."""
        frame = self.frame()
        assert frame is None, (frame.kind, list(map(bytes, frame.payloads)))


class Door:
    """A socket that workers attach to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.peers: list[Peer] = []
        self.open()

    def open(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(PATIENCE_SECONDS)
        self._sock.bind(str(self.path))
        self._sock.listen()

    def accept(self) -> Peer:
        sock, _ = self._sock.accept()
        self.peers.append(Peer(sock))
        return self.peers[-1]

    def close(self) -> None:
        """Be gone, with every connection."""
        self._sock.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        while self.peers:
            self.peers.pop().close()


@contextmanager
def attached(folder: Path, source: str, *options: str, **more: Any) -> Iterator[Program]:
    """`penstock worker run model:Square` for the socket `s` of `folder`, where `source` is the module."""
    (folder / "model.py").write_text(source)
    program = Program(folder, *PENSTOCK, "worker", "run", "model:Square", "--connect", "s", *options, **more)
    try:
        yield program
    finally:
        program.destroy()
