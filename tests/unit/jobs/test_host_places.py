"""Who has a place for a transfer, and who waits."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.jobs.host_places import HostPlaces, host_share


async def test_one_host_has_at_most_half_of_the_places():
    places = HostPlaces(4)
    slow = [places.ask("slow") for _ in range(9)]
    assert [turn.done() for turn in slow] == [True, True] + [False] * 7
    others = [places.ask(f"other-{n}") for n in range(3)]
    assert [turn.done() for turn in others] == [True, True, False]
    places.give_back("other-0", others[0])
    assert (others[2].done(), slow[2].done()) == (True, False)
    places.give_back("slow", slow[0])
    assert slow[2].done()


async def test_whoever_gives_up_holds_up_nobody():
    places = HostPlaces(2)
    first, second, third = (places.ask("a") for _ in range(3))
    places.give_back("a", second)
    places.give_back("a", first)
    assert (second.cancelled(), third.done()) == (True, True)


async def test_a_single_place_is_for_any_host():
    places = HostPlaces(1)
    assert host_share(1) == 1
    assert places.ask("a").done()


@pytest.mark.parametrize("seed", range(5))
async def test_no_place_is_lost_and_none_is_free_for_somebody_who_waits(seed):
    draw, places, asked = random.Random(seed), HostPlaces(6), []
    for _ in range(2000):
        if draw.random() < 0.52 or not asked:
            host = draw.choice("abcd")
            asked.append((host, places.ask(host)))
        else:
            places.give_back(*asked.pop(draw.randrange(len(asked))))
        taken = Counter(host for host, turn in asked if turn.done())
        assert taken.total() <= 6
        assert max(taken.values(), default=0) <= 3
        for host, turn in asked:
            assert turn.done() or taken.total() == 6 or taken[host] == 3
