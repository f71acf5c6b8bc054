"""Who goes first, by plain lists and fractions: what the models of the batching queue and of the door compare with.

Whoever waits is given as a list in the order of arrival.  Each has a `line`, which is (urgency, tenant), a `lane` and a
`deadline`, by functions that the caller gives.
"""

from __future__ import annotations

from copy import copy
from fractions import Fraction


class PlainOrder:
    """What each line has had, and whose turn it is."""

    def __init__(self, waiting, *, line_of, lane_of, deadline_of, by_deadline):
        self.waiting = waiting
        self.line_of, self.lane_of, self.deadline_of = line_of, lane_of, deadline_of
        self.by_deadline = by_deadline
        self.came = 0
        self.forget()

    def forget(self):
        """Nobody waits."""
        self.shared = False
        """Whether two lines have waited together since then."""
        self.times = [Fraction(0)] * 8
        self.starts, self.numbers, self.turns = {}, {}, {}

    def copy(self):
        """The same, to try something."""
        made = copy(self)
        made.waiting, made.times = list(self.waiting), list(self.times)
        made.starts, made.numbers, made.turns = dict(self.starts), dict(self.numbers), dict(self.turns)
        return made

    def lines(self, waiting=None):
        """Who waits, by line, in the order of arrival."""
        found = {}
        for one in self.waiting if waiting is None else waiting:
            found.setdefault(self.line_of(one), []).append(one)
        return found

    def lanes(self, line):
        """Who waits of `line`, by lane, in the order of leaving."""
        lanes = [[one for one in self.lines()[line] if self.lane_of(one) == lane] for lane in (0, 1)]
        return [sorted(lane, key=self.deadline_of) for lane in lanes] if self.by_deadline else lanes

    def ranked(self):
        """The lines, in the order in which they would be served next."""
        return sorted(self.lines(), key=lambda line: (line[0], self.starts[line], self.numbers[line]))

    def add(self, one, place=None):
        """Let `one` wait, behind all others or at `place`."""
        line, lines = self.line_of(one), self.lines()
        if line not in lines:
            self.came += 1
            self.numbers[line] = self.came
            self.turns[line] = 0
            self.starts[line] = max(self.starts.get(line, Fraction(0)), self.times[line[0]])
            self.shared = self.shared or len(lines) == 1
        self.waiting.insert(len(self.waiting) if place is None else place, one)

    def suspend(self, line):
        """Take all of `line` out, in the order of arrival."""
        out = self.lines().get(line, [])
        for one in out:
            self.remove(one)
        return out

    def resume(self, line, out, turn):
        """Let those who were taken out wait again, where the line begins with the lane `turn`."""
        for one in out:
            self.add(one)
        self.turns[line] = turn

    def put_back(self, one):
        """Let `one` wait at the head, as if it had not been served."""
        self.add(one, place=0)
        if self.shared:
            self.starts[self.line_of(one)] -= 1 / Fraction(self.line_of(one)[1].weight)

    def served(self, one):
        """`one` is served now, and waits on for the moment."""
        line = self.line_of(one)
        self.turns[line] = 1 - self.lane_of(one)
        if self.shared:
            self.times[line[0]] = max(self.times[line[0]], self.starts[line])
            self.starts[line] += 1 / Fraction(line[1].weight)

    def remove(self, one):
        """`one` waits no longer."""
        self.waiting.remove(one)
        lines = self.lines()
        if not lines:
            self.forget()
        urgency = self.line_of(one)[0]
        if not any(line[0] == urgency for line in lines):
            self.times[urgency] = Fraction(0)
            self.starts = {line: start for line, start in self.starts.items() if line[0] != urgency}

    def first(self):
        """Who is served next."""
        line = self.ranked()[0]
        lanes = self.lanes(line)
        return (lanes[self.turns[line]] or lanes[1 - self.turns[line]])[0]

    def pop(self):
        """Serve who is next, and let it leave."""
        one = self.first()
        self.served(one)
        self.remove(one)
        return one

    def ahead_of(self, newcomer):
        """How many would leave before `newcomer` if it came now: found by letting it come, and all others leave."""
        trial = self.copy()
        trial.add(newcomer)
        before = 0
        while trial.pop() is not newcomer:
            before += 1
        return before
