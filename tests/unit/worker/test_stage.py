"""The class users write, and what a worker makes of it."""

from __future__ import annotations

import functools

import pytest

from penstock.worker.problems import describe_error
from penstock.worker.stage import Stage, has_health, make_stage, wants_pre
from rows import each


def test_a_stage_without_predict_says_so():
    with pytest.raises(NotImplementedError, match="Stage has no predict method"):
        Stage().predict(1)


class Posts:
    def one(self, y): ...
    def two(self, y, pre): ...
    def default(self, y, pre=None): ...
    def keyword(self, y, *, scale=1): ...
    def everything(self, *args): ...
    @staticmethod
    def static_two(y, pre): ...
    @classmethod
    def class_one(cls, y): ...


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("one", False),
        ("two", True),
        ("default", True),
        ("keyword", False),
        ("everything", True),
        ("static_two", True),
        ("class_one", False),
    ],
)
def test_postprocess_wants_what_preprocess_made_if_it_takes_two_arguments(name, wanted):
    assert wants_pre(getattr(Posts(), name)) is wanted


def test_an_error_that_was_never_raised_is_described_without_a_traceback():
    problem = describe_error(ValueError("x"))
    assert problem.traceback == "ValueError: x\n"


def test_a_function_brings_its_examples():
    def double(x):
        return 2 * x

    double.examples = [1, 2]
    assert make_stage(double).examples == [1, 2]
    assert make_stage(len).examples == ()


# -- what counts as a health -------------------------------------------------------------------------------------------


def wrapped(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


async def waits(self):
    """An `async` method."""


def yields(self):
    yield


async def waits_and_yields(self):
    yield


@pytest.mark.parametrize("health", [lambda self: None, lambda this, /: None, wrapped(lambda self: None), waits])
def test_a_method_that_takes_nothing_is_a_health(health):
    assert has_health(type("Lamp", (Stage,), {"health": health}))


@each(
    "health",
    [
        "green",
        property(lambda self: "green"),
        staticmethod(lambda: None),
        classmethod(lambda cls: None),
        lambda self, patient: None,
        lambda self, deep=False: None,
        lambda *args: None,
        lambda self, *, deep=False: None,
        functools.partialmethod(lambda self: None),
        yields,
        waits_and_yields,
        None,
    ],
)
def test_whatever_else_is_called_so_is_none(health):
    assert not has_health(type("Lamp", (Stage,), {"health": health}))


def test_a_stage_without_one_and_a_function_have_none():
    def function(x):
        return x

    function.health = lambda self: None
    assert not has_health(Stage)
    assert not has_health(function)
