"""The retry budget, the flow limit and the line, each against the obvious slow version."""

from __future__ import annotations

import random
from weakref import WeakSet

from penstock.client.flow_limit import End, FlowLimit
from penstock.client.retry_budget import RetryBudget
from penstock.client.waiting_line import WaitingLine
from rows import each


class Waiter:
    """Somebody in a line."""


def test_requests_that_grew_old_do_not_make_the_budget_negative():
    budget = RetryBudget()
    for _ in range(10):
        budget.count_request(0.0)
    assert all(budget.take(5.0) for _ in range(11))
    assert (budget.left(10.0), budget.take(10.0)) == (0, False)


@each("seed", range(20))
def test_a_budget_is_as_one_that_forgets_nothing(seed):
    draw = random.Random(seed)
    budget, requests, taken = RetryBudget(), [], []
    now = 0.0
    for _ in range(500):
        now += draw.choice([0.0, 0.0, 0.5, 2.5])  # so that some are just ten seconds old
        if draw.random() < 0.6:
            budget.count_request(now)
            requests.append(now)
        else:
            young = sum(moment > now - 10 for moment in requests)
            used = sum(moment > now - 10 for moment in taken)
            allowed = used < 10 + young // 10
            assert budget.left(now) == max(0, 10 + young // 10 - used)
            assert budget.take(now) is allowed
            taken += [now] * allowed


def test_the_first_limit_is_eight_or_the_most_there_may_be():
    assert (FlowLimit(64).limit, FlowLimit(3).limit) == (8, 3)


def test_a_limits_worth_of_successes_is_one_more():
    flow = FlowLimit(64)
    limits = []
    for _ in range(8 + 9):
        flow.end(flow.begin(), End.SUCCESS)
        limits.append(flow.limit)
    assert limits == [8] * 7 + [9] * 9 + [10]


def test_other_ends_change_nothing():
    flow = FlowLimit(64)
    for _ in range(100):
        flow.end(flow.begin(), End.NEITHER)
    assert (flow.limit, flow.in_flight) == (8, 0)


def test_those_in_flight_when_it_was_halved_change_it_no_more():
    flow = FlowLimit(64)
    rounds = [flow.begin() for _ in range(8)]
    assert not flow.has_room
    for begun_in in rounds[:4]:
        flow.end(begun_in, End.REFUSAL)
    assert (flow.limit, flow.in_flight, flow.has_room) == (4, 4, False)
    for begun_in in rounds[4:]:
        flow.end(begun_in, End.SUCCESS)
    assert (flow.limit, flow.in_flight, flow.has_room) == (4, 0, True)
    for _ in range(3):
        flow.end(flow.begin(), End.SUCCESS)
    flow.end(flow.begin(), End.REFUSAL)
    assert flow.limit == 2, "and counting begins again"


def test_it_stays_between_one_and_the_most():
    flow = FlowLimit(9)
    for _ in range(100):
        flow.end(flow.begin(), End.SUCCESS)
    assert flow.limit == 9
    for _ in range(10):
        flow.end(flow.begin(), End.REFUSAL)
    assert flow.limit == 1


def test_a_refusal_at_a_limit_of_one_behind_another_refusal_begins_a_pause():
    flow = FlowLimit(2)
    assert flow.end(flow.begin(), End.REFUSAL) is False, "it is halved"
    assert (flow.limit, flow.has_room) == (1, True)
    assert flow.end(flow.begin(), End.NEITHER) is False
    assert flow.end(flow.begin(), End.REFUSAL) is True
    assert (flow.limit, flow.has_room) == (1, False)
    flow.go_on()
    assert flow.has_room
    assert flow.end(flow.begin(), End.REFUSAL) is True, "it is asked once between two pauses"
    flow.go_on()
    assert flow.end(flow.begin(), End.SUCCESS) is False
    assert (flow.limit, flow.has_room) == (2, True)


def test_a_success_between_two_refusals_at_a_limit_of_one_keeps_the_pause_away():
    flow = FlowLimit(1)
    for end in (End.REFUSAL, End.SUCCESS, End.REFUSAL):
        assert flow.end(flow.begin(), end) is False
    assert flow.has_room


def test_who_was_in_flight_when_it_was_halved_begins_no_pause():
    flow = FlowLimit(3)
    rounds = [flow.begin() for _ in range(3)]
    assert [flow.end(begun_in, End.REFUSAL) for begun_in in rounds] == [False] * 3
    assert (flow.limit, flow.has_room) == (1, True)


@each("seed", range(20))
def test_a_line_is_as_a_list_that_is_sorted_each_time(seed):
    draw = random.Random(seed)
    line, waiting = WaitingLine(), []
    for arrival in range(400):
        match draw.choice(["join", "join", "leave", "next"]):
            case "join":
                urgency = draw.randrange(3)
                line.join(f"call {arrival}", urgency, arrival)
                waiting.append((urgency, arrival))
            case "leave":
                gone = draw.choice(waiting)[1] if waiting and draw.random() < 0.8 else 10_000
                line.leave(gone)
                waiting = [one for one in waiting if one[1] != gone]
            case "next":
                first = min(waiting, default=None)
                assert line.next() == (None if first is None else f"call {first[1]}")
                waiting = [one for one in waiting if one != first]
        assert len(line) == len(waiting)


def test_those_that_gave_up_behind_others_are_not_kept():
    line = WaitingLine()
    ended = [Waiter() for _ in range(10_000)]
    left = WeakSet(ended)
    for arrival in range(10):
        line.join(Waiter(), 0, arrival)
    while ended:
        arrival = 10 + len(ended)
        line.join(ended.pop(), 7, arrival)
        line.leave(arrival)
        line.join(Waiter(), 0, 100_000 + arrival)
        line.next()  # so that somebody more urgent waits all the time
    assert len(line) == 10
    assert len(left) < 100


def test_those_that_gave_up_are_forgotten_as_the_others_go():
    line = WaitingLine()
    ended = [Waiter() for _ in range(100)]
    left = WeakSet(ended)
    for arrival in range(1000):
        line.join(Waiter(), 0, arrival)
    while ended:
        arrival = 1000 + len(ended)
        line.join(ended.pop(), 7, arrival)
        line.leave(arrival)
    for _ in range(999):
        line.next()
    assert len(line) == 1
    assert len(left) < 20
