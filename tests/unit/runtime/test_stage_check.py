"""What can be a stage: what is called and returns.  What is `async`, or yields, is told what to write instead."""

from __future__ import annotations

import asyncio
import functools
import re

import pytest

from penstock.errors import ConfigError
from penstock.runtime.spec import stage
from penstock.runtime.stage_check import METHODS
from penstock.worker.stage import Stage


async def awaits(*_):
    return 1


def yields(*_):
    yield 1


async def awaits_and_yields(*_):
    yield 1


def plain(*_):
    return 1


class Waits:
    async def __call__(self, x):
        return x


class Adds:
    def __call__(self, x):
        return x + 1


class Embed(Stage):
    def predict(self, x):
        return x


def with_method(name, method):
    return type("Embed", (Embed,), {name: method})


AWAITING = [awaits, functools.partial(awaits, 1), functools.partial(functools.partial(awaits, 1), 2), Waits()]
YIELDING = [yields, functools.partial(yields, 1), awaits_and_yields]
WRAPPED = [lambda f: f, staticmethod, classmethod, functools.partialmethod]


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_async_or_yields_is_refused_with_what_to_write(name, wrap):
    with pytest.raises(ConfigError) as refused:
        stage(with_method(name, wrap(awaits)))
    assert str(refused.value) == (
        f"stage 'Embed': {name} is `async`, and a stage is called without an event loop: write `def {name}`, "
        "and `asyncio.run(...)` inside it for what has to be awaited"
    )
    for generator in (yields, awaits_and_yields):
        with pytest.raises(ConfigError) as refused:
            stage(with_method(name, wrap(generator)))
        assert str(refused.value) == (
            f"stage 'Embed': {name} is a generator, because it has a `yield`: write `def {name}` without one, "
            "and return the whole result, for instance as a list"
        )


@pytest.mark.parametrize("target", AWAITING)
def test_a_function_that_is_async_is_refused(target):
    with pytest.raises(ConfigError, match=r"stage 'f': .* is `async`"):
        stage(target, name="f")


@pytest.mark.parametrize("target", YIELDING)
def test_a_function_that_yields_is_refused(target):
    with pytest.raises(ConfigError, match=r"stage 'f': .* is a generator"):
        stage(target, name="f")


def test_a_refusal_names_the_function():
    with pytest.raises(ConfigError, match=r"stage 'awaits': awaits is `async`.*write `def awaits`"):
        stage(awaits)


def test_a_method_that_is_inherited_is_judged_too():
    class Below(with_method("predict", awaits)): ...

    with pytest.raises(ConfigError, match="stage 'Below': predict is `async`"):
        stage(Below)


@functools.wraps(awaits)
def waits_for_it(*args):
    return asyncio.run(awaits(*args))


@pytest.mark.parametrize("method", [plain, waits_for_it, Adds(), functools.partial(plain, 1), len])
def test_a_plain_call_is_taken_also_one_that_wraps_what_is_async(method):
    assert stage(method, name="f").target is method
    assert stage(with_method("predict", method)).name == "Embed"


def test_an_object_that_makes_itself_callable_in_c_is_taken():
    find = re.compile("a").match
    assert stage(find, name="f").target is find


@pytest.mark.parametrize("examples", ["abc", b"abc", {"a": 1}, {1, 2}, iter([1]), (x for x in ()), 3, None])
def test_examples_that_are_no_list_are_refused(examples):
    with pytest.raises(ConfigError) as refused:
        stage(with_method("examples", examples))
    assert str(refused.value) == f"stage 'Embed': examples must be a list of items, got {examples!r}"


@pytest.mark.parametrize("examples", [[], [1, 2], (1, 2), range(2)])
def test_examples_in_a_list_or_what_is_like_one_are_taken(examples):
    assert stage(with_method("examples", examples)).examples == tuple(examples)


def test_examples_of_a_function_are_judged_too():
    def shout(text):
        return text.upper()

    shout.examples = "hello"
    with pytest.raises(ConfigError, match="stage 'shout': examples must be a list of items, got 'hello'"):
        stage(shout)
