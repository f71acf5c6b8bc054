"""Find the items that make a batch fail, by running halves of it until each culprit stands alone.

A model that fails for every item must not cost 2n - 1 calls for each batch.  After `4·log2(n) + 4` calls, the first
included, all items that are left fail with the batch's own error.  Larger halves run first, so that these calls save
the most items.

Every call after the first gets fresh values, so that no call sees what an earlier one did to its input.  The results of
a call are passed on before the next call, which may write its own results into the same memory.

A wrong number of results is the stage's fault, whatever the batch, and is not bisected.  An `InvalidItem` that is
raised for a whole batch is bisected: it names no item, and only the caller of the bad item may be told that it is at
fault.  An `InvalidItem` that is returned in its item's place, or raised by `preprocess`, needs no second run.

Where there was no memory for a batch, what the call held is let go of first.  Then halves run until each item has run
or failed alone, whatever that costs, also where bisection is off: the fault is in the size, and each item may be right.
After an error that says that the device is lost nothing more is run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.worker.device_errors import device_is_lost, let_go, ran_out_of_memory
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
    """Runs one batch; `calls` counts the calls of `predict`, `failed_last` those that failed since one returned.

    `short_of_memory` is how many items the batch had where there was no memory for them at once, else 0; `most_ran` is
    then the most items of one call that returned.
    """

    def __init__(self, predict: Callable[[list[Any]], Sequence[Any]], *, enabled: bool) -> None:
        self._predict = predict
        self._enabled = enabled
        self.calls = 0
        self.failed_last = 0
        self.short_of_memory = 0
        self.most_ran = 0

    def run(self, places: list[int], values: list[Any], items: Items) -> None:
        """Run the items at `places`, at least one, with their `values`; tell `items` what became of each.

        `values` are let go of where there was not enough memory.
        """
        try:
            results = self.call(values)
        except USER_ERRORS as error:
            whole = error
        else:
            items.tell(places, values, results, last=True)
            return
        # This is outside the handler: else the traceback of an error of a half would show this error as its context.
        try:
            if len(places) == 1 or type(whole) is WrongLength or device_is_lost(whole):
                items.fail(places, whole)
            elif ran_out_of_memory(whole):
                self.short_of_memory = len(places)
                values.clear()
                let_go(whole)
                self._split(places, items, None)
            elif self._enabled:
                self._split(places, items, whole)
            else:
                items.fail(places, whole)
        finally:
            del whole  # its traceback refers to this frame: the inputs would wait for the cycle collector

    def _split(self, places: list[int], items: Items, why: BaseException | None) -> None:
        """Run halves of what failed because of `why`, which is None where that was want of memory.

        Halves of what there was no memory for run until each item has run or failed alone, whatever that costs.
        """
        limit = call_limit(len(places))
        todo: deque[tuple[list[int], BaseException | None]] = deque([(half, why) for half in _halves(places)])
        left: list[tuple[list[int], BaseException]] = []
        while todo:
            part, why = todo.popleft()
            if why is not None and (not self._enabled or self.calls >= limit):
                left.append((part, why))
                continue
            part, values = items.again(part)
            if not part:
                continue
            try:
                results = self.call(values)
            except USER_ERRORS as error:
                failed: BaseException = error
            else:
                self.most_ran = max(self.most_ran, len(part))
                items.tell(part, values, results, last=False)
                continue
            if device_is_lost(failed):
                items.fail([*part, *[place for other, _ in todo for place in other]], failed)
                todo.clear()
                continue
            halves = [] if len(part) == 1 or type(failed) is WrongLength else _halves(part)
            if not halves:
                items.fail(part, failed)
            if ran_out_of_memory(failed):
                self.short_of_memory = max(self.short_of_memory, len(part))
                values.clear()
                let_go(failed)
                why = None
            elif why is None:
                why = failed
            todo.extend([(half, why) for half in halves])
            del failed
        _fail_all(left, items)

    def call(self, values: list[Any]) -> list[Any]:
        """One call of `predict`; raises what it raises, or WrongLength."""
        self.calls += 1
        self.failed_last += 1
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
        self.failed_last = 0
        return each


def _fail_all(left: list[tuple[list[int], BaseException]], items: Items) -> None:
    """Fail what was not run: all of one error at once, so that it is described once."""
    while left:
        why = left[0][1]
        items.fail([place for part, error in left if error is why for place in part], why)
        left = [entry for entry in left if entry[1] is not why]


def _halves(part: list[int]) -> list[list[int]]:
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
