"""Who is cut while more answers are held than may be: those whose answers are overdue, most bytes first."""

from __future__ import annotations

import pytest

from penstock.server.overdue import cut_overdue


class Memory:
    """Holds answers, of which there may be `most` bytes."""

    def __init__(self, most):
        self.most = most
        self.holders = []
        self.cut = []

    @property
    def overfull(self):
        return sum(holder.nbytes for holder in self.holders) > self.most

    def hold(self, nbytes, ready=0.0):
        self.holders.append(Holder(self, nbytes, ready))
        return self.holders[-1]


class Holder:
    """One client with one answer, which may take ten seconds."""

    def __init__(self, memory, nbytes, ready):
        self.memory, self.nbytes, self.ready = memory, nbytes, ready

    def overdue_bytes(self, now):
        return self.nbytes if self.memory.overfull and now - self.ready >= 10.0 else 0

    def abort(self):
        self.memory.cut.append(self.nbytes)
        self.nbytes = 0


@pytest.mark.parametrize(
    ("most", "cut"),
    [(100, []), (99, [40]), (60, [40]), (59, [40, 30]), (30, [40, 30]), (29, [40, 30, 20]), (0, [40, 30, 20, 10])],
)
def test_the_largest_are_cut_until_no_more_is_held_than_may_be(most, cut, caplog):
    memory = Memory(most)
    for nbytes in (10, 40, 20, 30):
        memory.hold(nbytes)
    cut_overdue(memory.holders, 10.0)
    assert memory.cut == cut
    assert len(caplog.records) == bool(cut)
    if cut:
        assert f"closed {len(cut)} slow clients ({sum(cut)} bytes unsent)" in caplog.text


def test_only_overdue_answers_are_cut_whatever_is_held():
    memory = Memory(0)
    memory.hold(100, ready=5.0)
    memory.hold(1, ready=0.0)
    cut_overdue(memory.holders, 9.9)
    assert memory.cut == []
    cut_overdue(memory.holders, 10.0)
    assert memory.cut == [1]
    cut_overdue(memory.holders, 15.0)
    assert memory.cut == [1, 100]


def test_what_one_service_holds_cuts_no_client_of_another():
    full, roomy = Memory(10), Memory(1000)
    cut_overdue([full.hold(20), roomy.hold(500)], 10.0)
    assert (full.cut, roomy.cut) == ([20], [])
