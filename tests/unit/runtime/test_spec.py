"""A stage as its author describes it: what is filled in, and what is refused with the value in the message."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from pathlib import Path

import pytest

import penstock
from penstock.config import Batch, StageOptions
from penstock.errors import ConfigError
from penstock.runtime.spec import StageSpec, stage, with_timeout, with_workers
from penstock.worker.stage import Stage
from rows import each


class Embed(Stage):
    batch = Batch(max_size=7)
    examples = ["a", "b"]

    def setup(self, path="x"): ...

    def predict(self, xs): ...


def count(x):
    return len(x)


def test_what_is_left_out_is_one_unpinned_worker_that_bisects_and_retries():
    assert stage(count) == StageSpec(
        target=count,
        name="count",
        workers=1,
        setup={},
        cpus=(),
        env=(),
        gpus=(),
        batch=None,
        examples=(),
        options=StageOptions(prefetch=1, max_queued=None, timeout=None, bisect=True, retry=True),
    )


def test_a_class_brings_its_name_its_policy_and_its_examples():
    spec = stage(Embed)
    assert (spec.name, spec.batch, spec.examples) == ("Embed", Batch(max_size=7), ("a", "b"))
    assert spec.policy == Batch(max_size=7)


class Enrich(Stage):
    async def predict(self, x): ...


class Score(Stage):
    batch = Batch(max_size=7)

    async def preprocess(self, x): ...

    def predict(self, xs): ...


@each(
    ("target", "given", "concurrency", "prefetch"),
    [
        (count, {}, 0, 1),
        (count, {"prefetch": 3}, 0, 3),
        (Enrich, {}, 64, 0),
        (Enrich, {"concurrency": 1}, 1, 0),
        (Enrich, {"concurrency": 10_000, "prefetch": 2}, 10_000, 2),
        (Score, {}, 2, 0),
        (Score, {"concurrency": 5}, 5, 0),
    ],
)
def test_a_waiting_stage_has_many_batches_in_progress_and_is_sent_none_ahead(target, given, concurrency, prefetch):
    spec = stage(target, **given)
    assert spec.concurrency == concurrency
    assert spec.options == StageOptions(concurrency=given.get("concurrency"), prefetch=prefetch)
    assert with_timeout(with_workers(spec, 3), 2.0).concurrency == concurrency


@each(
    ("target", "given", "reason"),
    [
        (Enrich, 0, "concurrency must be a whole number from 1 to 10000, got 0"),
        (Enrich, 10_001, "concurrency must be a whole number from 1 to 10000, got 10001"),
        (Enrich, "64", "concurrency must be a whole number from 1 to 10000, got '64'"),
        (Enrich, True, "concurrency must be a whole number from 1 to 10000, got True"),
        (Enrich, 2.0, r"concurrency must be a whole number from 1 to 10000, got 2\.0"),
        (
            count,
            4,
            "concurrency=4 needs a stage with an `async` method, and .*: write `async def predict`, or workers=4",
        ),
    ],
)
def test_a_concurrency_that_a_stage_cannot_have_is_refused(target, given, reason):
    with pytest.raises(ConfigError, match=f"stage '{target.__name__}': {reason}$"):
        stage(target, concurrency=given)


def test_a_policy_given_here_overrides_the_classes_own():
    assert stage(Embed, batch=Batch(max_size=2)).policy == Batch(max_size=2)


def test_a_stage_without_a_policy_gets_one_item_at_a_time():
    assert stage(count).policy == Batch(max_size=1)
    assert stage(count).batch is None


def test_workers_left_out_are_as_many_as_cpus_has_entries():
    spec = stage(count, cpus=[0, [1, 2], None])
    assert spec.workers == 3
    assert spec.cpus == (frozenset({0}), frozenset({1, 2}), None)


def test_an_environment_is_for_every_worker_or_one_for_each():
    assert stage(count, workers=2, env={"A": "1"}).env == ({"A": "1"}, {"A": "1"})
    assert stage(count, workers=2, env=[{"A": "1"}, {"A": "2"}]).env == ({"A": "1"}, {"A": "2"})


def test_a_description_keeps_its_own_copy_of_what_it_was_given():
    setup, env = {"path": "y"}, {"A": "1"}
    spec = stage(Embed, setup=setup, env=env)
    setup["path"] = env["A"] = "changed"
    assert (spec.setup, spec.env) == ({"path": "y"}, ({"A": "1"},))


def test_a_function_without_a_name_of_its_own_needs_one():
    with pytest.raises(ConfigError, match=r"name must consist of letters, .*, got '<lambda>': set one with name="):
        stage(lambda x: x)
    with pytest.raises(ConfigError, match="has no name: set one with name="):
        stage(functools.partial(count))
    assert stage(functools.partial(count), name="count").name == "count"


class NoPredict(Stage): ...


class NotAStage: ...


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (3, "a stage is a class or a function, got 3"),
        ([Embed], r"a stage is a class or a function, got a list: .* one by one, penstock\.Service\(A, B\)"),
        ((Embed, len), "a stage is a class or a function, got a tuple: "),
        (NotAStage, "NotAStage is not a stage: a stage is a subclass of penstock.Stage or a function"),
        (NoPredict, "NoPredict has no predict method"),
        (Embed(), "pass the class of a stage, not an object, .*: write Embed, and penstock.stage"),
    ],
)
def test_what_is_no_stage_is_refused(target, reason):
    with pytest.raises(ConfigError, match=reason):
        stage(target)


@each(
    ("arguments", "reason"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"workers": 1.0}, r"workers must be a whole number of at least 1, got 1\.0"),
        ({"workers": True}, "workers must be a whole number of at least 1, got True"),
        ({"prefetch": -1}, "prefetch must be a whole number of at least 0, got -1"),
        ({"max_in_flight_batches": 0}, "max_in_flight_batches must be a whole number of at least 1, got 0"),
        ({"max_queued": 0}, "max_queued must be a whole number of at least 1, got 0"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, got 0"),
        ({"timeout": -1.5}, r"timeout must be more than 0 seconds, got -1\.5"),
        ({"timeout": math.inf}, "timeout must be more than 0 seconds, got inf"),
        ({"timeout": math.nan}, "timeout must be more than 0 seconds, got nan"),
        ({"timeout": "1"}, "timeout must be more than 0 seconds, got '1'"),
        ({"workers": 3, "cpus": [0, 1]}, "workers=3 but cpus has 2 entries, one for each worker"),
        ({"workers": 1, "cpus": []}, "workers=1 but cpus has 0 entries, one for each worker"),
        ({"cpus": []}, "workers must be a whole number of at least 1, got 0"),
        ({"cpus": [[]]}, r"cpus must have core numbers, lists of them, or None, got \[\]"),
        ({"cpus": [-1]}, "cpus must have core numbers, lists of them, or None, got -1"),
        ({"cpus": [1.5]}, r"cpus must have core numbers, lists of them, or None, got 1\.5"),
        ({"cpus": [True]}, "cpus must have core numbers, lists of them, or None, got True"),
        ({"cpus": [["0"]]}, r"cpus must have core numbers, lists of them, or None, got \['0'\]"),
        ({"env": [{}, {}]}, "1 workers but env has 2 entries, one for each worker"),
        ({"env": {"THREADS": 4}}, "env must have strings, got 'THREADS': 4"),
        ({"env": {4: "x"}}, "env must have strings, got 4: 'x'"),
        ({"env": {"A=B": "x"}}, "env has an invalid variable: 'A=B': 'x'"),
        ({"env": {"": "x"}}, "env has an invalid variable: '': 'x'"),
        ({"env": {"A": "x\0"}}, r"env has an invalid variable: 'A': 'x.x00'"),
        ({"setup": {"a": 1}}, r"has no setup method for the arguments \['a'\]"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_with_its_value(arguments, reason):
    with pytest.raises(ConfigError, match=f"stage 'count'.*{reason}"):
        stage(count, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"workers": 1},
        {"prefetch": 0},
        {"max_in_flight_batches": 1},
        {"max_queued": 1},
        {"timeout": 0.001},
        {"cpus": [0]},
    ],
)
def test_an_argument_at_its_limit_is_taken(arguments):
    ((name, value),) = arguments.items()
    spec = stage(count, **arguments)
    found = getattr(spec if hasattr(spec, name) else spec.options, name)
    assert found == ((frozenset({0}),) if name == "cpus" else value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": 5}, "a stage's name must consist of letters, digits and `._-`, and must not be `.` or `..`, got 5"),
        ({"name": ""}, "a stage's name must consist of letters, digits and `._-`, and must not be `.` or `..`, got ''"),
        (
            {"name": "a b"},
            "a stage's name must consist of letters, digits and `._-`, and must not be `.` or `..`, got 'a b'",
        ),
        ({"name": "a\n"}, "and must not be `.` or `..`, got 'a\\n'"),
        ({"name": ".."}, "and must not be `.` or `..`, got '..'"),
        ({"cpus": 2}, "stage 'len': cpus must be a list with an entry for each worker, got 2"),
        ({"cpus": "01"}, "stage 'len': cpus must be a list with an entry for each worker, got '01'"),
        ({"cpus": {0: 1}}, "stage 'len': cpus must be a list with an entry for each worker, got {0: 1}"),
        (
            {"env": 5},
            "stage 'len': env must be a dict for all workers, such as env={'OMP_NUM_THREADS': '1'}, or a list with",
        ),
        ({"env": ["A=1"]}, "or a list with a dict for each, got ['A=1']"),
        ({"env": "A=1"}, "or a list with a dict for each, got 'A=1'"),
        ({"batch": 16}, "batch must be a penstock.Batch, got 16: write penstock.Batch(max_size=16)"),
        ({"batch": True}, "batch must be a penstock.Batch, got True: write penstock.Batch(max_size=32)"),
        ({"setup": "model.joblib"}, "setup must be a dict with the arguments of setup, as in setup={'path': ...}, got"),
        ({"setup": 5}, "setup must be a dict with the arguments of setup, as in setup={'path': ...}, got 5"),
        (
            {"setup": [("path", "y")]},
            "setup must be a dict with the arguments of setup, as in setup={'path': ...}, got [('path', 'y')]",
        ),
        (
            {"setup": {1: "y"}},
            "setup must be a dict with the arguments of setup, as in setup={'path': ...}, got {1: 'y'}",
        ),
        ({"bisect": "no"}, "bisect must be True or False, got 'no'"),
        ({"retry": 0}, "retry must be True or False, got 0"),
    ],
)
def test_a_value_of_another_type_is_refused_when_it_is_given(wrong, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        stage(len, **wrong)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_workers", "write `workers=...`"),
        ("max_batch_size", "write `penstock.stage(..., batch=penstock.Batch(max_size=...))`"),
        ("port", "write `service.serve(port=...)`"),
        ("time_out", "did you mean `timeout=...`?"),
    ],
)
def test_an_argument_that_there_is_not_is_a_sentence_that_says_which_is_meant(name, words):
    with pytest.raises(ConfigError) as refused:
        stage(count, **{name: 2})
    assert str(refused.value) == f"penstock.stage: there is no {name!r} here: {words}"


# -- options ---------------------------------------------------------------------------------------------------------

OPTIONS = dataclasses.fields(StageOptions)
OTHERS = {
    "concurrency": 4,
    "prefetch": 5,
    "max_in_flight_batches": 3,
    "max_queued": 7,
    "timeout": 1.5,
    "orphan_timeout": 2.5,
    "unhealthy_after": 0.0,
    "bisect": False,
    "retry": False,
}
"""A value of each option that is not its default."""


@pytest.mark.parametrize("f", OPTIONS, ids=lambda f: f.name)
def test_each_option_is_an_argument_with_the_same_default_and_kept_as_it_was_given(f):
    argument = inspect.signature(stage).parameters[f.name]
    # What is sent ahead by default is told by the methods of the stage.
    default, annotation = (None, "int | None") if f.name == "prefetch" else (f.default, f.type)
    assert (argument.kind, argument.default, argument.annotation) == (argument.KEYWORD_ONLY, default, annotation)
    target = Enrich if f.name == "concurrency" else count
    spec, before = stage(target, **{f.name: OTHERS[f.name]}), stage(target).options
    assert spec.options == dataclasses.replace(before, **{f.name: OTHERS[f.name]})
    assert spec.options != before


@pytest.mark.parametrize("f", OPTIONS, ids=lambda f: f.name)
def test_each_option_is_described_where_it_is_given(f):
    assert re.search(rf"^    {f.name}: \S", inspect.getdoc(stage), flags=re.MULTILINE)


def test_each_option_is_read_by_the_runtime_or_by_the_worker():
    package = Path(penstock.__file__).parent
    files = [*(package / "runtime").glob("*.py"), *(package / "worker").glob("*.py")]
    read = re.findall(r"(?:\bspec\.options|\bself\._options)\.(\w+)", "\n".join(file.read_text() for file in files))
    # `StageSpec.concurrency` is made of that one, and is what they read.
    assert set(read) == {f.name for f in OPTIONS} - {"concurrency"}


def test_a_stage_can_be_given_another_number_of_workers():
    before = stage(count, workers=2, env={"A": "1"}, timeout=3.0)
    assert with_workers(before, 3) == stage(count, workers=3, env={"A": "1"}, timeout=3.0)
    assert with_workers(before, 1) == stage(count, workers=1, env={"A": "1"}, timeout=3.0)
    assert with_workers(stage(count), 2) == stage(count, workers=2)
    with pytest.raises(ConfigError, match="stage 'count': workers must be a whole number of at least 1, got 0"):
        with_workers(before, 0)


def test_workers_that_differ_keep_their_number():
    by_env = stage(count, workers=2, env=[{"A": "1"}, {"A": "2"}])
    assert with_workers(by_env, 2) == by_env
    with pytest.raises(ConfigError, match="stage 'count': workers=3 but env has 2 entries, one for each worker"):
        with_workers(by_env, 3)
    by_cores = stage(count, cpus=[0, None])
    assert with_workers(by_cores, 2) == by_cores
    with pytest.raises(ConfigError, match="stage 'count': workers=1 but cpus has 2 entries, one for each worker"):
        with_workers(by_cores, 1)
    by_gpus = stage(count, gpus=[0, 1])
    assert with_workers(by_gpus, 2) == by_gpus
    with pytest.raises(ConfigError, match="stage 'count': workers=3 but gpus has 2 entries, one for each worker"):
        with_workers(by_gpus, 3)


def test_a_host_may_bound_the_runs_of_a_stage_that_has_no_timeout_of_its_own():
    spec = stage(lambda x: x, name="endless")
    assert with_timeout(spec, 5.0).options.timeout == 5.0
    assert with_timeout(with_timeout(spec, 5.0), 9.0).options.timeout == 5.0
