"""The ids that travel with a batch."""

from __future__ import annotations

import math
import random

from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.request_ids import join_ids, split_ids
from rows import each


def request(request_id=b"", n=1, lane=Lane.SINGLE):
    made = Request([b""] * n, 1, 1, math.inf, print, lane, request_id=request_id)
    return [Item(0, b"", 0, made, index) for index in range(n)]


def ids_of(items):
    """What a worker is told of `items`, and how many bytes it takes."""
    text = join_ids(items)
    return split_ids(text, len(items)), len(text)


def test_an_item_has_the_id_of_its_request():
    assert ids_of(request(b"a") + request(b"b")) == (["a", "b"], 3)


def test_an_item_of_a_client_batch_has_its_place_in_it_too():
    items = request(b"a", 5, Lane.BULK)
    assert ids_of(items[3:])[0] == ["a:3", "a:4"]
    assert ids_of([items[4], items[0], items[1]])[0] == ["a:4", "a:0", "a:1"]
    assert ids_of(request(b"b", 1, Lane.BULK))[0] == ["b:0"]


def test_a_call_in_process_has_no_id():
    assert ids_of(request() + request(n=2, lane=Lane.BULK)) == (["", "", ""], 0)
    assert ids_of(request() + request(b"a") + request())[0] == ["", "a", ""]
    assert ids_of([]) == ([], 0)


def test_neighbours_of_one_batch_share_an_entry():
    text = join_ids(request(b"a", 256, Lane.BULK))
    assert text == b"a:0+256"


def test_what_a_text_claims_beyond_the_items_takes_no_memory():
    assert split_ids(b"a:3+1000000000000 b", 2)[:2] == ["a:3", "a:4"]
    assert len(split_ids(b"a:3+1000000000000 b:0+1000000000000", 2)) == 2


@each("seed", range(50))
def test_whatever_is_mixed_each_item_gets_its_own_id(seed):
    chance = random.Random(seed)
    items = []
    for name in (b"", b"a", b"b.c", b"d-e_f", b"", b"0"):
        items += request(name, chance.randint(1, 5), chance.choice(list(Lane)))
    if chance.random() < 0.7:
        chance.shuffle(items)
    items = items[: chance.randint(0, len(items))]

    def plainly(item):
        name = item.request.id.decode()
        return f"{name}:{item.index}" if name and item.request.lane == Lane.BULK else name

    assert ids_of(items)[0] == [plainly(item) for item in items]
