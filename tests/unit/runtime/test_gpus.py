"""Which GPUs each worker gets, and how it is told."""

from __future__ import annotations

import sys

import pytest

from penstock.errors import ConfigError
from penstock.runtime.gpus import GpusHere, doubtful_gpus, gpus_here, visible
from penstock.runtime.spec import stage
from rows import each

ALL = GpusHere(None, None)
"""A process that sees every GPU of a machine, and cannot count them."""
A, B = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f9f2-0000-4106-c12f-20bd9faed9f6"
MIG = "MIG-GPU-8932f937/1/2"


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
        ([["GPU-1", "GPU-2"]], [("GPU-1", "GPU-2")], ["GPU-1,GPU-2"]),
        (["07"], [("07",)], ["7"]),
        ([sys.maxsize], None, [str(sys.maxsize)]),
    ],
)
def test_each_worker_gets_the_variable_of_its_entry(gpus, each, variables):
    spec = stage(count, gpus=gpus)
    assert spec.workers == len(variables)
    assert spec.environments(ALL) == [{"CUDA_VISIBLE_DEVICES": v} for v in variables]
    if each is not None:
        assert [spec.gpus_of(i) for i in range(spec.workers)] == each


def test_a_stage_without_gpus_says_nothing_about_them():
    spec = stage(count, workers=2, env=[{"A": "1"}, {"A": "2"}])
    assert (spec.gpus, spec.gpus_of(1)) == ((), ())
    assert spec.environments(ALL) == [{"A": "1"}, {"A": "2"}]
    assert stage(count).environments(GpusHere("0", 1)) == [{}]


def test_the_variable_comes_on_top_of_the_environment():
    spec = stage(count, gpus=[4, 5], env=[{"A": "1"}, {"A": "2"}])
    assert spec.environments(ALL)[1] == {"A": "2", "CUDA_VISIBLE_DEVICES": "5"}
    assert spec.env == ({"A": "1"}, {"A": "2"})


def test_a_gpu_is_kept_as_a_plain_value():
    ((number, name),) = stage(count, gpus=[[Numbered(1), Named("GPU-1")]]).gpus
    assert (type(number), type(name)) == (int, str)


@pytest.mark.parametrize("gpus", [[], (), 0, 1, "0", "01", b"01", {0, 1}, {0: 1}, iter([0]), True])
def test_gpus_are_a_list_with_an_entry_for_each_worker(gpus):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=gpus)
    assert str(refused.value) == f"stage 'count': gpus must be a list with an entry for each worker, got {gpus!r}"


@each(
    "entry",
    [
        *(-1, True, False, None, 0.0, [], "", "-1", "0,1", "GPU 1", "GPU-1\n", [0, None], [[0]], {0}, b"0"),
        *(sys.maxsize + 1, "GPU-", "cuda:0", "9" * 5000),
    ],
)
def test_an_entry_that_is_no_gpu_is_refused(entry):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=[0, entry])
    assert str(refused.value) == (
        "stage 'count': gpus must have numbers from 0, ids such as 'GPU-...', or non-empty lists of them, got "
        f"{entry!r}"
    )


@pytest.mark.parametrize("entry", [[0, 0], [0, 1, 0], ["GPU-1", "GPU-1"], [0, "0"], [7, "07"], ["GPU-1", "GPU-12"]])
def test_a_worker_gets_each_gpu_once(entry):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=[entry])
    assert str(refused.value) == f"stage 'count': a worker cannot have the same GPU twice, got {entry!r}"


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
    assert str(refused.value) == ("stage 'count': gpus and env both set CUDA_VISIBLE_DEVICES: remove one of them")
    assert stage(count, workers=2, env=env).environments(ALL)[1] == (env[1] if isinstance(env, list) else env)


