"""The tree of errors: messages, whose fault it is, whether to try again."""

from __future__ import annotations

import inspect
import pickle

import pytest

from penstock import errors
from penstock.codec.encode import EncodeFailed, ResultMismatch
from penstock.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    EmbeddingError,
    ExportError,
    InvalidItem,
    JobError,
    JobFailed,
    JobNotSucceeded,
    NotReady,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    RequestError,
    StageFailed,
    StartFailed,
    TrainingError,
    TransferError,
    WorkerLost,
)
from penstock.worker.problems import WrongLength, author_name
from rows import each

EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]


@each("kind", EVERY)
def test_the_first_sentence_of_the_docstring_is_the_default_message(kind):
    first = inspect.getdoc(kind).splitlines()[0]
    assert first.endswith(".")
    assert kind.default_message() == first
    assert kind().args == (first,)


@each("kind", EVERY)
def test_an_error_survives_being_pickled(kind):
    error = kind("message")
    error.extra = 7
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert (str(found), found.__dict__) == (str(error), error.__dict__)


ENDED = {"JobFailed", "JobCancelled", "JobExpired"}
TREE = {
    RequestError: {
        "InvalidItem", "UnsupportedMediaType", "NotAcceptable", "Overloaded", "QuotaExceeded", "DeadlineExceeded",
        "StageFailed", "WorkerLost", "NotReady", "Cancelled", "ServerError", "ConnectionFailed",
    },
    JobNotSucceeded: ENDED,
    JobError: {
        "JobNotFound", "JobConflict", "InputTooLarge", "QueueFull", "StoreUnavailable", "JobNotSucceeded", *ENDED,
    },
    TransferError: {"TransferFailed", "TransferRejected", "TransferCancelled"},
    ExportError: {"ArtifactInvalid", "ExportRefused", "PublishFailed"},
    TrainingError: {"RunFailed", "LeaseLost", "RunUnavailable"},
    EmbeddingError: {"TableMismatch", "RowsUnavailable"},
    ValueError: {"ConfigError"},
}  # fmt: skip


def names(kinds):
    return {kind.__name__ for kind in kinds}


def test_the_tree_is_what_callers_catch():
    assert {base: names(kind for kind in EVERY if issubclass(kind, base)) - {base.__name__} for base in TREE} == TREE
    assert names(kind for kind in EVERY if PenstockError in kind.__bases__) == {
        "ConfigError", "StartFailed", "ProtocolError", "RequestError", "JobError", "TransferError", "ExportError",
        "TrainingError", "EmbeddingError",
    }  # fmt: skip


def test_a_job_that_ended_badly_shows_the_remote_traceback():
    assert str(JobFailed("boom", job_id="a", traceback="Traceback\n  x\n")) == "boom\n\nTraceback\n  x"
    assert str(JobFailed("boom", job_id="a")) == "boom"


def test_only_what_may_succeed_later_is_retryable():
    assert names(kind for kind in EVERY if kind.retryable) == {
        "Overloaded", "QuotaExceeded", "DeadlineExceeded", "NotReady", "ServerError", "ConnectionFailed",
        "QueueFull", "StoreUnavailable", "TransferFailed", "TransferCancelled", "PublishFailed", "RunUnavailable",
        "RowsUnavailable",
    }  # fmt: skip


def test_an_invalid_item_says_where():
    error = InvalidItem("expected int", path="$.x[3]")
    assert (str(error), error.reason, error.path) == ("expected int at `$.x[3]`", "expected int", "$.x[3]")
    assert str(InvalidItem("too long")) == "too long"
    assert InvalidItem().reason == "The item is not valid input."


def test_a_start_failure_shows_the_remote_traceback():
    assert str(StartFailed("worker 0 failed", traceback="Traceback\n  x\n")) == "worker 0 failed\n\nTraceback\n  x"
    assert str(StartFailed("worker 0 failed")) == "worker 0 failed"
    assert str(StartFailed("worker 0 failed: x", traceback="penstock.Error: x\n")) == "worker 0 failed: x"


def test_a_stage_failure_shows_the_stage_the_type_and_the_traceback():
    error = StageFailed("bad", stage="embed", type_name="builtins.ValueError", traceback="Traceback\n  x\n")
    assert str(error) == "stage 'embed' raised builtins.ValueError: bad\n\nTraceback\n  x"
    assert str(StageFailed("bad", stage="e", type_name="T")) == "stage 'e' raised T: bad"
    assert str(StageFailed("bad", stage="e")) == "stage 'e' failed: bad"


def test_a_stage_failure_answers_what_it_was_by_name():
    error = StageFailed("x", mro=("builtins.KeyError", "builtins.LookupError", "penstock.errors.PenstockError"))
    assert error.is_a(KeyError)
    assert error.is_a(LookupError)
    assert error.is_a(PenstockError)
    assert not error.is_a(ValueError)


@each(
    ("error", "name", "value"),
    [
        (Overloaded(), "retry_after", 1),
        (Overloaded(retry_after=7), "retry_after", 7),
        (Overloaded(retry_after=7), "retry_after_ms", 7000),
        (Overloaded(retry_after=1, retry_after_ms=120), "retry_after_ms", 120),
        (Overloaded(), "reason", "queue_full"),
        (Overloaded(reason="deadline"), "reason", "deadline"),
        (QuotaExceeded(retry_after=2, retry_after_ms=1500), "retry_after", 2),
        (QuotaExceeded(retry_after=2, retry_after_ms=1500), "retry_after_ms", 1500),
        (QuotaExceeded(), "reason", "quota"),
        (Overloaded(), "started", False),
        (DeadlineExceeded(), "started", False),
        (DeadlineExceeded(ran=True), "started", True),
        (DeadlineExceeded(), "retry_after", 1),
        (StageFailed(), "started", True),
        (WorkerLost(), "started", True),
        (DeadlineExceeded(ran=True), "ran", True),
        (WorkerLost(stage="embed"), "stage", "embed"),
        (WorkerLost(hung=True), "hung", True),
        (WorkerLost(alone=True), "alone", True),
        (NotReady(state="draining"), "state", "draining"),
        (NotReady(), "retry_after", 1),
        (ConnectionFailed(sent=True), "sent", True),
    ],
)
def test_an_error_carries_what_callers_act_on(error, name, value):
    assert getattr(error, name) == value


@pytest.mark.parametrize("kind", [EncodeFailed, ResultMismatch, WrongLength])
def test_a_stage_that_returned_what_is_no_result_is_not_said_to_have_raised(kind):
    error = StageFailed("why", stage="embed", type_name=author_name(kind))
    assert error.action.startswith("returned ")
    assert str(error) == f"stage 'embed' {error.action}: why"
    assert StageFailed("why", stage="embed", type_name="builtins.ValueError").action == "raised an exception"
