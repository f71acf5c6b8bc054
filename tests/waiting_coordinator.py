"""The coordinator of one waiting worker, as a test writes it: frames out, frames in, over a socket or memory."""

from __future__ import annotations

import math
import pickle
import socket
import threading
import time

from launches import launch_of
from penstock.codec.formats import Codec
from penstock.transport.framing import (
    FrameDecoder,
    Kind,
    Status,
    encode_batch,
    encode_control,
    encode_recall,
    encode_slab_note,
)
from penstock.transport.messages import Problem, pack, unpack
from penstock.transport.worker_socket import SocketWorkerEnd
from penstock.worker.loop import work

PATIENCE_SECONDS = 20.0


def waiting_launch(**fields):
    return launch_of(**{"service": "svc", "stage": "wait", "index": 0, "count": 1, "concurrency": 64, **fields})


def batch_of(frame_id, *values, left=math.inf, names=b""):
    """The buffers of a BATCH."""
    payloads = [pickle.dumps(value) for value in values]
    n = len(payloads)
    codecs = [Codec.PICKLE] * n
    lengths = list(map(len, payloads))
    return encode_batch(frame_id, time.monotonic(), range(n), payloads, lengths, [left] * n, codecs, codecs, names)


class Coordinator:
    """Starts a worker in a thread, and speaks with it."""

    def __init__(self, target, **fields):
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(PATIENCE_SECONDS)
        self._decoder = FrameDecoder(slabs=True)
        self._frames = []
        self.raised = None
        self.ready = threading.Event()
        self.thread = threading.Thread(
            target=self._work, args=(SocketWorkerEnd(theirs, slabs=True), target), daemon=True
        )
        self.thread.start()
        assert self.next().kind is Kind.HELLO
        self.write(encode_control(Kind.LAUNCH, pack(waiting_launch(**fields))))

    def _work(self, end, target):
        try:
            work(end, target=target)
        except BaseException as error:
            self.raised = error
        finally:
            end.close()

    def write(self, buffers):
        self._ours.sendall(b"".join(buffers))

    def next(self):
        """The next frame; None at the end of the stream."""
        while not self._frames:
            n = self._ours.recv_into(self._decoder.get_buffer())
            if n == 0:
                return None
            self._frames += self._decoder.advance(n)
        return self._frames.pop(0)

    def started(self):
        frame = self.next()
        assert frame.kind is Kind.READY, problem_of(frame)
        return self

    def batch(self, frame_id, *values, **how):
        self.write(batch_of(frame_id, *values, **how))

    def cancel(self, frame_id):
        self.write([encode_slab_note(Kind.CANCEL, b"", frame_id)])

    def recall(self, frame_id, *places):
        self.write([encode_recall(frame_id, places)])

    def check(self, frame_id):
        self.write(encode_control(Kind.CHECK, b"", frame_id))

    def answers(self, n=1):
        """The next `n` answers: the id of each frame, and how its items ended."""
        found = {}
        for _ in range(n):
            frame = self.next()
            assert frame is not None, "the stream has ended"
            assert frame.kind is Kind.ANSWERS
            found[frame.frame_id] = ended(frame)
        return found

    def close(self):
        """Ask the worker to end, and wait until it has; the frames that came until then."""
        self._ours.shutdown(socket.SHUT_WR)
        left = []
        while (frame := self.next()) is not None:
            left.append(frame)
        self.leave()
        return left

    def leave(self):
        """Be gone."""
        self._ours.close()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


def ended(frame):
    """How each item ended: its value, or its status and the message of its problem."""
    return [
        pickle.loads(payload) if status == Status.OK else (Status(status), message_of(payload))
        for status, payload in zip(frame.statuses, frame.payloads, strict=True)
    ]


def message_of(payload):
    return unpack(payload, Problem).message if payload else ""


def problem_of(frame, place=0):
    return unpack(frame.payloads[place], Problem) if frame.payloads and frame.payloads[place] else None
