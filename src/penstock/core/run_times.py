"""Learn how long a batch runs by its size: a + b·n seconds for n items.  Pure: it is told each run.

Contract
--------
* Sizes are learned in classes, each twice as wide as the one before it: 1, 2, 3 to 4, 5 to 8 and so on.  Each class
  has a moving average of the sizes and of the seconds that it saw.  A new run weighs 1 / count, at least 0.05.
* a and b are those of the line through the classes.  A class weighs its count, at most 20, by the square of its
  seconds, so that what counts is by how many percent the line misses it.
* b is at least 0, and so small that a is too.
* While all batches are of one class, b is 0.
* What is expected of a batch is its place on the line, times how much longer than the line says runs have taken lately.
  So a stage that has become slower is believed at once, although the line, which is made of averages, moves slowly; and
  so is one whose large batches take more than in proportion, where those are what it runs.
* A stage that has become faster is believed at once, too: `lately_fixed` is at most the longest of the last three runs.
* Where each of the last three runs took more than twice as long as its place on the line, only these three are known.
  A class of which no more batches come would stay as fast as it was, and weigh the most for ever.

The line is a weighted least-squares fit with a little regularisation (the factor 0.99): where all sizes are nearly
the same, their scatter makes no slope.
"""

from __future__ import annotations

from typing import Final

LEAST_WEIGHT: Final = 0.05
MOST_COUNTED: Final = 20
SLOPE_SHRINKS: Final = 0.99
SHORTEST: Final = 1e-6
"""In seconds: a class is weighed by the square of its seconds, which must not be 0."""
LATELY_WEIGHT: Final = 0.2
"""How far one run moves what is expected: a handful of batches decide, one outlier does not."""
LATEST: Final = 3
"""So many runs that were all short, or all long, are no chance, although one may be."""
MUCH_SLOWER: Final = 2.0
"""A run is long if it takes more than so many times as long as its place on the line."""
LONGEST: Final = 1e9
"""In seconds, about 30 years: a worker from outside says how long it took, and nothing is computed with more."""


class SizeClass:
    """The runs of batches of about one size."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0.0
        self.seconds = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Move the averages by one run."""
        self.count += 1
        weight = max(1.0 / self.count, LEAST_WEIGHT)
        self.size += weight * (size - self.size)
        self.seconds += weight * (seconds - self.seconds)


class RunTimes:
    """How long batches of one stage run.

    `fixed` is a and `each` is b, both in seconds, and 0 until a run was seen.  `lately` says how much longer than on
    the line the last runs were.  `lately_fixed` is a, or the longest of the last three runs where that is less.
    """

    def __init__(self) -> None:
        self.fixed = 0.0
        self.each = 0.0
        self.lately = 1.0
        self.lately_fixed = 0.0
        self._classes: list[SizeClass | None] = []
        self._latest = [(0.0, 0)] * LATEST
        """The last runs: the seconds and the size of each."""
        self._long = 0
        """How many runs in a row were long, up to the last one."""
        self._seen = 0
        """How many classes have a run."""

    @property
    def known(self) -> bool:
        """Whether a run was seen."""
        return self._seen > 0

    def expected(self, size: int) -> float:
        """The seconds that a batch of `size` items runs; 0 until a run was seen."""
        return self._on_line(size) * self.lately

    def _on_line(self, size: int) -> float:
        return self.fixed + self.each * size

    def add(self, seconds: float, size: int) -> None:
        """Learn that a batch of `size` items, at least one, ran for `seconds`."""
        seconds = min(max(seconds, 0.0), LONGEST)
        self._latest.pop(0)
        self._latest.append((seconds, size))
        is_long = self.known and seconds > MUCH_SLOWER * self._on_line(size)
        self._long = self._long + 1 if is_long else 0
        if self._long == LATEST:
            self._begin_anew()
        else:
            self._learn(seconds, size)
        longest, _ = max(self._latest)
        self.lately_fixed = min(self.fixed, longest)
        line = self._on_line(size)
        if line > 0.0:
            self.lately += LATELY_WEIGHT * (seconds / line - self.lately)

    def _begin_anew(self) -> None:
        """Know the last runs alone."""
        self._classes = []
        self._seen = self._long = 0
        self.lately = 1.0
        for seconds, size in self._latest:
            self._learn(seconds, size)

    def _learn(self, seconds: float, size: int) -> None:
        """Move the class of `size`, and the line."""
        index = (size - 1).bit_length()
        classes = self._classes
        while len(classes) <= index:
            classes.append(None)
        found = classes[index]
        if found is None:
            found = classes[index] = SizeClass()
            self._seen += 1
        found.add(size, seconds)
        if self._seen == 1:
            self.fixed, self.each = found.seconds, 0.0
        else:
            self._fit()

    def _fit(self) -> None:
        w = wn = wnn = ws = wns = 0.0
        for each in self._classes:
            if each is not None:
                seconds = max(SHORTEST, each.seconds)
                weight = min(each.count, MOST_COUNTED) / (seconds * seconds)
                w += weight
                wn += weight * each.size
                wnn += weight * each.size * each.size
                ws += weight * each.seconds
                wns += weight * each.size * each.seconds
        slope = (w * wns - wn * ws) / (w * wnn - SLOPE_SHRINKS * wn * wn)
        self.each = min(max(slope, 0.0), ws / wn)
        self.fixed = max((ws - self.each * wn) / w, 0.0)
