"""Items and requests to queue, made with no more words than a test needs."""

from __future__ import annotations

import math
from itertools import count

import pytest

from penstock.core.item import Item, Request


@pytest.fixture
def request_of():
    """Make a request of `n` payloads."""

    def make(n=1, *, deadline=math.inf, bulk=False, payload=b"x"):
        return Request([payload] * n, 1, 1, deadline, lambda outcomes: None, bulk)

    return make


@pytest.fixture
def item(request_of):
    """Make an item of its own request; ids count from 1."""
    ids = count(1)

    def make(*, deadline=math.inf, bulk=False, nbytes=1):
        return Item(next(ids), b"x" * nbytes, nbytes, request_of(deadline=deadline, bulk=bulk), 0)

    return make


@pytest.fixture
def offered(item):
    """Make an item and offer it to `queue` at `now`."""

    def offer(queue, now=0.0, **fields):
        made = item(**fields)
        queue.offer(made, now)
        return made

    return offer
