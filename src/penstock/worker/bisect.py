"""Find the items that make a batch fail, by running halves of it until each culprit stands alone.

A model that fails for every item must not cost 2n - 1 calls for each batch.  After `4·log2(n) + 4` calls, the first
included, all items that are left fail with the batch's own error.  Larger halves run first, so that these calls save
the most items.

Every call after the first gets fresh values, so that no call sees what an earlier one did to its input.  The results of
a call are passed on before the next call, which may write its own results into the same memory.

A wrong number of results is the stage's fault, whatever the batch, and is not bisected.  An `InvalidItem` that is
raised for a whole batch is bisected: it names no item, and only the caller of the bad item may be told that it is at
fault.  An `InvalidItem` that is returned in its item's place, or raised by `preprocess`, needs no second run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.worker.problems import USER_ERRORS, WrongLength

NOT_A_BATCH = (str, bytes, bytearray, dict, set, frozenset)
"""Types that have a length, but are no list of results."""


class Items(Protocol):
    """The items of one batch by their places in it: they give the values, and take over the results."""

    def again(self, places: list[int]) -> tuple[list[int], list[Any]]:
        """Fresh values for those of `places` that can be run again, and these places.

        The others are settled here: their deadline has passed, or they cannot be decoded a second time.
        """

    def tell(self, places: list[int], values: list[Any], results: list[Any], *, last: bool) -> None:
        """Take over the results of one call; with `last`, no further call can overwrite their memory."""

    def fail(self, places: list[int], error: BaseException) -> None:
        """Fail each of `places` with `error`."""


def call_limit(n: int) -> int:
    """Most calls of `predict` that a batch of `n` items may cost."""
    return math.floor(4 * math.log2(n)) + 4


class Bisection:
    """Runs one batch; `calls` counts the calls of `predict`."""

    def __init__(self, predict: Callable[[list[Any]], Sequence[Any]], *, enabled: bool) -> None:
        self._predict = predict
        self._enabled = enabled
        self.calls = 0

    def run(self, places: list[int], values: list[Any], items: Items) -> None:
        """Run the items at `places`, at least one, with their `values`; tell `items` what became of each."""
        try:
            results = self.call(values)
        except USER_ERRORS as error:
            whole = error
        else:
            items.tell(places, values, results, last=True)
            return
        # This is outside the handler: else the traceback of an error of a half would show this error as its context.
        try:
            if not self._enabled or len(places) == 1 or type(whole) is WrongLength:
                items.fail(places, whole)
            else:
                self._split(places, items, whole)
        finally:
            del whole  # its traceback refers to this frame: the inputs would wait for the cycle collector

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
                if len(part) == 1 or type(error) is WrongLength:
                    items.fail(part, error)
                else:
                    todo.extend(_halves(part))
            else:
                items.tell(part, values, results, last=False)
        left = [place for part in todo for place in part]
        if left:
            items.fail(left, whole)  # all at once: it is described once

    def call(self, values: list[Any]) -> list[Any]:
        """One call of `predict`; raises what it raises, or WrongLength."""
        self.calls += 1
        # The stage gets a copy of the list, because it may change it, and the list is still needed here.
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
