"""What a class of a stage has under another name than that of a hook is told, and helpers are left alone."""

from __future__ import annotations

import functools
import types

import pytest

from penstock.config import Batch
from penstock.errors import ConfigError
from penstock.runtime.spec import stage
from penstock.runtime.stage_hooks import doubtful_hooks
from penstock.worker.stage import Stage
from rows import each


class Embed(Stage):
    def predict(self, x):
        return x


def plain(*_):
    return 1


def with_members(**members):
    return type("Embed", (Embed,), members)


@each(
    ("name", "hook"),
    [
        ("set_up", "setup"),
        ("setUp", "setup"),
        ("setpu", "setup"),
        ("initialize", "setup"),
        ("pre_process", "preprocess"),
        ("preproces", "preprocess"),
        ("decode_request", "preprocess"),
        ("post_process", "postprocess"),
        ("tear_down", "teardown"),
    ],
)
@each("wrap", [lambda f: f, staticmethod, classmethod])
def test_a_method_that_only_a_hook_can_be_is_refused_with_its_name(name, hook, wrap):
    with pytest.raises(ConfigError) as refused:
        stage(with_members(**{name: wrap(plain)}))
    assert str(refused.value) == f"stage 'Embed': its {name!r} is never called: rename it to {hook!r}"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("example", [1], "its 'example' is never read: write `examples = [...]`, a list of items"),
        ("batch_size", 8, "its 'batch_size' is never read: write `batch = penstock.Batch(max_size=8)`"),
        ("max_batch_size", 8, "its 'max_batch_size' is never read: write `batch = penstock.Batch(max_size=8)`"),
        ("batchs", Batch(), "its 'batchs' is never read: rename it to 'batch'"),
        (
            "warmup",
            plain,
            "its 'warmup' is never called: set `examples = [...]`, which every worker runs before it is ready",
        ),
    ],
)
def test_a_value_that_only_a_hook_can_be_is_refused_with_what_to_write(name, value, words):
    with pytest.raises(ConfigError) as refused:
        stage(with_members(**{name: value}))
    assert str(refused.value) == f"stage 'Embed': {words}"


def test_a_name_is_judged_also_where_it_is_inherited():
    class Below(with_members(set_up=plain)): ...

    with pytest.raises(ConfigError, match="stage 'Below': its 'set_up' is never called"):
        stage(Below)


@pytest.mark.parametrize("helper", ["predict_one", "setup_model", "preprocess_text", "_set_up", "predicts", "step"])
def test_a_helper_is_left_alone(helper):
    found = with_members(**{helper: plain})
    assert stage(found).target is found
    assert doubtful_hooks(found) == []


@pytest.mark.parametrize(
    "members",
    [
        {"examples_path": "x", "patch": 16, "preprocessor": 3},
        {"Example": int, "EXAMPLE": 3, "Setup": Embed},
        {"examples": [1], "example": 1},
        {"batch": Batch(), "batch_size": 8},
        {"setup": plain, "set_up": plain, "initialize": plain},
        {"set_up": property(plain), "example": plain},
    ],
)
def test_what_is_something_else_beside_the_hook_is_left_alone(members):
    found = with_members(**members)
    assert stage(found).target is found
    assert doubtful_hooks(found) == []


def test_a_size_is_left_alone_where_the_stage_is_given_a_policy():
    assert stage(with_members(batch_size=8), batch=Batch(8)).batch == Batch(8)


def test_what_the_class_itself_mentions_is_a_helper():
    class Lazy(Embed):
        batch_size = 8
        example = 1

        def __init__(self):
            self.initialize()

        def initialize(self):
            self.load = lambda: self.batch_size

        def set_up(self):
            pass

        @property
        def ready(self):
            return getattr(self, "set_up")() or self.example  # noqa: B009  # a name in a text

    assert stage(Lazy).target is Lazy
    assert doubtful_hooks(Lazy) == []


def unmarked(function):
    def run(*args):
        return function(*args)

    return run


def by_default(function):
    def run(self, *, function=function):
        return function(self)

    return run


