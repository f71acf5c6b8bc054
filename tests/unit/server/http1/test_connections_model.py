"""Random histories of who comes, asks, falls idle and goes, against plain lists: every answer is compared."""

from __future__ import annotations

import math
from random import Random

from penstock.config import ServerOptions
from penstock.core.idleness import IDLE_SECONDS
from penstock.server.http1.connections import Connections, Entry
from rows import each

HISTORIES = 150
STEPS = 200


class Guest:
    """A connection whose state the history sets; `told` is what it was told since somebody looked."""

    def __init__(self):
        self.since = math.inf
        self.asked = False
        self.told = []

    def idle_since(self):
        return self.since

    def has_asked(self):
        return self.asked

    def make_way(self):
        self.since = math.inf
        self.told.append("make way")

    def abort(self):
        self.since = math.inf
        self.told.append("abort")

    def sweep(self, now):
        pass


class PlainPlaces:
    """What `Connections` promises, with no thought for speed.

    Of several that are idle for equally long it cannot know which was taken: it is shown the one, and checks its rank.
    """

    def __init__(self, places, max_excess):
        self.places = places
        self.max_excess = max_excess
        self.served, self.excess, self.leaving = [], [], []

    def ranks(self, now):
        return sorted((guest.asked, guest.since) for guest in self.served if now - guest.since >= IDLE_SECONDS)

    def has_room(self, ranks, made_way):
        """Whether one more is served, where the guest and rank `made_way`; the rest of `ranks` stay."""
        if len(self.served) < self.places:
            assert made_way is None
            return True
        if not ranks:
            assert made_way is None
            return False
        guest, rank = made_way
        assert rank == ranks[0]
        self.served.remove(guest)
        self.leaving.append(guest)
        return True

    def cut(self):
        """Whom there is no place for."""
        if len(self.leaving) + len(self.excess) <= self.max_excess:
            return None
        return (self.leaving or self.excess).pop(0)


@each("seed", range(HISTORIES))
def test_connections_come_wait_and_make_way_as_plain_lists_say(rig_with, seed):
    rig, random = rig_with(), Random(seed)
    plain = PlainPlaces(random.choice([1, 2, 5]), random.choice([0, 1, 2, 4]))
    real = Connections(rig.app, ServerOptions(max_connections=plain.places), rig.clock, max_excess=plain.max_excess)
    everybody = []

    def compare(act):
        """Do `act`; whether the plain one finds room, and what it aborts, is the same."""
        ranks = plain.ranks(rig.now)
        before = {guest: (guest.asked, guest.since) for guest in plain.served}
        answer = act()
        told = [guest for guest in before if guest.told[:1] == ["make way"]]
        assert len(told) <= 1
        made_way = (told[0], before[told[0]]) if told else None
        for guest in told:
            guest.told.pop(0)
        return answer, plain.has_room(ranks, made_way)

    def compare_cut():
        cut = plain.cut()
        assert [guest for guest in everybody if guest.told] == ([cut] if cut else [])
        if cut:
            assert cut.told == ["abort"]
            cut.told.clear()

    for _ in range(STEPS):
        rig.now += random.choice([0.0, 0.0, 0.125, 0.25, 0.5, 1.0])
        match random.choice(["come"] * 4 + ["ask", "answer", "answer", "hear", "want", "want", "go", "lose", "sweep"]):
            case "come":
                guest = Guest()
                everybody.append(guest)
                entry, room = compare(lambda guest=guest: real.enter(guest))
                assert entry is (Entry.SERVED if room else Entry.EXCESS)
                (plain.served if room else plain.excess).append(guest)
                guest.since = rig.now if room else math.inf  # who has no place has none to give up
                compare_cut()
            case "want" if plain.excess:
                guest = random.choice(plain.excess)
                promoted, room = compare(lambda guest=guest: real.promote(guest))
                assert promoted is room
                if room:
                    plain.excess.remove(guest)
                    plain.served.append(guest)
                    guest.since, guest.asked = math.inf, True
                compare_cut()
            case "hear" if everybody:
                guest = random.choice([*plain.excess, random.choice(everybody)])  # one that is gone may be among them
                real.heard(guest)
                if guest in plain.excess:
                    plain.excess.append(plain.excess.pop(plain.excess.index(guest)))
            case "ask" if plain.served:
                guest = random.choice(plain.served)
                guest.since, guest.asked = math.inf, True
            case "answer" if plain.served:
                guest = random.choice(plain.served)
                if guest.asked:
                    guest.since = rig.now
            case "go" if plain.served + plain.excess:
                guest = random.choice(plain.served + plain.excess)
                guest.since = math.inf
                (plain.served if guest in plain.served else plain.excess).remove(guest)
                real.leave(guest)
            case "lose" if plain.leaving:
                guest = plain.leaving.pop(random.randrange(len(plain.leaving)))
                real.leave(guest)
            case "sweep":
                real.sweep(rig.now)
        assert list(real.excess) == plain.excess
        assert list(real.leaving) == plain.leaving
        assert real.open == {*plain.served, *plain.excess, *plain.leaving}
        assert len(plain.served) <= plain.places
        assert len(plain.excess) + len(plain.leaving) <= plain.max_excess
