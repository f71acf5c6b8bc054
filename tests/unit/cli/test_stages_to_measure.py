"""Which stages of a service can be measured, and how the process of each is started."""

from __future__ import annotations

import penstock as ps
from penstock.cli.findings import StageToMeasure
from penstock.cli.measuring import stages_to_measure


class Given(ps.Stage):
    examples = (1,)

    def predict(self, x: int) -> int:
        return x


class Taken(ps.Stage):
    batch = ps.Batch(max_size=5)

    def predict(self, xs: list[int]) -> list[int]:
        return xs


def stages(*specs, **options):
    return list(stages_to_measure(ps.Service(*specs, **options)))


def fed(found):
    """For each stage whether it gets, and whether it gives, items from one process to another."""
    return [(each.fed, each.feeds) for each in found]


def test_a_stage_without_examples_is_fed_by_those_before_it():
    named = [ps.stage(Taken, name=name) for name in "ab"]
    found = stages(Given, *named, ps.stage(Given, name="own"), ps.stage(Given, name="last"))
    assert fed(found) == [(False, True), (True, True), (True, False), (False, False), (False, False)]
    assert [(each.max_size, each.batched) for each in found[:2]] == [(1, False), (5, True)]
    assert not any(each.skipped for each in found)


def test_a_stage_that_gets_items_from_nobody_is_skipped_and_so_are_those_behind_it():
    square = ps.remote("square", item=int, result=int, examples=[3])
    found = stages(ps.stage(Taken, name="a"), square, ps.stage(Taken, name="b"), ps.stage(Taken, name="c"), Given)
    nobody = "it has no examples, and the stage before it gives it no items"
    assert [each.skipped for each in found] == [nobody, "its workers are remote", nobody, nobody, ""]
    assert stages(Given, square)[0].feeds is False


def test_a_waiting_stage_is_measured_and_feeds_the_one_behind_it():
    async def look_up(x: int) -> int:
        return x

    look_up.examples = [1]
    found = stages(Given, ps.stage(look_up), ps.stage(Taken, name="b"))
    assert [(each.skipped, each.concurrency) for each in found] == [("", 0), ("", 64), ("", 0)]
    assert fed(found) == [(False, False), (False, True), (True, False)]


def test_the_process_is_started_as_that_of_the_first_worker(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    spec = ps.stage(Given, gpus=[1, 0], cpus=[0, None], env=[{"A": "\udcff=1"}, {}])
    (found,) = stages(spec)
    assert sorted(found.variables) == [b"A=\xff=1", b"CUDA_VISIBLE_DEVICES=5"]
    assert (found.cores, found.threads) == ([0], 1)


def test_a_service_whose_workers_are_threads_is_measured_in_the_environment_of_its_process():
    assert stages(ps.stage(Given, env={"A": "1"}, cpus=[0]), inline=True) == [StageToMeasure("Given")]
