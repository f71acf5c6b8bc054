"""What a request to leave asks for, by what the worker is doing."""

from __future__ import annotations

import threading

import pytest

from penstock.worker.leaving import AttachedPhase, Leaving

PATIENCE_SECONDS = 20.0


class Link:
    """Remembers what was asked of it."""

    def __init__(self):
        self.asked = []
        self.detached = threading.Event()

    def detach(self):
        self.asked.append("detach")
        self.detached.set()

    def shut(self):
        self.asked.append("shut")


def test_while_user_code_runs_before_ready_the_process_has_to_end():
    leaving = Leaving()
    assert leaving.ask()
    assert leaving.asked


def test_a_wait_is_over_at_once():
    leaving = Leaving()
    assert leaving.enter(AttachedPhase.WAITING)
    assert not leaving.ask()
    leaving.wait(PATIENCE_SECONDS * 10)  # returns


def test_a_connection_that_waits_for_its_launch_is_shut():
    leaving, link = Leaving(), Link()
    leaving.enter(AttachedPhase.WAITING, link)
    assert not leaving.ask()
    assert link.asked == ["shut"]


def test_a_connection_that_serves_is_detached():
    leaving, link = Leaving(), Link()
    begun = []
    assert leaving.serve(link, lambda: begun.append("ready"))
    assert not leaving.ask()
    assert link.detached.wait(PATIENCE_SECONDS)
    assert (begun, link.asked) == (["ready"], ["detach"])


def test_who_asks_does_not_wait_for_an_answer_that_is_being_sent():
    leaving, link = Leaving(), Link()
    sent = threading.Event()
    link.detach = lambda: sent.wait(PATIENCE_SECONDS)
    leaving.serve(link, lambda: None)
    assert not leaving.ask()
    assert leaving.ask()
    sent.set()


@pytest.mark.parametrize("phase", [AttachedPhase.WAITING, AttachedPhase.PREPARING])
def test_nothing_begins_after_a_request_and_the_second_ends_the_process(phase):
    leaving, link = Leaving(), Link()
    leaving.enter(AttachedPhase.WAITING)
    assert not leaving.ask()
    assert not leaving.enter(phase, link)
    assert not leaving.serve(link, lambda: link.asked.append("ready"))
    assert link.asked == []
    assert leaving.ask()


def test_a_server_that_goes_before_ready_leaves_it_waiting():
    leaving, link = Leaving(), Link()
    leaving.enter(AttachedPhase.WAITING)

    def gone():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        leaving.serve(link, gone)
    assert not leaving.ask()
    assert link.asked == []
