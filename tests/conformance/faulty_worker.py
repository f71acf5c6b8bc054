"""A worker from outside with one fault, or with none: `python faulty_worker.py FAULT PATH`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from penstock.transport.framing import FrameDecoder, Kind, encode_answers, encode_control

FAULT, PATH = sys.argv[1:]
CODECS = {1: msgspec.json, 2: msgspec.msgpack}
OK, INVALID, FAILED, EXPIRED = range(4)


def faulty(*names: str) -> bool:
    return FAULT in names


def failure(message: str) -> bytes:
    if faulty("failure-is-text"):
        return message.encode()
    return json.dumps({"message": "" if faulty("no-message") else message}).encode()


def square(value: Any) -> Any:
    if value == -1:
        raise RuntimeError("the model fails")
    return [x * x for x in value] if isinstance(value, list) else value * value


def answer_item(payload: bytes, codec_in: int, codec_out: int) -> tuple[int, bytes]:
    try:
        value = msgspec.convert(CODECS[codec_in].decode(payload), int | float | list[int | float])
    except msgspec.MsgspecError as error:
        if faulty("dies-of-no-bytes") and not payload:
            raise
        return FAILED if faulty("invalid-is-failed") else INVALID, failure(str(error))
    try:
        return OK, CODECS[codec_in if faulty("answers-as-it-reads") else codec_out].encode(square(value))
    except RuntimeError as error:
        return FAILED, failure(str(error))


def answer_batch(frame: Any) -> bytes:
    began = time.monotonic() if faulty("counts-from-receipt") else frame.seconds
    payloads = [bytes(payload) for payload in frame.payloads]
    if faulty("forgets-request-ids") and frame.request_ids():
        body = bytes(frame._body)[26 * len(payloads) :]
        payloads = [body[: len(payload)] for payload in payloads]
    answers: list[tuple[int, bytes]] = []
    for payload, left, one, other in zip(payloads, frame.remaining, frame.codecs_in, frame.codecs_out, strict=True):
        if began + left <= time.monotonic() and not faulty("runs-expired"):
            answers.append((EXPIRED, b"late" if faulty("talks-of-expired") else b""))
        else:
            answers.append(answer_item(payload, one, other))
    bad = [answer for answer in answers if answer[0] in (INVALID, FAILED)]
    if bad and faulty("fails-whole-batch"):
        answers = [bad[0]] * len(answers)
    ids = [int(float(i)) for i in frame.ids] if faulty("ids-are-floats") else list(frame.ids)
    if faulty("reversed"):
        ids.reverse()
    if faulty("reversed-results"):
        answers.reverse()
    if faulty("unknown-status"):
        answers = [(9, payload) for _, payload in answers]
    seconds = float("nan") if faulty("nan-seconds") else 0.0
    frame_id = 0 if faulty("wrong-frame") else frame.frame_id
    statuses, found = [status for status, _ in answers], [payload for _, payload in answers]
    wire = b"".join(encode_answers(frame_id, seconds, 1, ids, found, statuses))
    if faulty("unaligned"):
        body = wire[36 : 36 + 17 * len(found)] + b"".join(found)
        wire = wire[:28] + len(body).to_bytes(8, "little") + body
    return wire


class Worker:
    def __init__(self) -> None:
        self.wake, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.theirs = theirs
        self.leaving = False
        self.max_body = 0
        self.pause = 0.1
        self.kept = b""
        self.decoder = FrameDecoder()
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(theirs.fileno())

    def hello(self) -> bytes:
        says: dict[str, Any] = {"version": 4, "pid": os.getpid(), "language": "python", "stage": "square"}
        says |= {"codecs": ["json", "msgpack"], "health": not faulty("no-health"), "more": 1}
        wrong = {"version-3": ("version", 3), "no-pid": ("pid", 0), "no-language": ("language", "")}
        wrong |= {"other-stage": ("stage", "cube"), "json-only": ("codecs", ["json"]), "pid-is-text": ("pid", "7")}
        says.update([wrong[FAULT]] if FAULT in wrong else [])
        return encode_control(Kind.HELLO, json.dumps(says).encode())[0]

    def serve(self, sock: socket.socket) -> None:
        """One connection, until it is over."""
        sock.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.else\r\n\r\n" if faulty("http") else self.hello())
        if faulty("eager"):
            sock.sendall(encode_control(Kind.READY, b"")[0])
        if not faulty("keeps-half"):
            self.decoder = FrameDecoder()
        if self.kept:
            sock.sendall(self.kept)
        last = time.monotonic()
        ready = False
        while True:
            found, _, _ = select.select([sock, self.wake], [], [], 0.1 if faulty("impatient") and not ready else None)
            if not found and time.monotonic() - last >= 0.1:
                return
            if self.wake in found:
                self.wake.recv(100)
                self.leave(sock)
            if sock not in found:
                continue
            data = sock.recv(1 << 16)
            if not data:
                if faulty("never-closes"):
                    time.sleep(60)
                return
            if faulty("wants-whole-frames"):
                self.decoder = FrameDecoder()
            frames = self.decoder.feed(data)
            for frame in frames[:1] if faulty("one-frame-a-read") else frames:
                ready = True
                self.handle(sock, frame)

    def leave(self, sock: socket.socket) -> None:
        if faulty("killed-by-sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        if faulty("no-detach"):
            sys.exit(0)
        self.leaving = not faulty("detach-and-go-on")
        if not faulty("deaf"):
            sock.sendall(encode_control(Kind.DETACH, b"")[0])
        if faulty("detach-and-drop"):
            sys.exit(0)

    def handle(self, sock: socket.socket, frame: Any) -> None:
        if frame.kind is Kind.LAUNCH:
            launch = json.loads(bytes(frame.payloads[0]))
            if faulty("strict-fields") and len(launch) > 10:
                sys.exit("an unknown field")
            self.pause = 0.1
            self.max_body = launch["max_body"]
            sock.sendall(encode_control(Kind.READY, b"")[0])
        elif frame.kind is Kind.FAILED:
            if not faulty("deaf-to-failed"):
                sys.exit(0 if faulty("failed-is-well") else 1)
        elif frame.kind is Kind.CHECK:
            told = failure("not well") if faulty("not-well") else b""
            sock.sendall(encode_control(Kind.CHECKED, told, 0 if faulty("check-without-id") else frame.frame_id)[0])
        elif frame.kind is Kind.BATCH:
            answers = answer_batch(frame)
            if len(answers) - 36 > self.max_body and not faulty("ignores-max-body"):
                n = len(frame.ids)
                told = encode_answers(frame.frame_id, 0.0, 1, frame.ids, [failure("too long")] * n, [FAILED] * n)
                answers = b"".join(told)
            if faulty("keeps-answers"):
                self.kept = answers
            if faulty("detach-and-forget") and self.leaving:
                return
            sock.sendall(answers)

    def run(self) -> None:
        while True:
            with socket.socket(socket.AF_UNIX) as sock:
                try:
                    sock.connect(PATH)
                    self.serve(sock)
                except OSError:
                    if faulty("needs-the-server"):
                        sys.exit(1)
            if self.leaving:
                sys.exit(3 if faulty("detach-with-3") else 0)
            if faulty("once"):
                sys.exit(0)
            time.sleep(self.pause)
            self.pause = min(2 * self.pause, 5.0)


if __name__ == "__main__":
    Worker().run()
