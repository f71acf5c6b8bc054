"""What waits to be written, what is dropped, and when it is told."""

from __future__ import annotations

import random

from penstock.core.backlog import NOTICE_BYTES, Backlog
from rows import each


def test_what_fits_to_the_last_byte_is_taken():
    backlog = Backlog(1000)
    assert backlog.offer(400)
    assert backlog.offer(600)
    assert not backlog.offer(1)
    assert (backlog.waiting, backlog.dropped) == (1000, 0)


def test_what_could_not_be_written_is_told_when_it_may_be():
    backlog = Backlog(1000)
    backlog.lose(3)
    assert (backlog.dropped, backlog.tell()) == (3, 0)
    backlog.owe(3)
    assert (backlog.dropped, backlog.tell()) == (3, 3)


class Plain:
    """The obvious version: a list of what waits, in which a notice is a negative number of lines."""

    def __init__(self, room):
        self.room = room
        self.waits = []
        self.missing = 0
        self.dropped = 0

    def size(self):
        return sum(NOTICE_BYTES if n < 0 else n for n in self.waits)

    def hand_over(self, nbytes, lines):
        would_wait = [*self.waits, *([-self.missing] if self.missing else []), nbytes]
        if sum(NOTICE_BYTES if n < 0 else n for n in would_wait) <= self.room:
            self.waits, self.missing = would_wait, 0
            return True
        self.missing += lines
        self.dropped += lines
        return False

    def write(self):
        if not self.waits and self.missing:
            self.waits, self.missing = [-self.missing], 0
        return self.waits.pop(0) if self.waits else None


@each("seed", range(20))
def test_random_histories_agree_with_a_plain_list(seed):
    chance = random.Random(seed)
    plain, backlog, waits = Plain(4000), Backlog(4000), []
    handed, written, told = 0, 0, 0
    for _ in range(1500):
        if chance.random() < 0.55:
            nbytes, lines = chance.choice([1, 50, 300, 900, 5000]), chance.randint(1, 3)
            handed += lines
            taken = backlog.offer(nbytes)
            if not taken:
                backlog.drop(lines)
            else:
                count = backlog.tell() if backlog.untold else 0
                waits += [-count] * bool(count)
                waits.append(nbytes)
            assert taken == plain.hand_over(nbytes, lines)
            written += lines if taken else 0
        else:
            count = 0 if waits else backlog.tell()
            waits += [-count] * bool(count)
            found = waits.pop(0) if waits else None
            assert found == plain.write()
            if found is not None:
                backlog.written(NOTICE_BYTES if found < 0 else found)
                told -= min(found, 0)
        assert (backlog.waiting, backlog.untold, backlog.dropped) == (plain.size(), plain.missing, plain.dropped)
        assert backlog.waiting <= backlog.max_bytes
        assert told + sum(-n for n in waits if n < 0) + backlog.untold == backlog.dropped
    assert written + backlog.dropped == handed
    assert backlog.dropped
