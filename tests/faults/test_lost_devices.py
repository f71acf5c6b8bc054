"""A device that fails for good, or has not enough memory: those who did nothing wrong are answered right."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
import stages
from served import PENSTOCK, Program, serving

import penstock as ps
from penstock import jobs

LASTING = "CUDA error: an illegal memory access was encountered"
SOURCE = f"""
import sys
sys.path.append({str(Path(stages.__file__).parent)!r})
import penstock as ps
from stages import Fragile, FragileWithExample

service = ps.Service(ps.stage(FragileWithExample, workers=2), name="service")
narrow = ps.Service(ps.stage(Fragile, setup={{"fits": 2}}, bisect=False), name="narrow")
"""


@pytest.mark.parametrize(
    ("target", "words"),
    [
        pytest.param(stages.FragileWithExample, "no device", id="the example tells"),
        pytest.param(stages.Fragile, "no device", id="an item that was well tells"),
        pytest.param(stages.Fragile, LASTING, id="the words of the error tell"),
    ],
)
async def test_the_mates_of_what_loses_the_device_are_right_and_it_has_its_own_error(target, words, caplog):
    async with ps.Service(ps.stage(target, setup={"words": words})) as service:
        assert await service.predict(1) == 2
        found = await service.predict_many([*range(17), "poison", *range(17, 35)], return_exceptions=True)
        (stage,) = service.engine.stages
        assert found.pop(17).message == words
        assert found == [2 * x for x in range(35)]
        assert stage.counters.devices_lost == stage.counters.restarts in (1, 2)
        assert (stage.counters.unhealthy_restarts, stage.health.resting) == (0, False)
        assert await service.predict(7) == 14
    told = "device lost: a batch failed, and an input that succeeded before now fails too, with RuntimeError"
    assert f"{told}: {words}" in caplog.text


@pytest.mark.parametrize("target", [stages.FragileWithExample, stages.Fragile])
async def test_the_mates_of_what_loses_the_device_are_right_though_some_ended_well_before(target):
    async with ps.Service(ps.stage(target, setup={"fits": 1})) as service:
        found = await service.predict_many([1, 2, "poison", 3, 4, 5], return_exceptions=True)
        assert found.pop(2).message == "no device"
        assert found == [2, 4, 6, 8, 10]


async def test_without_a_retry_all_of_the_batch_have_the_error_and_the_next_is_right():
    spec = ps.stage(stages.Fragile, setup={"words": LASTING}, retry=False, bisect=False)
    async with ps.Service(spec) as service:
        found = await service.predict_many([1, "poison", 2], return_exceptions=True)
        assert [error.message for error in found] == [LASTING] * 3
        assert await service.predict(7) == 14
        assert service.engine.stages[0].counters.devices_lost == 1


async def test_an_item_that_fails_alone_is_examined_the_second_time_and_its_worker_goes_on_where_the_example_is_well():
    async with ps.Service(stages.FragileWithExample) as service:
        for _ in range(7):
            with pytest.raises(ps.StageFailed):
                await service.predict(None)
        (stage,) = service.engine.stages
        assert (stage.counters.restarts, stage.counters.devices_lost) == (0, 0)


async def test_a_thread_is_not_replaced_and_answers_with_the_error():
    async with ps.Service(ps.stage(stages.Fragile), inline=True) as service:
        try:
            found = await service.predict_many([1, "poison"], return_exceptions=True)
            assert [error.message for error in found] == ["no device"] * 2
            assert service.engine.stages[0].counters.devices_lost == 0
        finally:
            stages.Fragile.lost = False


@pytest.mark.smoke
def test_over_http_the_mates_are_right_and_health_metrics_and_the_log_say_that_a_device_was_lost(tmp_path):
    with serving(tmp_path, source=SOURCE) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        answer = client.post("/batch", json=[*range(8), "poison", *range(8, 16)])
        statuses = [entry["error"]["status"] if "error" in entry else 200 for entry in answer.json()["outcomes"]]
        assert statuses == [200] * 8 + [500] + [200] * 8, answer.text
        (stage,) = client.get("/health").json()["services"]["service"]["stages"].values()
        assert stage["devices_lost"] >= 1
        metrics = client.get("/metrics").text
        assert re.search(r"^penstock_stage_devices_lost_total{.*} [12]\.0$", metrics, re.MULTILINE)
        assert "device lost" in server.output


@pytest.mark.parametrize(("target", "first"), [("service", "poison"), ("narrow", "giant")])
def test_of_jobs_each_that_can_be_computed_is(tmp_path, target, first):
    (tmp_path / "app.py").write_text(SOURCE)
    url = f"sqlite:///{tmp_path}/q.db"
    with jobs.connect(url) as q:
        bad, *good = q.submit_many([{"input": x} for x in [first, *range(12)]])
        words = ("consume", f"app:{target}", "--until-empty", "--retry-backoff", "0.01")
        program = Program(tmp_path, *PENSTOCK, *words, env={"PENSTOCK_QUEUE_URL": url})
        try:
            assert program.wait(60) == 0, program.output
        finally:
            program.destroy()
        assert [q.result(job) for job in good] == [2 * x for x in range(12)]
        if target == "service":
            assert q.get(bad.id).error.message == "no device"
        else:
            assert q.result(bad) == "giantgiant"


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bisect", [True, False])
@pytest.mark.parametrize("fits", [1, 2, 5])
async def test_where_few_items_fit_each_is_right_and_batches_get_smaller(fits, bisect, caplog):
    async with ps.Service(ps.stage(stages.Fragile, setup={"fits": fits}, bisect=bisect)) as service:
        (stage,) = service.engine.stages
        assert await service.predict_many(range(32)) == [2 * x for x in range(32)]
        assert stage.max_size == 16
        assert await service.predict_many(range(64)) == [2 * x for x in range(64)]
        assert stage.max_size < 16
        assert (stage.counters.unhealthy_restarts, stage.counters.restarts) == (0, 0)
    assert "out of memory with a batch of 32 items; the stage's batches are limited to 16" in caplog.text


async def test_a_giant_item_halves_the_batches_once_and_is_right_alone():
    async with ps.Service(stages.Fragile) as service:
        (stage,) = service.engine.stages
        found = await service.predict_many([*range(20), "giant"])
        assert found == [*(2 * x for x in range(20)), "giantgiant"]
        assert stage.max_size == 11


async def test_a_worker_that_has_no_memory_for_a_full_batch_of_examples_starts_with_smaller_ones():
    async with ps.Service(ps.stage(stages.FragileWithExample, setup={"fits": 5})) as service:
        assert service.engine.stages[0].max_size == 4


def test_a_check_says_how_many_examples_ran_at_once(tmp_path):
    (tmp_path / "app.py").write_text(SOURCE + "tight = ps.Service(ps.stage(FragileWithExample, setup={'fits': 5}))")
    program = Program(tmp_path, *PENSTOCK, "check", "app:tight", env={"COLUMNS": "200"})
    try:
        program.wait()
        told = " ".join(program.output.split())
        assert "4 of its examples ran in one batch, but 32 (max_size) ran out of memory" in told
    finally:
        program.destroy()


@pytest.mark.smoke
def test_over_http_each_item_is_right_and_health_says_how_large_batches_may_be(tmp_path):
    served = serving(tmp_path, source=SOURCE, services=("narrow",))
    with served as server, httpx.Client(base_url=server.address, timeout=60) as client:
        answer = client.post("/batch", json=list(range(32)))
        assert [entry["result"] for entry in answer.json()["outcomes"]] == [2 * x for x in range(32)]
        (stage,) = client.get("/health").json()["services"]["narrow"]["stages"].values()
        assert stage["max_size"] == 16
        metrics = client.get("/metrics").text
        assert re.search(r"^penstock_stage_max_size{.*} 16\.0$", metrics, re.MULTILINE)
        assert re.search(r"^penstock_stage_out_of_memory_total{.*} 1\.0$", metrics, re.MULTILINE)
