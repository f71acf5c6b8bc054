"""Find the items that make a batch fail, by running halves of it until each culprit stands alone.

A wholly broken model must not cost 2n - 1 calls per batch: after `4·log2(n) + 4` calls (the first included) what is
left fails with the batch's own error.  Larger halves run first, so the calls there are save the most items.

A wrong number of results is the stage's fault whatever the batch, and is not bisected.  An `InvalidItem` raised for a
whole batch is: it names no item, and the batch-mates of a bad one must not be told that they are at fault.  (Returned
in the item's place, or raised for it by `preprocess`, it costs nothing.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.worker.problems import USER_ERRORS, WrongLength


class Failed:
    """Stands where a result would: this item failed with `error`."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Dropped:
    """Stands where a result would: the item's deadline passed before a call could be spent on it."""


DROPPED = Dropped()

NOT_A_BATCH = (str, bytes, bytearray, dict, set, frozenset)
"""They have a length, but no result in each place."""


def call_limit(n: int) -> int:
    """Most calls spent on a batch of `n`."""
    return math.floor(4 * math.log2(n)) + 4


class Bisection:
    """Runs one batch; afterwards `calls` says what it cost."""

    def __init__(self, predict: Callable[[list[Any]], Sequence[Any]], *, enabled: bool) -> None:
        self._predict = predict
        self._enabled = enabled
        self.calls = 0

    def run(self, values: list[Any], expired: Callable[[int], bool]) -> list[Any]:
        """A result, a `Failed` or `DROPPED` for each of `values`; `expired(i)` is asked before each further call."""
        try:
            return self._call(values)
        except USER_ERRORS as error:
            whole = error
        # Outside the handler, so that what the halves raise is not told as having happened while handling this.
        if not self._enabled or len(values) == 1 or isinstance(whole, WrongLength):
            return [Failed(whole)] * len(values)
        return self._split(values, expired, whole)

    def _split(self, values: list[Any], expired: Callable[[int], bool], whole: BaseException) -> list[Any]:
        results: list[Any] = [Failed(whole)] * len(values)
        limit = call_limit(len(values))
        todo = deque(_halves(list(range(len(values)))))
        while todo and self.calls < limit:
            part = []
            for i in todo.popleft():
                if expired(i):
                    results[i] = DROPPED
                else:
                    part.append(i)
            if not part:
                continue
            try:
                for i, result in zip(part, self._call([values[i] for i in part]), strict=True):
                    results[i] = result
            except USER_ERRORS as error:
                if len(part) == 1 or isinstance(error, WrongLength):
                    for i in part:
                        results[i] = Failed(error)
                else:
                    todo.extend(_halves(part))
        return results

    def _call(self, values: list[Any]) -> list[Any]:
        self.calls += 1
        # The stage may do with its list what it likes; ours is still needed.
        results = self._predict(values.copy())
        try:
            n = -1 if isinstance(results, NOT_A_BATCH) else len(results)
        except TypeError:
            n = -1
        if n < 0:
            raise WrongLength(f"predict must return a list of {len(values)} results, got {type(results).__name__}")
        if n != len(values):
            raise WrongLength(f"predict returned {n} results for {len(values)} items")
        return list(results)


def _halves(part: list[int]) -> list[list[int]]:
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
