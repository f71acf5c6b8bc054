"""How a process ended, in words."""

from __future__ import annotations

import signal

import pytest

from penstock.runtime.process import describe_exit


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-40, "signal 40"),  # a real-time signal has no name
    ],
)
def test_an_end_is_told_by_its_status_or_by_its_signal(status, words):
    assert describe_exit(status) == words
