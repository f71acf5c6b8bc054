"""Find the items that make a batch fail, by running halves of it until each culprit stands alone.

A wholly broken model must not cost 2n - 1 calls per batch: after `4·log2(n) + 4` calls (the first included) what is
left fails with the batch's own error.  Larger halves run first, so the calls there are save the most items.

No call sees what an earlier one did to its input: every call after the first is given fresh values.  And the results
of a call are told before the next one, which may write its own into the same memory.

A wrong number of results is the stage's fault whatever the batch, and is not bisected.  An `InvalidItem` raised for a
whole batch is: it names no item, and the batch-mates of a bad one must not be told that they are at fault.  (Returned
in the item's place, or raised for it by `preprocess`, it costs nothing.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.worker.problems import USER_ERRORS, WrongLength

NOT_A_BATCH = (str, bytes, bytearray, dict, set, frozenset)
"""They have a length, but no result in each place."""


class Items(Protocol):
    """The items of one batch, by their places: where values come from and results go."""

    def again(self, places: list[int]) -> tuple[list[int], list[Any]]:
        """Fresh values for `places`; without those that have expired, or that cannot be had again, which are ended."""

    def tell(self, places: list[int], values: list[Any], results: list[Any], *, last: bool) -> None:
        """The results of one call; `last` if no call follows, and nothing more is written where they lie."""

    def fail(self, places: list[int], error: BaseException) -> None:
        """Each of `places` failed with `error`."""


def call_limit(n: int) -> int:
    """Most calls spent on a batch of `n`."""
    return math.floor(4 * math.log2(n)) + 4


class Bisection:
    """Runs one batch; afterwards `calls` says what it cost."""

    def __init__(self, predict: Callable[[list[Any]], Sequence[Any]], *, enabled: bool) -> None:
        self._predict = predict
        self._enabled = enabled
        self.calls = 0

    def run(self, places: list[int], values: list[Any], items: Items) -> None:
        """Tell `items` what became of each of `places`, whose `values` are; there is at least one."""
        try:
            results = self.call(values)
        except USER_ERRORS as error:
            whole = error
        else:
            items.tell(places, values, results, last=True)
            return
        # Outside the handler, so that what the halves raise is not told as having happened while handling this.
        if not self._enabled or len(places) == 1 or isinstance(whole, WrongLength):
            items.fail(places, whole)
        else:
            self._split(places, items, whole)

    def _split(self, places: list[int], items: Items, whole: BaseException) -> None:
        limit = call_limit(len(places))
        todo = deque(_halves(places))
        while todo and self.calls < limit:
            part, values = items.again(todo.popleft())
            if not part:
                continue
            try:
                results = self.call(values)
            except USER_ERRORS as error:
                if len(part) == 1 or isinstance(error, WrongLength):
                    items.fail(part, error)
                else:
                    todo.extend(_halves(part))
            else:
                items.tell(part, values, results, last=False)
        for part in todo:
            items.fail(part, whole)

    def call(self, values: list[Any]) -> list[Any]:
        """One call of `predict`; raises what it raises, or WrongLength."""
        self.calls += 1
        # The stage may do with its list what it likes; ours is still needed.
        results = self._predict(values.copy())
        try:
            n = -1 if isinstance(results, NOT_A_BATCH) else len(results)
        except TypeError:
            n = -1
        if n < 0:
            raise WrongLength(f"predict must return a list of {len(values)} results, got {type(results).__name__}")
        each = list(results)
        if len(each) != len(values):
            raise WrongLength(f"predict returned {len(each)} results for {len(values)} items")
        return each


def _halves(part: list[int]) -> list[list[int]]:
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
