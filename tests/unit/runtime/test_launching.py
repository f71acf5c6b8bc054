"""What each worker of a stage is told, and which cores, threads and environment it gets."""

from __future__ import annotations

import functools
import os
import pickle
import sys
from pathlib import Path

import pytest

import penstock
from penstock.codec.formats import Codec
from penstock.config import Batch, LogOptions, ServiceOptions
from penstock.errors import ConfigError
from penstock.runtime.affinity import allowed_cores, check_cores
from penstock.runtime.external_spec import remote
from penstock.runtime.launching import launcher, plan, search_path, worker_cores
from penstock.runtime.process import worker_environment
from penstock.runtime.spec import stage
from penstock.transport.messages import StageRef
from penstock.worker.stage import Stage

FOUR = frozenset({0, 1, 2, 3})


class Embed(Stage):
    def setup(self, size=1): ...
    def predict(self, xs): ...


@pytest.fixture(autouse=True)
def main_module(monkeypatch):
    """`launcher` gives the main script its second name, for this process and for good; here it is taken back."""
    monkeypatch.setitem(sys.modules, "__penstock_main__", sys.modules["__main__"])


@pytest.fixture
def orders(monkeypatch):
    """Launch orders of a service of the given stages, one for each."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, sys.modules["__main__"]))
    monkeypatch.setattr(sys.modules[__name__], "Embed", Embed, raising=False)

    def make(*specs, inline=False, logs=None, served=None, **options):
        given = {"logs": logs, "served": served}
        more = {name: value for name, value in given.items() if value is not None}
        return [
            launcher("svc", specs, i, ServiceOptions(**options), inline=inline, **more)(0) for i in range(len(specs))
        ]

    return make


def test_a_worker_is_told_who_it_is_and_how_to_work(orders):
    spec = stage(Embed, workers=2, setup={"size": 3}, batch=Batch(max_size=9), bisect=False, prefetch=3)
    (order,) = orders(spec, validate_inputs=True, nan_as_null=True)
    assert (order.service, order.stage, order.index, order.count) == ("svc", "Embed", 0, 2)
    assert (order.batched, order.max_size, order.options.bisect) == (True, 9, False)
    assert order.options == spec.options
    assert (order.validate, order.validate_results, order.allow_nan) == (True, False, True)
    assert order.logs == LogOptions("text", "warning")
    assert order.ref == StageRef(__name__, "Embed")
    assert pickle.loads(order.setup) == {"size": 3}
    assert order.sys_path == [os.fsencode(entry) for entry in sys.path]


def test_a_worker_is_told_of_external_stages_beside_it():
    inner = stage(Embed, name="inner")
    specs = [remote("one", accepts=["json"]), inner, remote("two"), stage(Embed, name="end")]
    orders = [launcher("svc", specs, i, ServiceOptions(), inline=True)(0) for i in (1, 3)]
    assert [(order.behind, order.crossing) for order in orders] == [("one", Codec.MSGPACK), ("two", Codec.PICKLE)]
    assert [(order.first, order.last) for order in orders] == [(False, False), (False, True)]
    ours = [inner, stage(Embed, name="end")]
    orders = [launcher("svc", ours, i, ServiceOptions(), inline=True)(0) for i in (0, 1)]
    assert [(order.behind, order.crossing) for order in orders] == [("", Codec.PICKLE)] * 2


@pytest.mark.parametrize("inline", [True, False])
def test_an_external_stage_is_planned_and_nobody_is_launched_for_it(inline):
    made = plan("svc", [remote("out")], ServiceOptions(), cpus=None, inline=inline)
    assert made.places == [[]]
    with pytest.raises(AssertionError, match="remote"):
        made.launch[0](0)


def test_a_worker_is_told_its_gpus():
    launch = launcher("svc", [stage(Embed, gpus=[[2, 3], "GPU-1"])], 0, ServiceOptions(), inline=True)
    assert [launch(i).gpus for i in (0, 1)] == [(2, 3), ("GPU-1",)]
    assert launcher("svc", [stage(Embed)], 0, ServiceOptions(), inline=True)(0).gpus == ()


def test_a_worker_is_told_how_to_write_its_log(orders):
    logs = LogOptions("json", "info,my.model=debug")
    assert [order.logs for order in orders(stage(Embed), logs=logs)] == [logs]


def test_a_worker_is_told_whether_every_caller_comes_over_http(orders):
    assert [orders(stage(Embed), **given)[0].served for given in ({}, {"served": True})] == [False, True]


def test_a_worker_is_told_each_path_that_python_looks_at_also_one_that_is_not_utf8():
    entries = ["", "/a", Path("/b"), b"/c", None, "/mod\udce8le", "/\ud800"]
    assert search_path(entries) == [b"", b"/a", b"/mod\xe8le"]


def test_a_stage_without_a_policy_is_not_batched(orders):
    (order,) = orders(stage(Embed))
    assert (order.batched, order.max_size) == (False, 1)


def test_the_first_and_the_last_stage_know_it(orders):
    found = orders(stage(Embed, name="a"), stage(Embed, name="b"), stage(Embed, name="c"))
    assert [(order.first, order.last) for order in found] == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize("inline", [False, True])
def test_what_workers_send_of_the_main_script_is_found_here_too(orders, monkeypatch, inline):
    monkeypatch.delitem(sys.modules, "__penstock_main__")
    orders(stage(Embed), inline=inline)
    assert sys.modules.get("__penstock_main__") is (None if inline else sys.modules["__main__"])


def test_a_class_no_worker_can_import_is_refused_unless_inline(orders):
    class Local(Stage):
        def predict(self, x): ...

    with pytest.raises(ConfigError, match="defined inside a function"):
        orders(stage(Local))
    assert orders(stage(Local), inline=True)[0].stage == "Local"


def test_inline_takes_an_object_that_has_no_name(orders):
    spec = stage(functools.partial(len), name="size")
    assert orders(spec, inline=True)[0].stage == "size"
    with pytest.raises(ConfigError, match="has no name, so a worker process cannot import it"):
        orders(spec)


@pytest.mark.parametrize("inline", [False, True])
def test_a_setup_argument_that_cannot_travel_is_refused(orders, inline):
    with pytest.raises(ConfigError, match="setup argument 'size' cannot be sent"):
        orders(stage(Embed, setup={"size": lambda: 1}), inline=inline)


# -- GPUs -------------------------------------------------------------------------------------------------------------


def test_what_is_doubtful_about_gpus_is_logged_once_at_the_start(monkeypatch, caplog):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    made = plan("svc", [stage(Embed, gpus=[1, 1])], ServiceOptions(), cpus=None, inline=False)
    assert [place.variables for place in made.places[0]] == [{"CUDA_VISIBLE_DEVICES": "5"}] * 2
    (line,) = caplog.messages
    assert line.startswith("stage 'Embed': workers 0, 1 share CUDA_VISIBLE_DEVICES=5: their batches compete")


def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(
        ConfigError, match=r"names GPU 1 \(counted from 0\), but this process sees 1 with CUDA_VISIBLE_DEVICES=3"
    ):
        plan("svc", [stage(Embed, gpus=[0, 1])], ServiceOptions(), cpus=None, inline=False)


def test_threads_are_given_no_gpus_and_nothing_is_said_of_them(monkeypatch, caplog):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    made = plan("svc", [stage(Embed, gpus=[0, 0, 1])], ServiceOptions(), cpus=None, inline=True)
    assert [place.variables for place in made.places[0]] == [{}] * 3
    assert caplog.messages == []


# -- cores and threads ------------------------------------------------------------------------------------------------


def test_a_worker_that_is_not_pinned_gets_the_coordinators_cores():
    assert worker_cores(stage(len, workers=2), FOUR) == ([FOUR, FOUR], [2, 2])


def test_a_pinned_worker_gets_its_own_cores_and_as_many_threads():
    cores, threads = worker_cores(stage(len, cpus=[[0, 1], 2, None]), FOUR)
    assert cores == [frozenset({0, 1}), frozenset({2}), FOUR]
    assert threads == [1, 1, 1]


def test_a_core_that_is_not_allowed_is_refused_with_the_allowed_ones():
    with pytest.raises(ConfigError, match=r"stage 'len': cpus \[4, 9\] are not among the allowed cores \[0, 1, 2, 3\]"):
        worker_cores(stage(len, cpus=[[9, 0, 4]]), FOUR)
    check_cores("x", [0, 3], FOUR)


def test_the_allowed_cores_are_those_of_this_process():
    assert allowed_cores()
    if hasattr(os, "sched_getaffinity"):
        assert allowed_cores() == os.sched_getaffinity(0)


# -- environment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_a_worker_finds_this_very_package_first(monkeypatch, before):
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    path = worker_environment(1, {})["PYTHONPATH"].split(os.pathsep)
    assert Path(path[0]).samefile(Path(penstock.__file__).parent.parent)
    assert path[1:] == ([] if before is None else [before])
