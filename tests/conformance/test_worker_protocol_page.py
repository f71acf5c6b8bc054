"""The page on the protocol of workers from outside is held to the code, and its exchange to real workers."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from penstock.codec.formats import CODEC_NAMES
from penstock.core.request_ids import split_ids
from penstock.runtime.external_stage import EARLY_SECONDS
from penstock.testing.command_worker import CommandWorker
from penstock.testing.worker_case import SuiteTerms, open_case
from penstock.transport import framing
from penstock.transport.external_messages import (
    FAILURE_BYTES,
    HANDSHAKE_BYTES,
    ExternalFailure,
    ExternalHello,
    ExternalLaunch,
    read_external_failure,
    unpack_json,
)
from penstock.transport.framing import FrameDecoder, Kind, Status, encode_answers, encode_batch, encode_control
from penstock.transport.messages import MESSAGE_BYTES, NAME_BYTES, TRACEBACK_BYTES, SeriesCount

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "worker-protocol.md").read_text()
NODE = ["node", str(ROOT / "examples" / "node_worker" / "worker.mjs")]
PYTHON = [sys.executable, str(Path(__file__).parent / "faulty_worker.py"), "none"]


def exchange() -> list[tuple[str, str, bytes]]:
    """The frames of the page's exchange: who sends each, its kind, its bytes."""
    found = []
    for block in re.findall(r"^```hex\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        first, *lines = block.splitlines()
        sender, kind = re.fullmatch(r"# (worker|coordinator): ([A-Z]+)", first).groups()
        found.append((sender, kind, bytes.fromhex("".join(line.partition("|")[0] for line in lines))))
    return found


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, or below a sentence."""
    rows = PAGE.partition(f"\n{heading}")[2].partition("\n|---")[2].partition("\n\n")[0].splitlines()[1:]
    assert rows, heading
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def names(rows: list[list[str]]) -> list[str]:
    return [row[0].strip("`") for row in rows]


# -- the exchange -----------------------------------------------------------------------------------------------------


def test_the_exchange_has_every_step_in_its_order():
    assert [(sender, kind) for sender, kind, _ in exchange()] == [
        ("worker", "HELLO"),
        ("coordinator", "LAUNCH"),
        ("worker", "READY"),
        ("coordinator", "BATCH"),
        ("worker", "ANSWERS"),
        ("worker", "DETACH"),
    ]


def test_the_bytes_of_the_exchange_are_the_frames_that_they_are_said_to_be():
    for _, kind, wire in exchange():
        decoder = FrameDecoder()
        (frame,) = decoder.feed(wire)
        decoder.end()
        assert frame.kind.name == kind
        payloads = [bytes(payload) for payload in frame.payloads]
        if kind == "BATCH":
            lengths = list(map(len, payloads))
            columns = (frame.remaining, frame.codecs_in, frame.codecs_out, frame.request_ids())
            again = encode_batch(frame.frame_id, frame.seconds, frame.ids, payloads, lengths, *columns)
        elif kind == "ANSWERS":
            again = encode_answers(frame.frame_id, frame.seconds, frame.calls, frame.ids, payloads, frame.statuses)
        else:
            again = encode_control(frame.kind, payloads[0])
        assert b"".join(again) == wire


def test_the_words_beside_the_bytes_say_what_a_decoder_reads():
    frames = {kind: FrameDecoder().feed(wire)[0] for _, kind, wire in exchange()}
    assert unpack_json(frames["HELLO"].payloads[0], ExternalHello) == ExternalHello(
        pid=71, language="node", codecs=("json",)
    )
    launch = unpack_json(frames["LAUNCH"].payloads[0], ExternalLaunch)
    assert (launch.stage, launch.count, launch.max_size, launch.accepts) == ("square", 64, 4, ("json",))
    batch, answers = frames["BATCH"], frames["ANSWERS"]
    assert (batch.frame_id, batch.seconds, batch.ids) == (1, 1.0, (7, 8, 9))
    assert batch.remaining == (float("inf"), float("inf"), -1.0)
    assert split_ids(batch.request_ids(), 3) == ["abc", "", "abd"]
    assert [bytes(payload) for payload in batch.payloads] == [b"3", b'"x"', b"2"]
    assert (answers.frame_id, answers.seconds, answers.calls, answers.ids) == (1, 0.5, 1, (7, 8, 9))
    assert answers.statuses == (Status.OK, Status.INVALID, Status.EXPIRED)
    assert read_external_failure(answers.payloads[1]).message == "expected a number"
    assert PAGE.count("| 91 bytes of body") == PAGE.count("| 83 bytes of body") == 1


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(NODE, id="node", marks=pytest.mark.skipif(not shutil.which("node"), reason="there is no node")),
    ],
)
def test_a_worker_that_is_sent_the_bytes_of_the_page_answers_as_the_page_says(command):
    sent = {kind: wire for sender, kind, wire in exchange() if sender == "coordinator"}
    said = {kind: FrameDecoder().feed(wire)[0] for sender, kind, wire in exchange() if sender == "worker"}
    assert time.monotonic() > 0, "the item that has expired did so at 0.0 s"
    with open_case(CommandWorker(command), SuiteTerms()) as case:
        peer = case.greeted()
        peer.send(sent["LAUNCH"])
        peer.expect_ready()
        peer.send(sent["BATCH"])
        answers, expected = peer.expect(Kind.ANSWERS, "to answer"), said["ANSWERS"]
        assert (answers.frame_id, answers.ids, answers.statuses) == (1, expected.ids, expected.statuses)
        assert json.loads(bytes(answers.payloads[0])) == json.loads(bytes(expected.payloads[0])) == 9
        assert len(answers.payloads[2]) == 0
        case.worker.ask_to_leave()
        peer.expect(Kind.DETACH, "to leave")
        peer.end()
        peer.expect_end("once it has left")
        case.expect_exit("once it has left", lambda status: status == 0, "status 0")


# -- the tables -------------------------------------------------------------------------------------------------------


def test_the_header_is_as_the_page_has_it():
    rows = table("## A frame")
    sizes = {"2 bytes": 2, "u8": 1, "u32": 4, "u64": 8, "f64": 8}
    offset = 0
    for told, kind, *_ in rows:
        assert int(told) == offset
        offset += sizes[kind]
    assert offset == 36 == len(encode_control(Kind.READY, b"")[0])
    assert f"| `version` | {framing.VERSION} |" in PAGE


def test_the_numbers_of_the_page_are_those_of_the_code():
    kinds = {name: int(number) for number, name, *_ in table("Ids are any 64 bits.")}
    ours = (
        Kind.EXAMINE,
        Kind.EXAMINED,
        Kind.RELEASED,
        Kind.KEPT,
        Kind.TRIM,
        Kind.RECALL,
        Kind.SHORTAGE,
        Kind.LOST,
        Kind.SUSPECT,
        Kind.DEVICE_MEMORY,
        Kind.CANCEL,
    )
    assert kinds == {kind.name: int(kind) for kind in Kind if kind not in ours}
    assert ours == (7, 8, 12, 13, 14, 15, 16, 17, 18, 19, 21)
    statuses = {name: int(number) for number, name, *_ in table("The payloads begin at byte 17")}
    assert statuses == {status.name: int(status) for status in Status if status is not Status.RECALLED}
    formats = {name.strip("`"): int(number) for number, name, *_ in table("### Formats")}
    assert formats == {name: int(codec) for name, codec in CODEC_NAMES.items()}
    assert framing.ALIGN_FROM_BYTES == 1024


def test_the_page_has_every_column_and_field():
    assert names(table("### BATCH")) == ["ids", "lengths", "remaining", "codecs in", "codecs out"]
    assert names(table("### ANSWERS")) == ["ids", "lengths", "statuses"]
    assert names(table("HELLO, of which")) == list(ExternalHello.__struct_fields__)
    assert names(table("LAUNCH, which has")) == list(ExternalLaunch.__struct_fields__)
    assert names(table("### Failures")) == list(ExternalFailure.__struct_fields__)
    assert names(table("## Counts")) == list(SeriesCount.__struct_fields__)


def test_the_limits_of_the_page_are_those_of_the_code():
    longest = {name.strip("`"): limit for name, _, limit in table("### Failures")}
    assert (MESSAGE_BYTES, NAME_BYTES, TRACEBACK_BYTES) == (8 * 1024, 512, 64 * 1024)
    assert longest == {
        "message": "8 KiB",
        "type": "512 bytes",
        "traceback": "64 KiB",
        "path": "8 KiB",
        "raised_at": "512 bytes",
    }
    assert (HANDSHAKE_BYTES, FAILURE_BYTES) == (64 * 1024, 1024 * 1024)
    limits = dict(table("## Errors and limits"))
    assert limits["the payload of HELLO"] == "64 KiB"
    assert limits["the payload of FAILED, which comes before READY alone"].startswith("1 MiB")
    assert EARLY_SECONDS == 0.01
    assert "which has more than 10 ms left" in PAGE
