"""Items and requests to queue, made with no more words than a test needs."""

from __future__ import annotations

import math
from itertools import count

import pytest

from penstock.core.item import Item, Request
from penstock.core.lanes import Lane


@pytest.fixture
def request_of():
    """Make a request of `n` payloads, which take `nbytes` together; `rank` is `alone`, `urgency`, `tenant`."""

    def make(n=1, *, deadline=math.inf, lane=Lane.SINGLE, nbytes=0, holds_results=False, **rank):
        request = Request([b"x"] * n, 1, 1, deadline, lambda outcomes: None, lane, holds_results, **rank)
        request.unfed_bytes = nbytes
        return request

    return make


@pytest.fixture
def item(request_of):
    """Make an item of its own request; ids count from 1."""
    ids = count(1)

    def make(*, nbytes=1, **fields):
        return Item(next(ids), b"x" * nbytes, nbytes, request_of(**fields), 0)

    return make


@pytest.fixture
def offered(item):
    """Make an item and offer it to `queue` at `now`."""

    def offer(queue, now=0.0, **fields):
        made = item(**fields)
        queue.offer(made, now)
        return made

    return offer
