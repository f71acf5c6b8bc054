"""The thread of an event loop: what it is asked and told, and that nobody waits for ever.

What coroutines have of it is tested with `BlockingService`, in `tests/unit/test_blocking.py`.
"""

from __future__ import annotations

import threading

import pytest

from penstock.errors import ConfigError, NotReady
from penstock.hosting.loop_thread import LoopThread


@pytest.fixture
def thread():
    made = LoopThread("here", "over")
    yield made
    made.end()


def test_a_question_is_answered_on_the_loop_now_or_later(thread):
    asked = []
    now = thread.ask(lambda answer: answer.set_result(threading.current_thread().name))
    later = thread.ask(asked.append)
    assert now.result(20) == "penstock loop"
    assert not later.done()
    thread.tell(lambda: asked[0].set_result("late"))
    assert later.result(20) == "late"


def test_what_a_question_raises_is_its_answer(thread):
    def begin(answer):
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        thread.ask(begin).result(20)
    assert thread.ask(lambda answer: answer.set_result(1)).result(20) == 1


def test_what_is_told_and_asked_is_done_in_order(thread):
    done = []
    for number in range(50):
        thread.tell(lambda number=number: done.append(number))
    assert thread.ask(lambda answer: answer.set_result(list(done))).result(20) == list(range(50))


def test_who_waits_for_an_answer_at_the_end_is_told_and_so_is_who_comes(thread):
    begun = threading.Event()
    waiting = thread.ask(lambda answer: begun.set())
    assert begun.wait(20)
    thread.end()
    with pytest.raises(NotReady, match="over"):
        waiting.result(20)
    with pytest.raises(NotReady, match="over"):
        thread.ask(lambda answer: None)
    with pytest.raises(NotReady, match="over"):
        thread.tell(lambda: None)


def test_what_was_told_before_the_end_is_done():
    thread, done = LoopThread("here", "over"), []
    thread.tell(lambda: done.append(1))
    thread.end()
    assert done == [1]


def test_threads_that_are_none_of_the_system_are_refused(monkeypatch):
    of_the_system = threading.get_ident
    monkeypatch.setattr(threading, "get_ident", lambda: of_the_system())  # what gevent puts there is no builtin either
    with pytest.raises(ConfigError, match="gevent"):
        LoopThread("here", "over")
