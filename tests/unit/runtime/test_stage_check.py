"""What can be a stage: what is called and returns, or is awaited.  What yields is told what to write instead."""

from __future__ import annotations

import asyncio
import functools
import re
import types

import pytest

from penstock.config import Batch
from penstock.errors import ConfigError
from penstock.runtime.spec import stage
from penstock.runtime.stage_hooks import METHODS
from penstock.worker.stage import Stage
from rows import each


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


@each("wrap", WRAPPED)
@each("name", METHODS)
def test_a_method_may_be_async(name, wrap):
    assert stage(with_method(name, wrap(awaits))).concurrency == (64 if name == "predict" else 2)


def test_health_may_be_async_and_a_method_of_that_name_that_takes_more_is_none():
    async def health(self):
        """It is always well."""

    async def of_a_patient(self, patient):
        """It is something else."""

    assert stage(with_method("health", health)).concurrency == 2
    assert stage(with_method("health", of_a_patient)).concurrency == 0


async def declares(cls, **kwargs):
    """An `async` method of a class."""


async def begins(self):
    """An `async` method of an object."""


@each(
    ("name", "member", "why"),
    [
        (
            "declare",
            classmethod(declares),
            "it is called without an event loop, when the service is created: write `def declare`",
        ),
        (
            "__init__",
            begins,
            "Python does not await it: write `def __init__`, and put code that awaits into `async def setup`",
        ),
    ],
)
def test_what_nobody_awaits_is_refused_where_it_is_async(name, member, why):
    with pytest.raises(ConfigError) as refused:
        stage(with_method(name, member))
    assert str(refused.value) == f"stage 'Embed': {name} is `async`, and {why}"


@each("made_by", [property, functools.cached_property])
@each("name", [*METHODS, "health", "examples", "batch"])
def test_an_async_property_in_the_place_of_what_a_worker_reads_is_refused(name, made_by):
    with pytest.raises(ConfigError) as refused:
        stage(with_method(name, made_by(begins)))
    assert str(refused.value) == (
        f"stage 'Embed': {name} is an `async` property, which is never awaited: use a method or a plain value "
        "instead, without `@property`"
    )


def test_an_async_property_of_the_authors_own_is_theirs():
    assert stage(with_method("token", property(begins))).name == "Embed"


@each("wrap", WRAPPED)
@each("name", METHODS)
def test_a_method_that_yields_is_refused_with_what_to_write(name, wrap):
    for generator in (yields, awaits_and_yields):
        with pytest.raises(ConfigError) as refused:
            stage(with_method(name, wrap(generator)))
        assert str(refused.value) == (
            f"stage 'Embed': {name} is a generator, because it has a `yield`: write `def {name}` without one, "
            "and return the whole result, for instance as a list"
        )


@pytest.mark.parametrize("target", AWAITING)
def test_a_function_may_be_async(target):
    assert stage(target, name="f").concurrency == 64


@pytest.mark.parametrize("target", YIELDING)
def test_a_function_that_yields_is_refused(target):
    with pytest.raises(ConfigError, match=r"stage 'f': .* is a generator"):
        stage(target, name="f")


def test_a_refusal_names_the_function():
    with pytest.raises(ConfigError, match=r"stage 'yields': yields is a generator.*write `def yields`"):
        stage(yields)


def test_a_method_that_is_inherited_is_judged_too():
    class Below(with_method("predict", awaits)): ...

    assert stage(Below).concurrency == 64

    class Yields(with_method("predict", yields)): ...

    with pytest.raises(ConfigError, match="stage 'Yields': predict is a generator"):
        stage(Yields)


@functools.wraps(awaits)
def waits_for_it(*args):
    return asyncio.run(awaits(*args))


@pytest.mark.parametrize("method", [plain, waits_for_it, Adds(), functools.partial(plain, 1), len])
def test_a_plain_call_is_taken_also_one_that_wraps_what_is_async(method):
    assert stage(method, name="f").target is method
    assert stage(method, name="f").concurrency == 0
    assert stage(with_method("predict", method)).name == "Embed"


