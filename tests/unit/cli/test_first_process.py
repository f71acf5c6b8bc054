"""What process 1 passes on to the command."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.cli.first_process import PASSED_ON, leave_first_process, passed_on

BY_A_PROCESS, BY_THE_KERNEL = 0, 0x80  # SI_USER and SI_KERNEL


@pytest.mark.parametrize("number", PASSED_ON)
def test_what_a_process_sends_is_passed_on(number):
    assert passed_on(number, BY_A_PROCESS)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, False), (signal.SIGQUIT, False), (signal.SIGHUP, True)]
)
def test_what_a_terminal_sends_to_the_whole_group_is_not_passed_on_again(number, expected):
    assert passed_on(number, BY_THE_KERNEL) is expected


def test_any_other_process_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(os, "fork", pytest.fail)
    leave_first_process()
