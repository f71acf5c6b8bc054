"""What a store tells of its setup, as `penstock jobs doctor` asks for it."""

from __future__ import annotations

from penstock.jobs.advice import Advice, find_advice
from penstock.jobs.stores.memory_store import MemoryStore


def test_a_store_is_asked_for_its_own_advice():
    (durability,) = find_advice(MemoryStore())
    assert durability.wrong
    assert durability.found == "in memory"


def test_a_store_that_tells_nothing_is_not_wrong():
    class Quiet:
        pass

    assert find_advice(Quiet()) == [Advice("store", "Quiet", remedy="this store reports no diagnostics")]
