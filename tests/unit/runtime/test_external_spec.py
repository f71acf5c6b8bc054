"""A stage whose workers attach from outside, as its author describes it."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.codec.annotations import Signature
from penstock.codec.formats import Codec
from penstock.config import Batch, StageOptions
from penstock.errors import ConfigError
from penstock.runtime.spec import External, StageSpec, external_stages, stage, with_timeout, with_workers


def test_what_is_left_out_means_json_or_messagepack_of_anything():
    assert ps.remote("square") == StageSpec(
        target=None,
        name="square",
        workers=0,
        options=StageOptions(),
        external=External((Codec.JSON, Codec.MSGPACK), Any, Any),
    )


def test_every_option_means_what_it_means_for_a_stage_of_ours():
    given = {
        "prefetch": 3,
        "max_in_flight_batches": 2,
        "max_queued": 5,
        "timeout": 7.0,
        "orphan_timeout": 11.0,
        "unhealthy_after": math.inf,
        "retry": False,
    }
    batch = Batch(max_size=4, max_wait=0.01)
    spec = ps.remote("square", batch=batch, examples=[1, 2], **given)
    assert dataclasses.asdict(spec.options) == {**given, "concurrency": None, "bisect": True}
    assert (spec.batch, spec.policy, spec.examples) == (batch, batch, (1, 2))
    ours, theirs = inspect.signature(ps.stage).parameters, inspect.signature(ps.remote).parameters
    assert {name: theirs[name].default for name in given} == {
        name: ours[name].default if name != "prefetch" else ps.stage(len).options.prefetch for name in given
    }


def test_its_types_and_its_formats_are_those_given():
    spec = ps.remote("square", accepts=("npy", "json"), item=float, result=dict[str, float])
    assert spec.signature() == Signature(float, dict[str, float])
    assert spec.accepts() == {Codec.NPY, Codec.JSON}
    assert spec.offers() == (Codec.NPY, Codec.JSON)
    assert ps.remote("square", accepts=["raw"]).offers() == (Codec.RAW,)


def test_a_stage_of_ours_has_the_formats_of_its_types():
    def shout(text: str) -> bytes: ...

    spec = stage(shout)
    assert spec.accepts() == {Codec.JSON, Codec.MSGPACK}
    assert spec.offers() == (Codec.RAW, Codec.JSON, Codec.MSGPACK)


@pytest.mark.parametrize("accepts", ["json", (), ("json", "json"), ("pickle",), ("JSON",), (1,), None, {"json"}, ([],)])
def test_formats_are_some_of_four_each_once(accepts):
    words = "stage 'square': accepts must be a list of different formats of json, msgpack, raw, npy, got "
    with pytest.raises(ConfigError, match=f"^{re.escape(words + repr(accepts))}$"):
        ps.remote("square", accepts=accepts)


@pytest.mark.parametrize("name", ["", None, 3, b"square", "two words"])
def test_it_has_a_name_of_its_own(name):
    with pytest.raises(ConfigError, match=rf"^a stage's name must consist of letters, digits and .*, got {name!r}$"):
        ps.remote(name)


@pytest.mark.parametrize("which", ["item", "result"])
@pytest.mark.parametrize(
    ("kind", "shown"),
    [(complex, "complex"), (type, "type"), (list[int] | list[str], "list[int] | list[str]"), (5, "5"), (Path, "Path")],
)
def test_its_types_are_such_as_messages_can_carry(which, kind, shown):
    words = (
        f"stage 'square': {which} must be a type that JSON and MessagePack support, such as dict[str, float], "
        f"got `{shown}`"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        ps.remote("square", **{which: kind})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 4}, "stage 'square': batch must be a penstock.Batch, got 4"),
        ({"prefetch": -1}, "stage 'square': prefetch must be a whole number of at least 0, got -1"),
        (
            {"max_in_flight_batches": 0},
            "stage 'square': max_in_flight_batches must be a whole number of at least 1, got 0",
        ),
        ({"timeout": 0}, "stage 'square': timeout must be more than 0 seconds, got 0"),
        ({"orphan_timeout": "never"}, "stage 'square': orphan_timeout must be "),
        ({"unhealthy_after": -1}, "stage 'square': unhealthy_after must be at least 0 seconds; inf: never, got -1"),
        ({"retry": 1}, "stage 'square': retry must be True or False, got 1"),
        ({"max_queued": 0}, "stage 'square': max_queued must be "),
        ({"examples": "abc"}, "stage 'square': examples must be a list of items, got 'abc'"),
    ],
)
def test_an_argument_it_cannot_have_is_named_with_its_stage(given, words):
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        ps.remote("square", **given)


@pytest.mark.parametrize("name", ["workers", "setup", "cpus", "bisect"])
def test_what_is_for_workers_of_ours_is_no_argument_here(name):
    with pytest.raises(ConfigError, match=name):
        ps.remote("square", **{name: 1})


def test_nobody_here_says_how_many_workers_it_has():
    words = "stage 'square': it is remote, so it cannot have a number of workers; max_remote_workers limits them"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        with_workers(ps.remote("square"), 2)


def test_it_takes_the_timeout_of_a_consumer_unless_it_has_one():
    assert with_timeout(ps.remote("square"), 9.0).options.timeout == 9.0
    assert with_timeout(ps.remote("square", timeout=2.0), 9.0).options.timeout == 2.0


def test_which_stages_are_external_is_told_by_name():
    assert external_stages([ps.remote("a"), stage(math.sqrt), ps.remote("b")]) == ["a", "b"]
    assert external_stages([stage(math.sqrt)]) == []
