"""The tries of one request."""

from __future__ import annotations

import pytest

from penstock.client.retry_budget import RetryBudget
from penstock.client.retry_rules import Retry
from penstock.client.tries import Setback, Tries
from penstock.errors import Overloaded

ASKED = Setback(Overloaded(), Retry.ASKED, 1.0)
UNASKED = Setback(Overloaded(), Retry.UNASKED, 1.0)
FINAL = Setback(Overloaded(), Retry.NEVER, 1.0)


def tries(deadline=100.0, most_retries=4, budget=None):
    return Tries(10.0, deadline, most_retries, budget or RetryBudget())


def test_a_try_is_told_its_number_and_what_is_left():
    them = tries(deadline=12.0)
    assert them.begin(10.0)
    assert them.headers(10.0) == {"x-attempt": "1", "x-request-timeout": "2.000"}
    assert them.begin(11.9996)
    assert them.headers(11.9996) == {"x-attempt": "2", "x-request-timeout": "0.001"}
    assert not them.begin(12.0)
    assert (them.number, them.gives_up, them.seconds) == (2, 12.5, 2.0)


def test_the_next_try_comes_when_it_is_told():
    them = tries()
    them.begin(10.0)
    assert them.next_moment(ASKED, 10.5, 0.0) == 11.5
    assert them.next_moment(ASKED, 10.5, 0.5) == pytest.approx(11.55)


def test_there_are_so_many_further_tries_and_no_more():
    them = tries(most_retries=2)
    found = []
    for now in (10.0, 11.0, 12.0):
        them.begin(now)
        found.append(them.next_moment(ASKED, now, 0.0))
    assert found == [11.0, 12.0, None]


@pytest.mark.parametrize(("deadline", "moment"), [(11.0, None), (11.001, 11.0)])
def test_no_try_begins_at_the_deadline(deadline, moment):
    them = tries(deadline=deadline)
    them.begin(10.0)
    assert them.next_moment(ASKED, 10.0, 0.0) == moment


def test_only_what_nobody_asked_for_needs_the_budget_and_takes_it_once_nothing_else_speaks_against_it():
    budget = RetryBudget()
    them = tries(deadline=10.5, budget=budget)
    them.begin(10.0)
    them.next_moment(UNASKED, 10.0, 0.0)  # does not fit
    assert budget.left(10.0) == 10
    them = tries(budget=budget)
    them.begin(10.0)
    them.next_moment(ASKED, 10.0, 0.0)
    assert budget.left(10.0) == 10
    while budget.left(10.0):
        assert them.next_moment(UNASKED, 10.0, 0.0) == 11.0
    assert them.next_moment(UNASKED, 10.0, 0.0) is None
    assert them.next_moment(ASKED, 10.0, 0.0) == 11.0
