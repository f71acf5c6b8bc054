"""Which signals a host takes, what each asks for, and that each is given back."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pty
import signal

import pytest

from penstock.hosting.signals import ALWAYS_TAKEN, STDERR, TAKEN_IF_FREE, Action, Terminal, action_of, taking_signals

TAKEN = (*ALWAYS_TAKEN, *TAKEN_IF_FREE)


@pytest.mark.parametrize("terminal_closed", [False, True])
@pytest.mark.parametrize("draining", [False, True])
def test_usr1_asks_for_a_report_whatever_the_host_does(draining, terminal_closed):
    assert action_of(signal.SIGUSR1, draining=draining, terminal_closed=terminal_closed) is Action.REPORT


@pytest.mark.parametrize("terminal_closed", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_first_ending_signal_drains_and_the_second_ends(number, terminal_closed):
    assert action_of(number, draining=False, terminal_closed=terminal_closed) is Action.DRAIN
    assert action_of(number, draining=True, terminal_closed=terminal_closed) is Action.END


@pytest.mark.parametrize(
    ("draining", "terminal_closed", "action"),
    [
        (False, False, Action.RENEW),
        (False, True, Action.DRAIN),
        (True, False, Action.NOTHING),
        (True, True, Action.NOTHING),
    ],
)
def test_hup_renews_or_drains_where_the_terminal_was_closed_and_never_ends_at_once(draining, terminal_closed, action):
    assert action_of(signal.SIGHUP, draining=draining, terminal_closed=terminal_closed) is action


@pytest.fixture
def as_found():
    """Every signal has its default, and after the test the handler it had before."""
    before = {number: signal.getsignal(number) for number in TAKEN}
    for number in TAKEN:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def heard(*numbers):
    """What a host is told of these signals, which this process sends itself."""
    told = []
    with taking_signals(told.append):
        for number in numbers:
            signal.raise_signal(number)
            while number not in told:
                await asyncio.sleep(0)
    return told


async def test_every_signal_is_told_and_given_back(as_found):
    signal.signal(signal.SIGTERM, own := lambda *_: None)
    assert await heard(*TAKEN) == [*TAKEN]
    assert signal.getsignal(signal.SIGTERM) is own
    assert {signal.getsignal(number) for number in TAKEN[1:]} == {signal.SIG_DFL}


@pytest.mark.parametrize("number", TAKEN_IF_FREE)
async def test_what_was_ignored_stays_ignored(as_found, number):
    signal.signal(number, signal.SIG_IGN)
    with taking_signals(pytest.fail):
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.raise_signal(number)
        await asyncio.sleep(0)
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("number", TAKEN_IF_FREE)
async def test_what_the_program_handles_itself_stays_its_own(as_found, number):
    own = []
    signal.signal(number, lambda *_: own.append(number))
    with taking_signals(pytest.fail):
        signal.raise_signal(number)
        await asyncio.sleep(0)
    assert own == [number]


async def test_a_dump_that_the_program_put_on_a_signal_in_c_stays_too(as_found, tmp_path):
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            with taking_signals(pytest.fail):
                signal.raise_signal(signal.SIGUSR1)
                await asyncio.sleep(0)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        assert "test_a_dump" in (tmp_path / "dump").read_text()


def test_a_terminal_is_closed_when_its_other_end_is():
    ours, theirs = pty.openpty()
    kept = os.dup(STDERR)
    try:
        os.dup2(theirs, STDERR)
        terminal = Terminal()
        before = terminal.closed
        os.close(ours)
        after, too_late = terminal.closed, Terminal().closed
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(theirs)
    assert (before, after, too_late) == (False, True, False)
