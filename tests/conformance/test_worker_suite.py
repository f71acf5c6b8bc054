"""The suite of workers lets a good one pass, and tells what each fault of others is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from penstock.testing.command_worker import CommandWorker
from penstock.testing.worker_case import CheckFailed, CheckSkipped, SuiteTerms
from penstock.testing.workers import WORKER_CHECKS, check_worker, run_worker_suite

PROGRAM = Path(__file__).parent / "faulty_worker.py"
CHECKS = {check.name: check for check in WORKER_CHECKS}
HANGING = {"deaf-to-failed", "wants-whole-frames", "one-frame-a-read", "never-closes", "deaf", "detach-and-go-on"}
"""Faults that are seen only once the time of a check is over."""
PATIENCE = (1.0, 5.0, 20.0)
"""Seconds for a check of them: at first little, and more where the worker had not come so far in them."""

FAULTS = [
    ("http", "hello", "what it sent is no frame: not a frame: it starts with b'GE'"),
    ("version-3", "hello", "expected the version 4 in HELLO, got 3"),
    ("no-pid", "hello", "expected its pid in HELLO, got 0"),
    ("pid-is-text", "hello", "expected a HELLO that can be read"),
    ("no-language", "hello", "expected its language in HELLO"),
    ("other-stage", "hello", "expected the stage 'square' in HELLO, or none, got 'cube'"),
    ("json-only", "hello", r"expected msgpack among the codecs in HELLO, got \['json'\]"),
    ("eager", "late-launch", "expected the worker to wait for a LAUNCH that comes late; it sent"),
    ("impatient", "late-launch", "expected the worker to wait for a LAUNCH that comes late; it closed the connection"),
    ("strict-fields", "unknown-fields", "(?s)to say READY after LAUNCH; it closed.*an unknown field"),
    ("failed-is-well", "turned-away", "with another status than 0; it ended with status 0"),
    ("deaf-to-failed", "turned-away", "expected the worker to end after FAILED; it keeps running"),
    ("failed-is-well", "cut-off", "with another status than 0; it ended with status 0"),
    ("deaf-to-failed", "cut-off", "expected the worker to end after FAILED; it keeps running"),
    ("wrong-frame", "batch-of-one", "expected ANSWERS to the batch 1; they are to 0"),
    ("nan-seconds", "batch-of-one", "expected the seconds that the batch took in the header; got nan"),
    ("unknown-status", "batch-of-one", r"expected status 0 \(OK\), got 9 \(which is none\)"),
    ("reversed", "full-batch", "expected answers to the items 0, 1, 2, 3, 4, 5, 6, 7, in that order; got 7, 6"),
    ("reversed-results", "full-batch", "item 0 of 8, b'0': expected 0, got 49"),
    ("ids-are-floats", "full-batch", "expected answers to the items 9007199254740993"),
    ("dies-of-no-bytes", "no-bytes", "it closed the connection instead"),
    ("invalid-is-failed", "no-bytes", r"expected status 1 \(INVALID\), got 2 \(FAILED\)"),
    ("fails-whole-batch", "no-bytes", r"item 0 of 3, b'2': expected status 0 \(OK\), got 1 \(INVALID\)"),
    ("fails-whole-batch", "invalid-in-place", r"item 0 of 5, b'2': expected status 0 \(OK\), got 1 \(INVALID\)"),
    ("no-message", "invalid-in-place", "item 1 of 5 failed: expected a message with the reason, got an empty one"),
    (
        "failure-is-text",
        "invalid-in-place",
        "item 1 of 5 failed: expected to read why; invalid JSON in a FAILURE: JSON is malformed: ",
    ),
    ("fails-whole-batch", "failed-in-place", r"item 0 of 3, b'2': expected status 0 \(OK\), got 2 \(FAILED\)"),
    ("no-message", "failed-in-place", "item 1 of 3 failed: expected a message with the reason, got an empty one"),
    ("runs-expired", "expired-unrun", r"item 1 of 4, b'-1': expected status 3 \(EXPIRED\), got 2 \(FAILED\)"),
    ("counts-from-receipt", "expired-unrun", r"item 0 of 2, b'-1': expected status 3 \(EXPIRED\), got 2"),
    ("talks-of-expired", "expired-unrun", "item 1 of 4 has expired: expected an empty payload, got 4 bytes"),
    ("answers-as-it-reads", "codecs-per-item", "expected a result as MSGPACK, got something else"),
    ("forgets-request-ids", "request-ids", r"item 0 of 3, b'2': expected status 0 \(OK\), got 1 \(INVALID\)"),
    ("unaligned", "large-payloads", "what it sent is no frame: a frame is shorter than its payloads"),
    ("ignores-max-body", "max-body", r"expected status 2 \(FAILED\), got 0 \(OK\)"),
    ("wants-whole-frames", "cut-anywhere", "it has not in the time that a check may take"),
    ("one-frame-a-read", "frames-at-once", "to answer the batch 2, of 2 items, by ANSWERS; it has not"),
    ("check-without-id", "health", "expected CHECKED with the id of its CHECK, 77, got 0"),
    ("not-well", "health", "expected a healthy stage; CHECKED reports: not well"),
    ("never-closes", "end-of-stream", "expected the worker to close the connection at the end of the stream"),
    ("one-frame-a-read", "end-of-stream", "to answer the batch 2, of 1 items, by ANSWERS; it closed the connection"),
    ("deaf", "detach-while-idle", "expected the worker to send DETACH after SIGTERM"),
    ("no-detach", "detach-while-idle", "to send DETACH after SIGTERM; it closed the connection instead"),
    ("killed-by-sigterm", "detach-while-idle", "to send DETACH after SIGTERM; it closed the connection instead"),
    (
        "detach-and-drop",
        "detach-while-idle",
        "to wait for the end of the stream, after DETACH; it closed",
    ),
    ("detach-and-go-on", "detach-while-idle", "expected the worker to end once it has left; it keeps running"),
    ("detach-with-3", "detach-while-idle", "to end once it has left with status 0; it ended with status 3"),
    ("detach-and-drop", "detach-while-busy", "closed the connection|the connection broke"),
    ("detach-and-forget", "detach-while-busy", "to answer .*; it closed the connection instead"),
    ("detach-and-go-on", "detach-while-busy", "expected the worker to end once it has left; it keeps running"),
    ("once", "drained", "to connect again after the end of the stream; it ended with status 0"),
    ("needs-the-server", "server-gone-and-back", "it ended with status 1"),
    # Where it takes long to end, that is seen only after the server has come back.
    ("once", "server-gone-and-back", "(try again while no|connect once a) server is there; it ended with status 0"),
    ("keeps-half", "server-gone-and-back", "expected the worker to say READY after LAUNCH"),
    ("keeps-answers", "server-gone-and-back", "expected the worker to say READY after LAUNCH; it sent ANSWERS 1"),
]


def worker(fault: str) -> CommandWorker:
    return CommandWorker([sys.executable, str(PROGRAM), fault])


@pytest.mark.parametrize(("fault", "name", "words"), FAULTS, ids=[f"{name}-{fault}" for fault, name, _ in FAULTS])
def test_a_worker_with_a_fault_fails_the_check_for_it(fault, name, words):
    found = ""
    for patience in PATIENCE if fault in HANGING else PATIENCE[-1:]:
        with pytest.raises(CheckFailed) as failed:
            check_worker(CHECKS[name], worker(fault), SuiteTerms(patience=patience))
        found = str(failed.value)
        if re.search(words, found):
            return
    pytest.fail(found)


def test_every_check_is_shown_to_fail():
    assert {name for _, name, _ in FAULTS} == set(CHECKS)


def test_a_worker_without_a_fault_passes_all():
    verdicts = list(run_worker_suite(worker("none"), SuiteTerms()))
    assert [(verdict.check.name, verdict.problem, verdict.skipped) for verdict in verdicts] == [
        (name, "", "") for name in CHECKS
    ]


@pytest.mark.parametrize(("fault", "words"), [("http", "what it sent is no frame"), ("", "it ended with status")])
def test_where_there_is_no_worker_nothing_else_is_checked(fault, words):
    command = worker(fault) if fault else CommandWorker([sys.executable, "-c", "raise SystemExit(3)"])
    first, *others = run_worker_suite(command, SuiteTerms())
    assert words in first.problem
    assert {(verdict.problem, verdict.skipped) for verdict in others} == {("", "there is no worker to check")}
    assert len(others) == len(CHECKS) - 1


def test_a_worker_that_does_not_offer_its_health_is_not_asked_for_it():
    with pytest.raises(CheckSkipped, match="its HELLO does not have `health`"):
        check_worker(CHECKS["health"], worker("no-health"), SuiteTerms())
