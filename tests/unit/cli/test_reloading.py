import random

import pytest

from penstock.cli.reloading import (
    AT_ONCE_SECONDS,
    END_SECONDS,
    MOST_QUIET_SECONDS,
    QUIET_SECONDS,
    TRIAL_SECONDS,
    Do,
    Phase,
    Reloading,
)
from rows import each


def running():
    core = Reloading()
    assert core.begin() == [Do.START]
    return core


def trying(now=0.0):
    core = running()
    assert core.changed(now) == []
    assert core.at(now + QUIET_SECONDS) == [Do.TRY]
    return core


def test_the_first_service_is_started_without_a_trial():
    core = Reloading()
    assert core.next_deadline() is None
    assert core.begin() == [Do.START]
    assert core.next_deadline() is None


def test_a_change_is_tried_once_it_has_been_quiet():
    core = running()
    assert core.changed(1.0) == []
    assert core.next_deadline() == 1.0 + QUIET_SECONDS
    assert core.at(1.0 + QUIET_SECONDS - 0.001) == []
    assert core.at(1.0 + QUIET_SECONDS) == [Do.TRY]
    assert core.phase is Phase.TRYING


def test_a_storm_of_changes_is_one_change_but_not_for_ever():
    core = running()
    now = 10.0
    while core.at(now) == []:
        core.changed(now)
        now += QUIET_SECONDS / 2
    assert now == pytest.approx(10.0 + MOST_QUIET_SECONDS)


def test_the_new_service_starts_when_the_old_one_has_ended():
    core = trying()
    assert core.tried(1.0, well=True) == [Do.END]
    assert core.phase is Phase.ENDING
    assert core.ended() == [Do.START]
    assert core.phase is Phase.RUNNING


def test_while_a_change_is_broken_the_old_service_serves_on():
    core = trying()
    assert core.tried(1.0, well=False) == []
    assert core.phase is Phase.RUNNING
    assert core.next_deadline() is None
    assert core.changed(2.0) == []
    assert core.at(3.0) == [Do.TRY]


def test_a_change_during_a_trial_is_tried_in_its_place():
    core = trying()
    assert core.changed(5.0) == [Do.GIVE_UP_TRIAL]
    assert core.tried(5.01, well=True) == []  # the trial that was given up
    assert core.at(5.0 + QUIET_SECONDS) == [Do.TRY]


def test_a_change_while_the_old_service_ends_is_in_what_is_started_next():
    core = trying()
    core.tried(1.0, well=True)
    assert core.changed(1.5) == []
    assert core.ended() == [Do.START]
    assert core.next_deadline() is None


def test_a_change_while_the_new_service_starts_is_tried():
    core = trying()
    core.tried(1.0, well=True)
    core.ended()
    core.changed(1.5)
    assert core.at(2.0) == [Do.TRY]


def test_an_import_that_hangs_is_given_up_and_told():
    core = trying(now=0.0)
    limit = QUIET_SECONDS + TRIAL_SECONDS
    assert core.next_deadline() == limit
    assert core.at(limit - 0.001) == []
    assert core.at(limit) == [Do.GIVE_UP_TRIAL, Do.TELL_IT_HANGS]
    assert core.phase is Phase.RUNNING


def test_a_service_that_does_not_end_is_killed():
    core = trying()
    core.tried(1.0, well=True)
    assert core.next_deadline() == 1.0 + END_SECONDS
    assert core.at(1.0 + END_SECONDS) == [Do.KILL]
    assert core.ended() == [Do.START]


def test_a_service_that_ends_by_itself_waits_for_a_change_and_is_then_started_without_a_trial():
    core = running()
    assert core.ended() == []
    assert core.phase is Phase.WAITING
    assert core.next_deadline() is None
    core.changed(1.0)
    assert core.at(2.0) == [Do.START]


def test_a_change_that_came_just_before_the_end_is_started_when_it_is_due():
    core = running()
    core.changed(1.0)
    core.ended()
    assert core.at(1.0 + QUIET_SECONDS) == [Do.START]


def test_a_service_that_ends_during_a_trial_makes_the_trial_needless():
    core = trying()
    assert core.ended() == [Do.GIVE_UP_TRIAL, Do.START]


@pytest.mark.parametrize(
    ("core", "orders", "phase"),
    [
        (Reloading, [], Phase.STOPPED),
        (running, [Do.END], Phase.STOPPING),
        (trying, [Do.GIVE_UP_TRIAL, Do.END], Phase.STOPPING),
    ],
)
def test_a_stop_ends_what_there_is(core, orders, phase):
    stopped = core()
    assert stopped.stop(1.0) == orders
    assert stopped.phase is phase
    assert stopped.stop(1.1) == []
    assert stopped.changed(1.2) == []
    assert stopped.ended() == []
    assert stopped.phase is Phase.STOPPED
    assert stopped.next_deadline() is None
    assert stopped.at(1000.0) == []


def test_a_stop_while_the_old_service_ends_starts_no_new_one():
    core = trying()
    core.tried(1.0, well=True)
    assert core.stop(1.1) == []  # told twice the old one would end at once
    assert core.next_deadline() == 1.0 + END_SECONDS
    assert core.ended() == []
    assert core.phase is Phase.STOPPED


def test_a_service_that_is_told_twice_to_end_is_killed_soon():
    core = running()
    core.stop(1.0)
    core.hurry(2.0)
    assert core.next_deadline() == 2.0 + AT_ONCE_SECONDS
    core.hurry(2.5)  # the third does not give it more time
    assert core.at(2.0 + AT_ONCE_SECONDS) == [Do.KILL]
    assert core.ended() == []


def test_a_service_that_is_nearly_out_of_time_is_given_none_by_a_second_stop():
    core = running()
    core.stop(1.0)
    core.hurry(1.0 + END_SECONDS - 0.1)
    assert core.next_deadline() == 1.0 + END_SECONDS


@pytest.mark.parametrize("core", [Reloading, running, trying])
def test_nothing_is_hurried_that_was_not_told_to_end(core):
    hurried, beside = core(), core()
    hurried.hurry(0.1)
    assert hurried.next_deadline() == beside.next_deadline()


@each("seed", range(200))
def test_no_history_has_two_services_or_loses_a_change(seed):
    chance = random.Random(seed)
    core, now = Reloading(), 0.0
    services = trials = 0
    unseen = False  # a change came after the last start and the last trial

    def do(orders):
        nonlocal services, trials, unseen
        for order in orders:
            match order:
                case Do.START:
                    services += 1
                    unseen = False
                case Do.TRY:
                    trials += 1
                    unseen = False
                case Do.GIVE_UP_TRIAL:
                    trials -= 1
                case Do.END | Do.KILL:
                    assert services == 1
            assert services <= 1
            assert trials in (0, 1)

    do(core.begin())
    for _ in range(200):
        now += chance.choice([0.0, 0.05, 0.5, 70.0])
        do(core.at(now))
        match chance.randrange(4):
            case 0:
                unseen = core.phase is not Phase.ENDING
                do(core.changed(now))
            case 1 if trials:
                trials -= 1
                do(core.tried(now, well=chance.random() < 0.5))
            case 2 if services and (core.phase is Phase.ENDING or chance.random() < 0.1):
                services = 0
                do(core.ended())
        if unseen:
            assert core.next_deadline() is not None
    do(core.stop(now))
    assert trials == 0
