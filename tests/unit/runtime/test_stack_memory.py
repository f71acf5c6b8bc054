"""The memory in which a worker leaves its stacks, at its end."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.runtime import stack_memory
from penstock.runtime.stack_memory import StackMemory, caught
from penstock.worker.stacks import ASKING_SIGNALS


@pytest.fixture
def closed():
    memory = StackMemory.make()
    if memory is None:
        pytest.skip("this system has no such memory")
    memory.close()
    return memory


def test_memory_that_was_closed_with_its_worker_reads_as_empty(closed):
    assert closed.read() == ""


def test_when_the_memory_is_closed_nobody_is_asked(closed, monkeypatch):
    """The process id was given back with the worker's end, and may be another's."""
    sent = []
    monkeypatch.setattr(stack_memory, "_send", lambda pid, number: sent.append((pid, number)))
    closed.ask(4711)
    closed.ask_for_all(4711)
    assert (sent, closed.read()) == ([], "")


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_worker_that_cannot_be_asked_tells_nothing(monkeypatch, error):
    """Also one whose stage has changed its user."""

    def refuse(_pid, _number):
        raise error

    monkeypatch.setattr(stack_memory, "_handles", lambda _pid, _number: True)
    memory = StackMemory.make()
    if memory is None:
        pytest.skip("this system has no such memory")
    monkeypatch.setattr(os, "kill", refuse)
    memory.ask(os.getpid())
    memory.ask_for_all(os.getpid())
    assert memory.read() == ""
    memory.close()


STATUS = "Name:\tSigCgt: ffffffffffffffff\nSigIgn:\t0000000000001000\nSigCgt:\t{:016x}\nCapInh:\t0\n"


def test_a_signal_has_a_handler_where_the_system_says_so():
    assert caught(STATUS.format(1 << 59), 60)
    assert not caught(STATUS.format(~(1 << 59) & 2**64 - 1), 60)
    assert not caught("Name:\tother\n", 60)


def test_a_worker_without_the_handlers_is_not_asked(monkeypatch):
    memory = StackMemory.make()
    if memory is None:
        pytest.skip("this system has no such memory")
    sent = []
    monkeypatch.setattr(stack_memory, "_send", lambda _pid, number: sent.append(number))
    handlers = dict.fromkeys(ASKING_SIGNALS, signal.SIG_DFL)
    try:
        for number in ASKING_SIGNALS:
            handlers[number] = signal.signal(number, signal.SIG_DFL)
            assert not memory.ask(os.getpid())
        memory.ask_for_all(os.getpid())
        assert sent == []
        signal.signal(ASKING_SIGNALS[0], lambda *_: None)
        assert memory.ask(os.getpid())
        memory.ask_for_all(os.getpid())
        assert sent == [ASKING_SIGNALS[0]]
        assert not memory.ask(4_000_000_000), "no system has this process"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        memory.close()
