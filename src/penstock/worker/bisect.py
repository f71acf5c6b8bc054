"""Find the items that make a batch fail, by running halves of it until each culprit stands alone.

A model that fails for every item must not cost 2n - 1 calls for each batch.  After `4·log2(n) + 4` calls, the first
included, all items that are left fail with the batch's own error.  Larger halves run first, so that these calls save
the most items.

Every call after the first gets fresh values, so that no call sees what an earlier one did to its input.  The results of
a call are passed on before the next call, which may write its own results into the same memory.

A wrong number of results is the stage's fault, whatever the batch, and is not bisected; nor is a coroutine in place of
them.  An `InvalidItem` that is raised for a whole batch is bisected: it names no item, and only the caller of the bad
item may be told that it is at fault.  An `InvalidItem` that is returned in its item's place, or raised by `preprocess`,
needs no second run.

Where there was no memory for a batch, what the call held is let go of first.  Then halves run until each item has run
or failed alone, whatever that costs, also where bisection is off: the fault is in the size, and each item may be right.
After an error that says that the device is lost nothing more is run.

The splitting is a generator: it yields a part, and is sent what became of it.  A plain worker runs each part at once;
the event loop of a waiting stage awaits it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias

from penstock.worker.device_errors import device_is_lost, let_go, ran_out_of_memory
from penstock.worker.problems import STAGE_FAULTS, USER_ERRORS, WrongLength, not_awaited

NOT_A_BATCH = (str, bytes, bytearray, dict, set, frozenset)
"""Types that have a length, but are no list of results."""

Steps: TypeAlias = Generator[list[int], tuple[list[int], BaseException | None], None]
"""Yields the places of each part to run; it is sent those that were run, and the error of the call."""


class PartItems(Protocol):
    """The items of one batch, as far as the splitting itself tells them anything."""

    def fail(self, places: list[int], error: BaseException) -> None:
        """Fail each of `places` with `error`."""


class Items(PartItems, Protocol):
    """The items of one batch by their places in it: they give the values, and take over the results."""

    def again(self, places: list[int]) -> tuple[list[int], list[Any]]:
        """Fresh values for those of `places` that can be run again, and these places.

        The others are settled here: their deadline has passed, or they cannot be decoded a second time.
        """

    def tell(self, places: list[int], values: list[Any], results: list[Any], *, last: bool) -> None:
        """Take over the results of one call; with `last`, no further call can overwrite their memory."""


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
        steps = self.split(places, values, whole, items)
        del whole  # its traceback refers to this frame: the inputs would wait for the cycle collector
        part = next(steps, None)
        while part is not None:
            part = self.following(steps, *self._run_part(part, items))

    def _run_part(self, part: list[int], items: Items) -> tuple[list[int], BaseException | None]:
        part, values = items.again(part)
        if not part:
            return part, None
        try:
            results = self.call(values)
        except USER_ERRORS as error:
            return part, error  # and no name for it: its traceback refers to this frame, and that to the values
        items.tell(part, values, results, last=False)
        return part, None

    def following(self, steps: Steps, part: list[int], error: BaseException | None) -> list[int] | None:
        """The next part to run; None where there is none.

        `part` is what could be run of the part before, and `error` why it failed: None where it did not.
        """
        try:
            return steps.send((part, error))
        except StopIteration:
            return None

    def split(self, places: list[int], values: list[Any], error: BaseException, items: PartItems) -> Steps:
        """The parts to run after the call for all of `places` has failed with `error`, one after the other.

        Each is sent back with what became of it, as `following` does.  `items` are told of those that fail.
        """
        if len(places) == 1 or type(error) in STAGE_FAULTS or device_is_lost(error):
            items.fail(places, error)
        elif ran_out_of_memory(error):
            self.short_of_memory = len(places)
            values.clear()
            let_go(error)
            yield from self._halve(places, items, None)
        elif self._enabled:
            yield from self._halve(places, items, error)
        else:
            items.fail(places, error)

    def _halve(self, places: list[int], items: PartItems, why: BaseException | None) -> Steps:
        """The halves of what failed because of `why`, which is None where that was want of memory.

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
            part, failed = yield part
            if failed is None:
                self.most_ran = max(self.most_ran, len(part))
                continue
            if device_is_lost(failed):
                items.fail([*part, *[place for other, _ in todo for place in other]], failed)
                todo.clear()
                continue
            halves = [] if len(part) == 1 or type(failed) in STAGE_FAULTS else _halves(part)
            if not halves:
                items.fail(part, failed)
            if ran_out_of_memory(failed):
                self.short_of_memory = max(self.short_of_memory, len(part))
                let_go(failed)
                why = None
            elif why is None:
                why = failed
            todo.extend([(half, why) for half in halves])
            failed = None  # the next part runs: the error would keep what its call held
        _fail_all(left, items)

    def call(self, values: list[Any]) -> list[Any]:
        """One call of `predict`; raises what it raises, or WrongLength."""
        self.begin_call()
        # The stage gets a copy of the list, because it may change it, and the list is still needed here.
        return self.returned(self._predict(values.copy()), len(values))

    def begin_call(self) -> None:
        """Count a call of `predict`, as one that fails until it has returned."""
        self.calls += 1
        self.failed_last += 1

    def returned(self, results: Any, wanted: int) -> list[Any]:
        """The results that a call for `wanted` items has returned; WrongLength where they are not as many."""
        try:
            n = -1 if isinstance(results, NOT_A_BATCH) else len(results)
        except TypeError:
            n = -1
        if n < 0:
            unawaited = not_awaited(results, "predict")
            if unawaited is not None:
                raise unawaited
            raise WrongLength(f"predict must return a list of {wanted} results, got {type(results).__name__}")
        each = list(results)
        if len(each) != wanted:
            raise WrongLength(f"predict returned {len(each)} results for {wanted} items")
        self.failed_last = 0
        return each


def _fail_all(left: list[tuple[list[int], BaseException]], items: PartItems) -> None:
    """Fail what was not run: all of one error at once, so that it is described once."""
    while left:
        why = left[0][1]
        items.fail([place for part, error in left if error is why for place in part], why)
        left = [entry for entry in left if entry[1] is not why]


def _halves(part: list[int]) -> list[list[int]]:
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