# -- which GPUs this process sees -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("0", ["0"]),
        ("3,5", ["3", "5"]),
        (" 3 , 5 ", ["3", "5"]),
        ("3,5,", ["3", "5"]),
        ("+3,05,-0", ["3", "5", "0"]),
        ("1gpu2,2ampere", ["1", "2"]),
        ("9" * 5000, []),
        (f"{A},{B}", [A, B]),
        (f"{A},1", [A]),
        (f"{A},{MIG}", [A]),
        (f"{MIG},{A}", [MIG]),
        (f"1,{A}", ["1"]),
        ("GPU-", []),
        ("MIG-GPU-8932f937/1/1,MIG-GPU-8932f937/1/10", ["MIG-GPU-8932f937/1/1", "MIG-GPU-8932f937/1/10"]),
        ("0,1,0", []),
        ("0,00", []),
        ("0,-1,0", ["0"]),
        (f"{A},GPU-8932f937", []),
        ("3,-1,5", ["3"]),
        ("1,junk,2", ["1"]),
        ("1,,2", ["1"]),
        ("", []),
        ("-1", []),
        ("-1,0", []),
        ("NoDevFiles", []),
        ("all", []),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(value, seen):
    assert visible(value) == seen


def test_gpus_are_counted_where_the_driver_tells_of_them(tmp_path):
    for bus in ("0000:3b:00.0", "0000:d8:00.0"):
        (tmp_path / bus).mkdir()
    assert gpus_here({}, tmp_path) == (None, 2)
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == ("1", 2)
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path / "none") == ("", None)


@pytest.mark.parametrize(
    ("variable", "gpus", "values"),
    [
        ("3,5", [0, 1], ["3", "5"]),
        ("3,5", ["0", ["1", 0]], ["3", "5,3"]),
        ("3,5", [[1, 0]], ["5,3"]),
        ("3,-1,5", [0], ["3"]),
        (f"{A},{B}", [1, 0], [B, A]),
        (f"{A},{B}", ["GPU-8932f937", B], ["GPU-8932f937", B]),
        ("GPU-8932f937,GPU-8932f9f2", [A], [A]),
        (f"0,{A}", [B, 0], [B, "0"]),
        ("0,1", [A, MIG], [A, MIG]),
        (MIG, [MIG, 0], [MIG, MIG]),
        ("MIG-GPU-8932f937/1/1,MIG-GPU-8932f937/1/10", ["MIG-GPU-8932f937/1/1"], ["MIG-GPU-8932f937/1/1"]),
        (f"{A},{B}", [[A, 1]], [f"{A},{B}"]),
        ("", [0, A, [1, 2]], ["", "", ""]),
        ("1,1", [0], ["1,1"]),
        ("-1", [0], ["-1"]),
    ],
)
def test_numbers_count_what_the_process_sees_and_ids_stay_as_given(variable, gpus, values):
    spec = stage(count, gpus=gpus)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in spec.environments(GpusHere(variable, 8))] == values


@pytest.mark.parametrize(
    ("variable", "gpus", "reason"),
    [
        ("3,5", [0, 2], "gpus= names GPU 2 (counted from 0), but this process sees 2 with CUDA_VISIBLE_DEVICES=3,5"),
        ("3,-1,5", [1], "gpus= names GPU 1 (counted from 0), but this process sees 1 with CUDA_VISIBLE_DEVICES=3,-1,5"),
        (A, ["GPU-1"], f"gpus= names 'GPU-1', but this process sees only {A}, from CUDA_VISIBLE_DEVICES"),
        (
            f"{A},{B}",
            ["GPU-8932f9"],
            f"'GPU-8932f9' of gpus= is ambiguous, it matches {A} and {B}: write more of the id",
        ),
        (
            f"{B},{A}",
            [[1, "GPU-8932f937"]],
            (
                f"a worker cannot have the same GPU twice, but with CUDA_VISIBLE_DEVICES={B},{A} "
                f"gpus=[1, 'GPU-8932f937'] are {A}, GPU-8932f937"
            ),
        ),
        (
            "3,5",
            [["GPU-1", 0]],
            (
                "gpus=['GPU-1', 0] sets CUDA_VISIBLE_DEVICES=GPU-1,3 for a worker, of which CUDA reads only GPU-1: "
                "use only numbers, or only ids of one kind"
            ),
        ),
        (
            None,
            [[0, "GPU-1"]],
            (
                "gpus=[0, 'GPU-1'] sets CUDA_VISIBLE_DEVICES=0,GPU-1 for a worker, of which CUDA reads only 0: "
                "use only numbers, or only ids of one kind"
            ),
        ),
    ],
)
def test_a_gpu_that_a_worker_would_not_see_is_refused(variable, gpus, reason):
    with pytest.raises(ConfigError) as refused:
        stage(count, gpus=gpus).environments(GpusHere(variable, 8))
    assert str(refused.value) == f"stage 'count': {reason}"


