"""The memory in which a worker leaves its stacks, at its end."""

from __future__ import annotations

import os

import pytest

from penstock.runtime import stack_memory
from penstock.runtime.stack_memory import StackMemory


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

    memory = StackMemory.make()
    if memory is None:
        pytest.skip("this system has no such memory")
    monkeypatch.setattr(os, "kill", refuse)
    memory.ask(os.getpid())
    memory.ask_for_all(os.getpid())
    assert memory.read() == ""
    memory.close()
