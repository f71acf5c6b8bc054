"""Finding the items that make a batch fail, within a bounded number of calls."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref

import numpy as np
import pytest

from penstock.worker.bisect import Bisection, call_limit
from penstock.worker.problems import WrongLength
from rows import each


class Culprits:
    """A model that raises on a batch with any of `bad`; remembers its batches."""

    def __init__(self, bad):
        self.bad = set(bad)
        self.batches = []

    def __call__(self, xs):
        self.batches.append(list(xs))
        found = sorted(self.bad.intersection(xs))
        if found:
            raise ValueError(f"cannot take {found}")
        return [x * 10 for x in xs]


DROPPED = "dropped"


class Failed:
    def __init__(self, error):
        self.error = error


class Items:
    """`n` items, which are their own values; remembers what became of each, and refuses to be told twice."""

    def __init__(self, n, expired):
        self.results = [None] * n
        self.expired = expired

    def put(self, i, result):
        assert self.results[i] is None
        self.results[i] = result

    def again(self, places):
        for i in filter(self.expired, places):
            self.put(i, DROPPED)
        kept = [i for i in places if not self.expired(i)]
        return kept, kept

    def tell(self, places, values, results, *, last):
        assert len(places) == len(values) == len(results)
        for i, result in zip(places, results, strict=True):
            self.put(i, result)

    def fail(self, places, error):
        for i in places:
            self.put(i, Failed(error))


def bisect(predict, n, *, expired=lambda i: False):
    bisection = Bisection(predict, enabled=True)
    found = Items(n, expired)
    bisection.run(list(range(n)), list(range(n)), found)
    return found.results, bisection.calls


def failed(results):
    return [i for i, result in enumerate(results) if isinstance(result, Failed)]


@pytest.mark.parametrize(
    ("n", "limit"), [(1, 4), (2, 8), (3, 10), (4, 12), (8, 16), (31, 23), (32, 24), (33, 24), (1024, 44)]
)
def test_the_limit_is_four_times_log2_plus_four(n, limit):
    assert call_limit(n) == limit == math.floor(4 * math.log2(n) + 4)


def test_a_batch_that_works_costs_one_call():
    assert bisect(Culprits([]), 8) == ([x * 10 for x in range(8)], 1)


@pytest.mark.parametrize("n", [2, 3, 7, 32, 33])
def test_one_culprit_fails_alone_wherever_it_stands(n):
    for bad in range(n):
        results, calls = bisect(Culprits([bad]), n)
        assert failed(results) == [bad]
        assert str(results[bad].error) == f"cannot take [{bad}]"
        assert [r for i, r in enumerate(results) if i != bad] == [i * 10 for i in range(n) if i != bad]
        assert calls <= 2 * math.ceil(math.log2(n)) + 1


def test_two_culprits_of_a_full_batch_fail_alone_wherever_they_stand():
    for a in range(32):
        for b in range(a):
            results, calls = bisect(Culprits([a, b]), 32)
            assert failed(results) == [b, a]
            assert calls <= call_limit(32)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 32, 100])
def test_a_wholly_broken_model_costs_exactly_the_limit_or_every_call_there_is(n):
    model = Culprits(range(n))
    results, calls = bisect(model, n)
    assert failed(results) == list(range(n))
    assert calls == len(model.batches) == min(call_limit(n), 2 * n - 1)


def test_what_is_left_at_the_limit_fails_with_the_batchs_own_error():
    results, _ = bisect(Culprits(range(64)), 64)
    whole = f"cannot take {list(range(64))}"
    assert sum(str(result.error) == whole for result in results) > 32
    assert all(str(r.error) in (whole, f"cannot take [{i}]") for i, r in enumerate(results))


def test_larger_halves_run_first():
    model = Culprits([0])
    bisect(model, 8)
    assert [len(batch) for batch in model.batches] == [8, 4, 4, 2, 2, 1, 1]


def test_a_half_that_has_wholly_expired_costs_no_call():
    model = Culprits([7])
    results, calls = bisect(model, 8, expired=lambda i: i < 5)
    assert results[:7] == [DROPPED] * 5 + [50, 60]
    assert calls == len(model.batches)
    assert all(model.batches)


@each(
    ("answer", "reason"),
    [
        ([1], "predict returned 1 results for 4 items"),
        ([1] * 5, "predict returned 5 results for 4 items"),
        ([], "predict returned 0 results for 4 items"),
        (None, "predict must return a list of 4 results, got NoneType"),
        (7, "predict must return a list of 4 results, got int"),
        ((x for x in range(4)), "predict must return a list of 4 results, got generator"),
        ("abcd", "predict must return a list of 4 results, got str"),
        (b"abcd", "predict must return a list of 4 results, got bytes"),
        (dict.fromkeys(range(4)), "predict must return a list of 4 results, got dict"),
        ({1, 2, 3, 4}, "predict must return a list of 4 results, got set"),
        (np.float32(1), "predict must return a list of 4 results, got float32"),
        (np.zeros((3, 4)), "predict returned 3 results for 4 items"),
    ],
)
def test_another_number_of_results_than_items_is_told_and_not_bisected(answer, reason):
    results, calls = bisect(lambda xs: answer, 4)
    assert {type(result.error) for result in results} == {WrongLength}
    assert {str(result.error) for result in results} == {reason}
    assert calls == 1


def test_a_half_of_the_wrong_length_is_not_bisected_further():
    def predict(xs):
        if len(xs) == 8:
            raise ValueError("too many")
        return xs[:-1]

    results, calls = bisect(predict, 8)
    assert {str(result.error) for result in results} == {"predict returned 3 results for 4 items"}
    assert calls == 3


@pytest.mark.parametrize("shape", [list, tuple, np.asarray], ids=["list", "tuple", "array"])
def test_results_come_as_a_list_a_tuple_or_an_array(shape):
    results, _ = bisect(lambda xs: shape([x * 10 for x in xs]), 3)
    assert results == [0, 10, 20]


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, BaseException])
def test_what_is_no_exception_is_a_failure_like_others(kind):
    def predict(xs):
        if 1 in xs:
            raise kind
        return xs

    results, _ = bisect(predict, 4)
    assert failed(results) == [1]
    assert isinstance(results[1].error, kind)


def test_results_that_are_fewer_than_they_say_are_told():
    class Liar(list):
        def __iter__(self):
            return iter([1])

    results, calls = bisect(lambda xs: Liar([1, 2, 3]), 3)
    assert {str(result.error) for result in results} == {"predict returned 1 results for 3 items"}
    assert calls == 1


def test_a_stage_may_change_the_list_it_is_given():
    model = Culprits([1])

    def predict(xs):
        results = model(xs)
        xs.clear()
        return results

    results, _ = bisect(predict, 4)
    assert failed(results) == [1]
    assert [results[i] for i in (0, 2, 3)] == [0, 20, 30]


def test_errors_of_the_halves_are_not_told_as_consequences_of_each_other():
    results, _ = bisect(Culprits([0, 1]), 2)
    assert [result.error.__context__ for result in results] == [None, None]


class Value:
    """An input that a weak reference can be made to."""


class Settled:
    """Items that remember nothing."""

    def again(self, places):
        return places, [Value() for _ in places]

    def tell(self, places, values, results, *, last):
        pass

    def fail(self, places, error):
        pass


@pytest.mark.parametrize("n", [1, 4])
def test_the_inputs_of_a_batch_that_failed_are_let_go_of_at_once(n):
    made = []

    def fails(xs):
        made.extend(map(weakref.ref, xs))
        raise ValueError("no")

    gc.disable()
    try:
        Bisection(fails, enabled=True).run(list(range(n)), [Value() for _ in range(n)], Settled())
        assert len(made) >= n
        assert [ref for ref in made if ref() is not None] == []
    finally:
        gc.enable()


# -- want of memory ---------------------------------------------------------------------------------------------------


class Small:
    """A model that has memory for `fits` items at once; `bad` raise whatever there is."""

    def __init__(self, fits, bad=()):
        self.fits, self.bad = fits, set(bad)
        self.sizes = []
        self.held = []

    def __call__(self, xs):
        assert [held() for held in self.held] == [None] * len(self.held), "what a failed call held is let go of"
        self.sizes.append(len(xs))
        tensor = Tensor()
        if len(xs) > self.fits:
            self.held.append(weakref.ref(tensor))
            raise MemoryError
        found = sorted(self.bad.intersection(xs))
        if found:
            raise ValueError(f"cannot take {found}")
        return [x * 10 for x in xs]


class Tensor:
    pass


@each("enabled", [True, False])
@each(("n", "fits", "most_ran"), [(32, 5, 4), (32, 2, 2), (32, 1, 1), (33, 16, 16), (2, 1, 1)])
def test_where_memory_is_short_halves_run_until_each_item_has_run(enabled, n, fits, most_ran):
    model = Small(fits)
    bisection = Bisection(model, enabled=enabled)
    items = Items(n, lambda _: False)
    values = list(range(n))
    bisection.run(list(range(n)), values, items)
    assert items.results == [10 * i for i in range(n)]
    assert (bisection.short_of_memory, bisection.most_ran, values) == (n, most_ran, [])


@each("enabled", [True, False])
def test_an_item_that_has_no_memory_alone_fails_alone(enabled):
    bisection = Bisection(Small(0), enabled=enabled)
    items = Items(5, lambda _: False)
    bisection.run(list(range(5)), list(range(5)), items)
    assert [type(result.error) for result in items.results] == [MemoryError] * 5
    assert (bisection.short_of_memory, bisection.most_ran) == (5, 0)
    alone = Bisection(Small(0), enabled=enabled)
    alone.run([0], [0], Items(1, lambda _: False))
    assert (alone.short_of_memory, alone.calls) == (0, 1)


@each(("enabled", "failed"), [(True, [3]), (False, [0, 1, 2, 3])])
def test_a_half_that_fails_for_another_reason_is_bisected_where_that_is_on(enabled, failed):
    bisection = Bisection(Small(4, bad=[3]), enabled=enabled)
    items = Items(8, lambda _: False)
    bisection.run(list(range(8)), list(range(8)), items)
    assert [i for i, result in enumerate(items.results) if isinstance(result, Failed)] == failed
    assert str(items.results[3].error).startswith("cannot take [3]")


def test_a_half_that_has_no_memory_runs_to_its_end_though_the_batch_failed_for_another_reason():
    class Model(Small):
        def __call__(self, xs):
            if 63 in xs:
                raise ValueError("bad")
            return super().__call__(xs)

    bisection = Bisection(Model(1), enabled=True)
    items = Items(64, lambda _: False)
    bisection.run(list(range(64)), list(range(64)), items)
    assert items.results[:32] == [10 * i for i in range(32)]
    assert bisection.calls > call_limit(64)
    assert str(items.results[63].error) == "bad"
