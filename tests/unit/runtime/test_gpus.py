"""Which GPUs each worker gets, and how it is told."""

from __future__ import annotations

import sys

import pytest

from penstock.errors import ConfigError
from penstock.runtime.gpus import doubtful_sharing
from penstock.runtime.spec import stage
from rows import each


def count(x):
    return x


class Named(str):
    __slots__ = ()


class Numbered(int):
    __slots__ = ()


@pytest.mark.parametrize(
    ("gpus", "each", "variables"),
    [
        ([0], [(0,)], ["0"]),
        ([0, 1], [(0,), (1,)], ["0", "1"]),
        ((3, 0), [(3,), (0,)], ["3", "0"]),
        (range(2), [(0,), (1,)], ["0", "1"]),
        ([0, 0], [(0,), (0,)], ["0", "0"]),
        ([[0, 1], [3, 2], 4], [(0, 1), (3, 2), (4,)], ["0,1", "3,2", "4"]),
        (["GPU-8932f937", "MIG-GPU-8932f937/1/2"], None, ["GPU-8932f937", "MIG-GPU-8932f937/1/2"]),
        ([["GPU-1", 0]], [("GPU-1", 0)], ["GPU-1,0"]),
        ([sys.maxsize], None, [str(sys.maxsize)]),
    ],
)
def test_each_worker_gets_the_variable_of_its_entry(gpus, each, variables):
    spec = stage(count, gpus=gpus)
    assert spec.workers == len(variables)
    assert [spec.environment_of(i) for i in range(spec.workers)] == [{"CUDA_VISIBLE_DEVICES": v} for v in variables]
    if each is not None:
        assert [spec.gpus_of(i) for i in range(spec.workers)] == each


def test_a_stage_without_gpus_says_nothing_about_them():
    spec = stage(count, workers=2, env=[{"A": "1"}, {"A": "2"}])
    assert (spec.gpus, spec.gpus_of(1), spec.environment_of(1)) == ((), (), {"A": "2"})
    assert stage(count).environment_of(0) == {}


def test_the_variable_comes_on_top_of_the_environment():
    spec = stage(count, gpus=[4, 5], env=[{"A": "1"}, {"A": "2"}])
    assert spec.environment_of(1) == {"A": "2", "CUDA_VISIBLE_DEVICES": "5"}
    assert spec.env == ({"A": "1"}, {"A": "2"})


def test_a_gpu_is_kept_as_a_plain_value():
    ((number, name),) = stage(count, gpus=[[Numbered(1), Named("GPU-1")]]).gpus
    assert (type(number), type(name)) == (int, str)


@pytest.mark.parametrize("gpus", [[], (), 0, 1, "0", "01", b"01", {0, 1}, {0: 1}, iter([0]), True])
def test_gpus_are_a_list_with_an_entry_for_each_worker(gpus):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=gpus)
    assert str(refused.value) == f"stage 'count': gpus takes a list with an entry for each worker, got {gpus!r}"


@each(
    "entry",
    [-1, True, False, None, 0.0, [], "", "-1", "0,1", "GPU 1", "GPU-1\n", [0, None], [[0]], {0}, b"0", sys.maxsize + 1],
)
def test_an_entry_that_is_no_gpu_is_refused(entry):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=[0, entry])
    assert str(refused.value) == (
        "stage 'count': gpus takes numbers from 0, ids as 'GPU-...', or lists of them that are not empty, "
        f"got {entry!r}"
    )


@pytest.mark.parametrize("entry", [[0, 0], [0, 1, 0], ["GPU-1", "GPU-1"], [0, "0"]])
def test_a_worker_gets_each_gpu_once(entry):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=[entry])
    assert str(refused.value) == f"stage 'count': a worker gets each of its GPUs once, got {entry!r}"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"workers": 1}, "workers=1 but gpus has 2 entries, one for each worker"),
        ({"workers": 3}, "workers=3 but gpus has 2 entries, one for each worker"),
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"cpus": [0]}, "2 workers but cpus has 1 entries, one for each worker"),
        ({"env": [{}]}, "2 workers but env has 1 entries, one for each worker"),
    ],
)
def test_another_number_of_workers_is_an_error(arguments, reason):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=[0, 1], **arguments)
    assert str(refused.value) == f"stage 'count': {reason}"


def test_the_same_number_of_workers_is_none():
    assert stage(count, gpus=[0, 1], workers=2, cpus=[0, 1]).workers == 2


@pytest.mark.parametrize(
    "env", [{"CUDA_VISIBLE_DEVICES": "0"}, [{}, {"CUDA_VISIBLE_DEVICES": ""}], {"CUDA_VISIBLE_DEVICES": "1", "A": "2"}]
)
def test_the_variable_has_one_owner(env):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=[0, 1], env=env)
    assert str(refused.value) == (
        "stage 'count': gpus sets CUDA_VISIBLE_DEVICES, and env does too: leave one of them out"
    )
    assert stage(count, workers=2, env=env).environment_of(1) == (env[1] if isinstance(env, list) else env)


@pytest.mark.parametrize(
    "values",
    [[], ["0"], ["0", "1"], ["", ""], ["-1", "-1"], ["-1,0", "-1,0"], ["NoDevFiles"] * 2, ["0", ""], ["0,1", "0"]],
)
def test_workers_that_see_no_gpu_or_each_its_own_share_none(values):
    assert doubtful_sharing(values) == []


@pytest.mark.parametrize(
    ("values", "shared"),
    [
        (["0", "0"], ["workers 0, 1 share CUDA_VISIBLE_DEVICES=0: "]),
        (["1", "0", "1", "1"], ["workers 0, 2, 3 share CUDA_VISIBLE_DEVICES=1: "]),
        (["0,1", "", "0,1"], ["workers 0, 2 share CUDA_VISIBLE_DEVICES=0,1: "]),
        (["GPU-8932f937"] * 2, ["workers 0, 1 share CUDA_VISIBLE_DEVICES=GPU-8932f937: "]),
        (
            ["0", "1", "0", "1"],
            ["workers 0, 2 share CUDA_VISIBLE_DEVICES=0: ", "workers 1, 3 share CUDA_VISIBLE_DEVICES=1: "],
        ),
    ],
)
def test_workers_with_the_same_gpus_are_named_with_what_to_do(values, shared):
    found = doubtful_sharing(values)
    assert [words[: len(begin)] for words, begin in zip(found, shared, strict=True)] == shared
    for words in found:
        assert "memory is taken once for each worker" in words
        for remedy in ("gpus=", "start fewer", "max_batches=1", "env={'CUDA_VISIBLE_DEVICES': ''}"):
            assert remedy in words