class Bound:
    def __init__(self, function):
        self.function = function

    def __get__(self, obj, owner=None):
        return self if obj is None else types.MethodType(self.function, obj)


def prepare(embed):
    return embed.warmup()


def prepare_all(embed):
    return prepare(embed)


class Compiled:
    """What Cython makes of a function."""

    __code__ = compile("", "", "exec")

    def __get__(self, embed, owner=None):
        return self if embed is None else types.MethodType(self, embed)

    def __call__(self, embed):
        return embed.warmup()


@each(
    "members",
    [
        {"setup": unmarked(lambda self: self.warmup())},
        {"setup": unmarked(unmarked(lambda self: self.warmup()))},
        {"setup": by_default(lambda self: self.warmup())},
        {"setup": classmethod(unmarked(lambda cls: cls.warmup()))},
        {"setup": functools.wraps(plain)(lambda self: self.warmup())},
        {"setup": Bound(lambda self: self.warmup())},
        {"setup": functools.partialmethod(lambda self, _n: self.warmup(), 3)},
        {"setup": functools.partial(lambda _n: Embed.warmup(), 3)},
        {"model": functools.cached_property(lambda self: self.warmup())},
        {"setup": lambda self: prepare(self)},
        {"setup": lambda self: prepare_all(self)},
        {"setup": lambda self: [getattr(self, step)() for step in ("load", "warmup")]},
        {"setup": lambda self: [getattr(self, step)() for step in self.steps], "steps": ["load", "warmup"]},
        {"setup": Compiled()},
    ],
)
def test_what_is_used_behind_a_decorator_or_by_a_function_of_the_module_is_a_helper(members):
    found = with_members(warmup=lambda self: 1, **members)
    assert stage(found).target is found


def warm_up(_self, _n=1):
    return 1


@pytest.mark.parametrize("setup", [warm_up, functools.partialmethod(warm_up, 3), unmarked(warm_up)])
def test_a_method_that_is_the_hook_itself_under_two_names_is_left_alone(setup):
    found = with_members(warm_up=warm_up, setup=setup)
    assert stage(found).target is found


def test_what_the_metaclass_calls_is_a_helper():
    class Warm(type):
        def __call__(cls):
            made = super().__call__()
            made.warmup()
            return made

    class Warmed(Embed, metaclass=Warm):
        def warmup(self):
            return 1

    assert stage(Warmed).target is Warmed


def test_an_empty_cell_of_a_method_is_passed_over():
    def never():
        if never is None:
            missing = 1
        return lambda _self: missing

    with pytest.raises(ConfigError, match="its 'warmup' is never called"):
        stage(with_members(warmup=plain, setup=never()))


@pytest.mark.parametrize(("name", "hook"), [("preprocessing", "preprocess"), ("shutdown", "teardown")])
def test_a_name_that_is_only_near_is_doubted(name, hook):
    found = with_members(**{name: plain})
    assert stage(found).target is found
    assert doubtful_hooks(found) == [f"{name!r} is not used: if it is meant to be {hook!r}, rename it"]
    assert doubtful_hooks(with_members(**{name: plain, hook: plain})) == []


def test_a_function_has_no_hooks():
    assert doubtful_hooks(plain) == []
    assert stage(plain).target is plain


@pytest.mark.parametrize("name", ["forward", "__call__", "predcit"])
def test_a_class_without_predict_is_told_what_may_be_meant(name):
    found = type("Below", (Stage,), {name: plain, "limit": 3})
    with pytest.raises(ConfigError) as refused:
        stage(found)
    assert str(refused.value) == f"Below has no predict method: rename its {name!r}"


def test_a_health_is_a_hook_and_what_it_calls_is_used():
    def tear_down(self):
        """Called by `health` alone."""

    members = {"health": lambda self: self.tear_down(), "tear_down": tear_down}
    found = with_members(**members)
    stage(found)
    assert doubtful_hooks(found) == []


@pytest.mark.parametrize("health", [plain, "green", property(plain), lambda self, patient: None])
def test_whatever_is_called_health_is_taken(health):
    stage(with_members(health=health))
    assert doubtful_hooks(with_members(health=health)) == []
