"""Which signals a host takes, what each asks for, and that each is given back."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pty
import signal

import pytest

from penstock.hosting import signals
from penstock.hosting.signals import (
    ALWAYS_TAKEN,
    STDERR,
    TAKEN_IF_FREE,
    Action,
    Deliveries,
    Terminal,
    action_of,
    hold_signals,
    ignore_held_signals,
    taking_signals,
)

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


@pytest.mark.parametrize(("number", "same"), [(signal.SIGTERM, 1.0), (signal.SIGINT, 0.1)])
def test_a_signal_that_comes_again_at_once_is_the_same_one_and_a_later_one_counts(number, same):
    deliveries = Deliveries()
    assert [deliveries.counts(number, now) for now in (0.0, same / 2, same)] == [True, False, False]
    # Held to the one that counted: a key that repeats counts again.
    assert [deliveries.counts(number, now) for now in (same * 1.25, same * 2, same * 2.5)] == [True, False, True]


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1])
def test_any_other_signal_counts_each_time_it_comes(number):
    deliveries = Deliveries()
    assert [deliveries.counts(number, 5.0) for _ in range(3)] == [True] * 3


def test_a_signal_of_another_number_is_never_the_same_one():
    deliveries = Deliveries()
    assert [deliveries.counts(number, 5.0) for number in (signal.SIGTERM, signal.SIGINT)] == [True, True]
    assert [deliveries.counts(number, 5.0) for number in (signal.SIGTERM, signal.SIGINT)] == [False, False]


@pytest.fixture
def as_found():
    """Every signal has its default, and after the test the handler it had before."""
    before = {number: signal.getsignal(number) for number in TAKEN}
    for number in TAKEN:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def holding(as_found, monkeypatch):
    """Begins to hold signals, until the end of the test."""
    monkeypatch.setattr(signals._Process, "held", None)
    return hold_signals


@pytest.fixture
def blocked():
    """Every signal is blocked in this thread, until the end of the test."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


@pytest.mark.parametrize("before_the_loop", [0, 2])
async def test_a_signal_that_is_delivered_twice_is_told_once(holding, monkeypatch, before_the_loop):
    times = iter((7.0, 7.5, 8.5, 8.6, 9.0))
    monkeypatch.setattr(signals, "monotonic", lambda: next(times))
    told = []
    holding()
    for _ in range(before_the_loop):
        signal.raise_signal(signal.SIGTERM)
    with taking_signals(told.append):
        for _ in range(4 - before_the_loop):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        while signal.SIGUSR1 not in told:
            await asyncio.sleep(0)
    assert told == [signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1]


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


async def test_what_comes_while_signals_are_held_is_told_once_the_loop_takes_them(holding):
    holding()
    for number in TAKEN:
        signal.raise_signal(number)
    told = []
    with taking_signals(told.append):
        while len(told) < len(TAKEN):
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGUSR1)
        while len(told) == len(TAKEN):
            await asyncio.sleep(0)
    assert told == [*TAKEN, signal.SIGUSR1]


async def test_signals_that_are_held_have_no_default_after_the_loop_and_are_ignored_at_the_end(holding):
    holding()
    with taking_signals(pytest.fail):
        pass
    for number in TAKEN:
        signal.raise_signal(number)  # any of them would end this process
    ignore_held_signals()
    assert {signal.getsignal(number) for number in TAKEN} == {signal.SIG_IGN}


def test_without_signals_that_are_held_none_is_ignored_at_the_end(as_found):
    ignore_held_signals()
    assert {signal.getsignal(number) for number in TAKEN} == {signal.SIG_DFL}


def test_to_hold_leaves_alone_what_is_ignored(holding):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    holding()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_term_and_int_are_taken_where_they_are_blocked_and_blocked_again_afterwards(as_found, blocked):
    assert await heard(*ALWAYS_TAKEN) == [*ALWAYS_TAKEN]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= {*TAKEN}


async def test_what_else_a_program_has_blocked_stays_its_own(as_found, blocked):
    with taking_signals(pytest.fail):
        signal.raise_signal(signal.SIGUSR1)
        assert signal.sigtimedwait({signal.SIGUSR1}, 0) is not None


def test_a_process_that_holds_its_signals_unblocks_all_of_them(holding, blocked):
    holding()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*TAKEN}


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
