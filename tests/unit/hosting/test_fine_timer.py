"""A timer of the kernel: it rings once for each time that it was set, and keeps no descriptor."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time

import pytest

from penstock.core.alarm import LaterTimer
from penstock.hosting import fine_timer, libc_timer
from penstock.hosting.fine_timer import KernelTimer, OsTimer, find_timer_calls
from penstock.hosting.libc_timer import LibcTimer
from penstock.hosting.loop_clock import TIMER_TICK_SECONDS, LoopClock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a timerfd")


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class Rings:
    """The moments at which a timer rang."""

    def __init__(self):
        self.moments = []
        self._event = asyncio.Event()

    def __call__(self):
        self.moments.append(time.monotonic())
        self._event.set()

    async def next(self):
        await asyncio.wait_for(self._event.wait(), 20)
        self._event.clear()
        return self.moments[-1]


KERNELS = [
    LibcTimer,
    pytest.param(OsTimer, marks=pytest.mark.skipif(not hasattr(os, "timerfd_create"), reason="from Python 3.13 on")),
]


def of(calls, ring):
    return KernelTimer(calls, ring, LaterTimer(LoopClock(), ring))


@pytest.fixture(params=KERNELS)
def timer(request):
    made = of(request.param(), Rings())
    yield made
    made.close()


async def test_it_rings_after_the_delay_and_not_before(timer):
    begin = time.monotonic()
    timer.set(0.0005)
    assert await timer._ring.next() - begin >= 0.0005
    timer.set(0.0)
    await timer._ring.next()
    assert len(timer._ring.moments) == 2


async def test_the_last_moment_that_it_was_set_to_stands(timer):
    timer.set(3600.0)
    begin = time.monotonic()
    timer.set(0.002)
    assert await timer._ring.next() - begin >= 0.002
    timer.set(0.0)
    timer.set(3600.0)
    ticked = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, ticked.set)
    await ticked.wait()
    assert len(timer._ring.moments) == 1


async def test_one_that_has_rung_and_is_set_anew_before_that_was_seen_does_not_ring(timer):
    timer.set(3600.0)
    timer._rang()
    assert timer._ring.moments == []


async def test_a_closed_one_rings_no_more_and_gives_its_descriptor_back(timer):
    timer.close()
    timer.set(0.0)
    descriptor = timer._descriptor
    assert is_open(descriptor)
    timer.close()
    timer.close()
    assert not is_open(descriptor)
    timer.set(0.0)
    await timer._ring.next()


def test_one_whose_event_loop_has_ended_gives_its_descriptor_back(timer):
    async def use():
        timer.set(3600.0)

    with asyncio.Runner() as runner:
        runner.run(use())
    descriptor = timer._descriptor
    timer.close()
    assert not is_open(descriptor)


def test_one_that_nobody_has_any_more_gives_its_descriptor_back():
    forgotten = of(LibcTimer(), print)
    forgotten._descriptor = LibcTimer().open()
    descriptor = forgotten._descriptor
    del forgotten
    assert not is_open(descriptor)


class NoneLeft:
    """A kernel that has no descriptor left."""

    def open(self):
        raise OSError(errno.EMFILE, "too many open files")

    def start(self, descriptor, nanoseconds):
        raise AssertionError("there is none")


@pytest.mark.parametrize("calls", [None, NoneLeft()], ids=["no timerfd", "no descriptor"])
async def test_without_a_timerfd_it_is_a_timer_of_the_event_loop(monkeypatch, calls):
    monkeypatch.setattr("penstock.hosting.loop_clock.find_timer_calls", lambda: calls)
    rings = Rings()
    timer = LoopClock().fine_timer(rings)
    timer.set(3600.0)
    begin = time.monotonic()
    timer.set(0.0005)
    assert await rings.next() - begin >= 0.0004
    timer.set(0.0)
    timer.close()
    await asyncio.sleep(0)
    assert len(rings.moments) == 1


async def test_one_that_the_kernel_does_not_watch_is_a_timer_of_the_event_loop(monkeypatch):
    rings = Rings()
    timer = of(LibcTimer(), rings)
    loop, given = asyncio.get_running_loop(), []

    def refuse(descriptor, *_):
        given.append(descriptor)
        raise OSError(errno.ENOSPC, "no more watches")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "add_reader", refuse)
        timer.set(0.0)
        await rings.next()
    assert not is_open(*given)
    timer.set(0.0)
    await rings.next()
    assert is_open(timer._descriptor), "it watches again"
    timer.close()


def test_a_call_of_the_c_library_that_fails_is_an_error():
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        LibcTimer().start(-1, 1)
    assert raised.value.errno == errno.EBADF


def test_what_the_system_has_is_found(monkeypatch):
    assert find_timer_calls() is not None
    monkeypatch.delattr(os, "timerfd_create", raising=False)
    assert isinstance(find_timer_calls(), LibcTimer)
    monkeypatch.setattr(libc_timer.ctypes, "PyDLL", lambda *_, **__: object())
    assert find_timer_calls() is None
    monkeypatch.setattr(fine_timer.sys, "platform", "darwin")
    assert find_timer_calls() is None


def test_a_clock_says_how_fine_its_timers_are(monkeypatch):
    assert LoopClock().fine_step == fine_timer.FINE_STEP_SECONDS
    monkeypatch.setattr("penstock.hosting.loop_clock.find_timer_calls", lambda: None)
    assert LoopClock().fine_step == TIMER_TICK_SECONDS