def test_an_object_that_makes_itself_callable_in_c_is_taken():
    find = re.compile("a").match
    assert stage(find, name="f").target is find


ITEM = "; pass everything that belongs to an item in one argument, for instance a dataclass"


@pytest.mark.parametrize(
    ("name", "method", "wanted", "given", "hint"),
    [
        ("predict", lambda self, x, y: 1, "self, x", "self, x, y", ITEM),
        ("predict", lambda self: 1, "self, x", "self", ITEM),
        ("predict", lambda self, x, *, scale: 1, "self, x", "self, x, *, scale", ITEM),
        ("predict", staticmethod(lambda: 1), "x", "", ITEM),
        ("predict", classmethod(lambda cls, x, y: 1), "x", "x, y", ITEM),
        ("preprocess", lambda self, x, y: 1, "self, x", "self, x, y", ITEM),
        ("postprocess", lambda self: 1, "self, y", "self", ITEM),
        ("postprocess", lambda self, y, pre, more: 1, "self, y, pre", "self, y, pre, more", ITEM),
        ("postprocess", staticmethod(lambda y, pre, more: 1), "y, pre", "y, pre, more", ITEM),
        ("teardown", lambda self, why: 1, "self", "self, why", ""),
    ],
)
def test_a_method_that_cannot_be_called_as_a_worker_does_is_refused(name, method, wanted, given, hint):
    with pytest.raises(ConfigError) as refused:
        stage(with_method(name, method))
    assert str(refused.value) == (
        f"stage 'Embed': a worker calls {name}({wanted}), but it is defined as {name}({given}): "
        f"write `def {name}({wanted})`{hint}"
    )


def test_a_function_of_two_items_is_refused_and_one_of_a_batch_is_told_of_a_list():
    def add(x, y):
        return x + y

    with pytest.raises(ConfigError, match=r"stage 'add': a worker calls add\(x\), but it is defined as add\(x, y\)"):
        stage(add)
    with pytest.raises(ConfigError, match=r"a worker calls add\(xs\)"):
        stage(add, batch=Batch())


@functools.wraps(lambda self, x, scale: x * scale)
def gives_scale(self, x):
    return gives_scale.__wrapped__(self, x, 2)


@each(
    ("name", "method"),
    [
        ("predict", lambda self, x, scale=2: 1),
        ("predict", lambda self, *xs: 1),
        ("predict", gives_scale),
        ("predict", functools.partialmethod(lambda self, scale, x: 1, 2)),
        ("predict", functools.partial(lambda scale, x: 1, 2)),
        ("postprocess", lambda self, y: 1),
        ("postprocess", lambda self, y, pre: 1),
        ("postprocess", lambda self, y, pre, more=3: 1),
        ("postprocess", lambda self, *all: 1),
        ("postprocess", re.compile("a").match),
        ("teardown", lambda self, why="end": 1),
        ("teardown", staticmethod(lambda: 1)),
        ("predict", dict.fromkeys),
        ("postprocess", max),
    ],
)
def test_a_method_that_can_be_called_as_a_worker_does_is_taken(name, method):
    assert stage(with_method(name, method)).name == "Embed"


class OnObjects:
    """What a decorator that is a class often makes: a method of objects, and an error on the class."""

    def __init__(self, function):
        self.function = function

    def __get__(self, embed, owner):
        return types.MethodType(self.function, embed)


@pytest.mark.parametrize("name", ["setup", "preprocess", "predict", "postprocess", "teardown"])
@pytest.mark.parametrize("method", [OnObjects(lambda *_: 1), property(lambda _self: plain)])
def test_what_an_object_in_a_methods_place_takes_is_not_known_without_an_object_of_the_stage(name, method):
    assert stage(with_method(name, method)).name == "Embed"


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
