"""The bytes held, one move of a request at a time; random histories are in `test_admission_model.py`."""

from __future__ import annotations

import pytest

from penstock.core.item import Item
from penstock.core.ledger import ByteLedger
from penstock.core.outcome import Failure, Result, outcome_size
from penstock.errors import InvalidItem, StageFailed, WorkerLost


@pytest.fixture
def ledger():
    return ByteLedger(100)


def feed(ledger, request, nbytes):
    item = Item(1, b"", nbytes, request, request.fed)
    ledger.feed(item)
    return item


def test_there_is_room_for_max_bytes_and_no_more(ledger):
    ledger.hold(60)
    assert ledger.has_room(40)
    assert not ledger.has_room(41)


def test_a_request_may_gather_max_bytes_of_results_and_no_more(ledger, request_of):
    request = request_of(5, holds_results=True)
    assert ledger.keep_outcome(request, Result(b"x" * 100)) is None
    assert ledger.keep_outcome(request, Result(b"")) is None
    assert not request.full
    assert ledger.keep_outcome(request, Result(b"x")) is request
    assert request.full
    assert ledger.keep_outcome(request, Result(b"y")) is None, "it was told"
    assert (request.result_bytes, ledger.held) == (102, 102)
    for _ in range(2):  # what has completed gives nothing back again
        ledger.complete(request)
        assert ledger.held == 0


def test_requests_gather_max_bytes_together_and_the_one_with_the_most_is_full(ledger, request_of):
    small, large, last = (request_of(9, holds_results=True) for _ in range(3))
    assert ledger.keep_outcome(small, Result(b"x" * 40)) is None
    assert ledger.keep_outcome(large, Result(b"x" * 41)) is None
    assert ledger.keep_outcome(last, Result(b"x" * 19)) is None
    assert ledger.keep_outcome(last, Result(b"x")) is large
    assert (small.full, large.full, last.full) == (False, True, False)
    assert ledger.keep_outcome(large, Result(b"x" * 100)) is None
    assert ledger.keep_outcome(small, Result(b"x" * 40)) is None, "a full one counts no longer"
    ledger.complete(large)
    assert ledger.keep_outcome(small, Result(b"x")) is small
    ledger.complete(last)
    assert ledger.keep_outcome(request_of(2, holds_results=True), Result(b"x" * 100)) is None


def test_finished_answers_are_held_and_take_no_room_from_what_comes_in(ledger):
    ledger.hold_answer(90)
    assert (ledger.held, ledger.answers) == (90, 90)
    assert ledger.has_room(10**9), "nothing else is held"
    ledger.hold(1)
    assert ledger.has_room(99)
    assert not ledger.has_room(100)
    ledger.hold_answer(-90)
    assert (ledger.held, ledger.answers) == (1, 0)
    assert not ledger.has_room(100)


def test_the_texts_of_failures_are_held_as_results_are(ledger, request_of):
    request = request_of(3, holds_results=True)
    failure = Failure(StageFailed("bad item", stage="price", type_name="ValueError", traceback="line 12" * 4))
    assert ledger.keep_outcome(request, failure) is None
    assert (request.result_bytes, ledger.held) == (36, 36)
    assert ledger.keep_outcome(request, Failure(InvalidItem("x" * 65))) is request
    ledger.complete(request)
    assert ledger.held == 0


def test_an_outcome_is_as_large_as_its_bytes_or_its_texts():
    assert outcome_size(Result([b"12", b"345"])) == 5
    assert outcome_size(Failure(StageFailed("ab", traceback="cde", stage="price"))) == 5
    assert outcome_size(Failure(WorkerLost("abc"))) == 3