# -- what is doubtful -------------------------------------------------------------------------------------------------


def doubts(gpus, here, *, may_share=True):
    return doubtful_gpus(stage(count, gpus=gpus).gpus, [], here, may_share=may_share)


def test_numbers_beyond_what_the_driver_tells_of_are_doubtful():
    assert doubts([0, [7, "8"], 1], GpusHere(None, 2)) == [
        f"gpus= names GPU {gpu} (counted from 0), but /proc/driver/nvidia/gpus has 2: its worker will not see that GPU"
        for gpu in (7, 8)
    ]


@pytest.mark.parametrize("here", [ALL, GpusHere("5", 2), GpusHere(None, 8)])
def test_nothing_is_said_where_nothing_can_be_counted_or_all_is_well(here):
    assert doubts([0, 7, A], here) == []
    assert doubtful_gpus((), ["", ""], here, may_share=False) == []


@pytest.mark.parametrize("value", ["", "-1", "0,0"])
def test_gpus_of_a_process_that_sees_none_are_doubtful(value):
    (words,) = doubts([0, 7], GpusHere(value, 8))
    assert words == (
        f"gpus= is set, but this process was started with CUDA_VISIBLE_DEVICES={value!r}, which hides all GPUs: its "
        "workers see none"
    )
    assert doubtful_gpus((), [value, value], GpusHere(value, 8), may_share=False) == []


@pytest.mark.parametrize(
    "values",
    [[], ["0"], ["0", "1"], ["", ""], ["-1", "-1"], ["-1,0", "-1,0"], ["NoDevFiles"] * 2, ["0", ""], ["0,1", "2"]],
)
def test_workers_that_see_no_gpu_or_each_its_own_share_none(values):
    assert doubtful_gpus((), values, ALL, may_share=False) == []


@pytest.mark.parametrize(
    ("values", "shared"),
    [
        (["0", "0"], ["workers 0, 1 share CUDA_VISIBLE_DEVICES=0: "]),
        (["1", "0", "1", "1"], ["workers 0, 2, 3 share CUDA_VISIBLE_DEVICES=1: "]),
        (["0,1", "", "0,1"], ["workers 0, 2 share CUDA_VISIBLE_DEVICES=0,1: "]),
        (["0,1", "1,2"], ["workers 0, 1 share CUDA_VISIBLE_DEVICES=1: "]),
        (["GPU-8932f937"] * 2, ["workers 0, 1 share CUDA_VISIBLE_DEVICES=GPU-8932f937: "]),
        (["GPU-8932f937", A], ["workers 0, 1 share CUDA_VISIBLE_DEVICES=GPU-8932f937: "]),
        (
            ["0", "1", "0", "1"],
            ["workers 0, 2 share CUDA_VISIBLE_DEVICES=0: ", "workers 1, 3 share CUDA_VISIBLE_DEVICES=1: "],
        ),
    ],
)
def test_workers_with_the_same_gpus_are_named_with_what_to_do(values, shared):
    found = doubtful_gpus((), values, ALL, may_share=False)
    assert [words[: len(begin)] for words, begin in zip(found, shared, strict=True)] == shared
    for words in found:
        assert "each worker uses its own device memory" in words
        for remedy in ("gpus=", "start fewer", "max_in_flight_batches=1", "env={'CUDA_VISIBLE_DEVICES': ''}"):
            assert remedy in words
    assert doubtful_gpus((), values, ALL, may_share=True) == []
