"""How a process is, in the line that `systemctl status` shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.core.load_progress import Loading
from penstock.core.state import State
from penstock.hosting.service_health import LONGEST_STATUS_BYTES, in_hand, status_words, stuck_because


def service(name="prices", state=State.READY, reason="", loading=(), *, queued=0, age=0.0, started=True):
    stages = [SimpleNamespace(name="M", progress_age=age)]
    options = SimpleNamespace(liveness_deadline=600.0)
    engine = SimpleNamespace(state=state, reason=reason, loading=loading, queued=queued, stages=stages, options=options)
    return SimpleNamespace(name=name, engine=engine if started else None)


def part(unready="", stuck="", held=0):
    return SimpleNamespace(name="jobs", unready_because=lambda: unready, stuck_because=lambda: stuck, in_hand=held)


@pytest.mark.parametrize("state", State)
def test_one_service_is_its_state(state):
    assert status_words([service(state=state)], []) == state


@pytest.mark.parametrize(
    ("services", "words"),
    [
        ([service(started=False)], "starting"),
        (
            [service(state=State.STARTING, reason="else", loading=[Loading("M", 1, 1, 12.0), Loading("N", 2, 3, 9.0)])],
            "starting: M is loading, 12 s; N is loading (2 of 3 workers), 9 s",
        ),
        ([service(state=State.FAILED, reason="no such file\nTraceback: secret")], "failed: no such file"),
        (
            [service("a"), service("b", State.STALLED, "stage 'M' has work")],
            "a: ready; b: stalled: stage 'M' has work",
        ),
    ],
)
def test_what_is_not_ready_says_why(services, words):
    assert status_words(services, []) == words


def test_a_part_of_the_host_that_is_unready_is_told_beside_the_services():
    parts = [part(unready="the store is gone\nfor long"), part(stuck="no claim has finished for 61 s")]
    assert status_words([service()], parts) == ("ready; jobs: the store is gone; stuck: no claim has finished for 61 s")


def test_while_it_stops_the_words_say_how_much_is_in_hand():
    services = [service(queued=3), service("b", State.DRAINING, queued=2), service("c", started=False)]
    assert in_hand(services, [part(held=4)]) == 9
    assert status_words(services, [part(held=4)], stopping=True) == "draining: 9 in flight"


def test_nothing_that_somebody_else_wrote_breaks_the_line_or_makes_it_too_long():
    words = status_words([service(state=State.FAILED, reason="a\rMAINPID=1\x00\x1b[2J\udc80" + 5000 * "é")], [])
    assert words.startswith(r"failed: a\rMAINPID=1\x00\x1b[2J?")
    assert words.isprintable()
    assert len(words.encode()) <= LONGEST_STATUS_BYTES


def test_a_process_is_stuck_by_a_part_or_by_a_stage_that_has_given_nothing_back():
    assert stuck_because([service(age=599.9), service(started=False)], [part()]) == ""
    stuck = "prices: stage 'M' has work, but has completed no batch for 600 s"
    assert stuck_because([service(age=600.0)], [part()]) == stuck
    assert stuck_because([service(age=600.0)], [part(stuck="it hangs")]) == f"it hangs; {stuck}"
