"""What a service manager is told, and when: the test says what time it is."""

from __future__ import annotations

import math
import random

import pytest

from penstock.core.notifications import (
    EXTENSION_SECONDS,
    LOOK_SECONDS,
    READY,
    REPEAT_SECONDS,
    RETRY_SECONDS,
    STOPPING,
    WATCHDOG,
    Notifications,
)
from rows import each

EXTENDED = "EXTEND_TIMEOUT_USEC=15000000"


def told(notifications, now, words="", *, stuck=False):
    """What is due at `now`, and is sent."""
    due = notifications.look(now, words, stuck=stuck)
    notifications.sent(now, due)
    return due


@pytest.fixture
def loading():
    """One that loads, and has told so at 100."""
    notifications = Notifications(None)
    assert told(notifications, 100.0, "starting") == ["STATUS=starting", EXTENDED]
    return notifications


@pytest.fixture
def ready(loading):
    """One that is ready, and has told so at 200."""
    loading.ready()
    assert told(loading, 200.0, "ready") == [READY, "STATUS=ready"]
    return loading


def test_patience_is_asked_for_again_while_it_loads(loading):
    assert told(loading, 104.9, "starting") == []
    assert told(loading, 105.0, "starting") == [EXTENDED]
    assert told(loading, 109.9, "starting") == []
    assert told(loading, 110.0, "starting") == [EXTENDED]
    assert EXTENSION_SECONDS >= REPEAT_SECONDS + LOOK_SECONDS


def test_readiness_is_told_once_and_patience_is_not_asked_for_after_it(ready):
    for second in range(1, 100):
        assert told(ready, 200.0 + second, "ready") == []


def test_words_are_told_when_they_change_and_at_most_once_a_second(ready):
    assert told(ready, 200.5, "busy") == []
    assert told(ready, 201.0, "busy") == ["STATUS=busy"]
    assert told(ready, 201.5, "failed") == []
    assert told(ready, 202.0, "busy") == []
    assert told(ready, 202.1, "ready") == ["STATUS=ready"]


def test_patience_is_asked_for_while_it_stops_and_not_beyond_what_that_may_take(ready):
    ready.stop(218.0)
    assert told(ready, 200.0, "ready") == [STOPPING, EXTENDED]
    assert told(ready, 205.0, "ready") == ["EXTEND_TIMEOUT_USEC=13000000"]
    assert told(ready, 210.0, "ready") == ["EXTEND_TIMEOUT_USEC=8000000"]
    assert told(ready, 217.9999999, "ready") == ["EXTEND_TIMEOUT_USEC=1"]
    for second in range(218, 300):
        assert told(ready, float(second), "ready") == []


def test_an_end_before_it_was_ready_is_all_that_is_told(loading):
    loading.ready()
    loading.stop(110.0)
    assert told(loading, 101.0, "starting") == [STOPPING, "EXTEND_TIMEOUT_USEC=9000000"]
    assert told(loading, 105.0, "starting") == []


def test_a_sign_of_life_comes_at_half_of_the_watchdogs_time():
    notifications = Notifications(3.0)
    notifications.ready()
    assert told(notifications, 0.0, "ready") == [READY, "STATUS=ready", WATCHDOG]
    assert notifications.next_look(0.0) == 1.0
    assert told(notifications, 1.0, "ready") == []
    assert notifications.next_look(1.0) == 1.5
    assert told(notifications, 1.5, "ready") == [WATCHDOG]
    assert told(notifications, 2.9, "ready") == []
    assert told(notifications, 3.0, "ready") == [WATCHDOG]


def test_what_is_stuck_gives_no_sign_of_life_and_gives_one_again_when_it_goes_on():
    notifications = Notifications(3.0)
    notifications.ready()
    told(notifications, 0.0)
    assert told(notifications, 1.5, stuck=True) == []
    assert notifications.next_look(1.5) == 2.5
    assert told(notifications, 3.0, stuck=True) == []
    assert told(notifications, 3.1) == [WATCHDOG]
    assert notifications.next_look(3.1) == pytest.approx(4.1)


@pytest.mark.parametrize(("watchdog", "pause"), [(None, RETRY_SECONDS), (30.0, RETRY_SECONDS), (0.2, 0.1)])
def test_what_could_not_be_sent_is_due_again_soon(watchdog, pause):
    notifications = Notifications(watchdog)
    notifications.ready()
    due = notifications.look(0.0, "ready", stuck=False)
    assert notifications.next_look(0.0) == pause
    assert notifications.look(pause, "ready", stuck=False) == due
    notifications.sent(pause, due)
    assert notifications.next_look(pause) == pause + min(LOOK_SECONDS, pause if watchdog == 0.2 else LOOK_SECONDS)


@each("seed", range(50))
def test_each_promise_holds_in_random_histories(seed):
    draw = random.Random(seed)
    watchdog = draw.choice([None, 0.5, 4.0, 60.0])
    notifications = Notifications(watchdog)
    now, phase, until = 0.0, "loading", math.inf
    untold, last_words, words_at, sign_at, extended_until = "", "", -9.0, -math.inf, math.inf
    for _ in range(300):
        if phase == "loading" and draw.random() < 0.05:
            phase, untold = "ready", READY
            notifications.ready()
        elif phase != "stopping" and draw.random() < 0.01:
            phase, untold, until = "stopping", STOPPING, now + draw.uniform(0, 40)
            notifications.stop(until)
            extended_until = -math.inf
        words, stuck = draw.choice(["a", "a", "b"]), draw.random() < 0.1
        due = notifications.look(now, words, stuck=stuck)
        extensions = [int(each.partition("=")[2]) for each in due if each.startswith("EXTEND_TIMEOUT_USEC=")]
        assert (untold in due) == bool(untold)
        assert (f"STATUS={words}" in due) == (words != last_words and (bool(untold) or now - words_at >= LOOK_SECONDS))
        assert (WATCHDOG in due) == (watchdog is not None and not stuck and now >= sign_at)
        if phase == "ready":
            assert extensions == []
        elif phase == "stopping":
            assert all(now + usec / 1e6 <= until + 1e-5 for usec in extensions)
        sent = draw.random() < 0.8
        if sent:
            notifications.sent(now, due)
            untold = ""
            if f"STATUS={words}" in due:
                last_words, words_at = words, now
            if WATCHDOG in due and watchdog is not None:
                sign_at = now + watchdog / 2
            if extensions:
                extended_until = now + extensions[0] / 1e6
        following = notifications.next_look(now)
        assert now < following <= now + LOOK_SECONDS
        if phase == "loading":
            assert extended_until > following  # the next one comes in time
        if not sent and due:
            assert following <= now + RETRY_SECONDS
        now = following
