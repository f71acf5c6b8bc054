"""Who goes first, over real workers: urgency and deadlines, in every stage and among those who wait for room."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import chain

import pytest
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps


def gated(folder, **options):
    return ps.stage(stages.GatedBatch, name="gated", setup={"folder": str(folder)}, **options)


def ran(folder):
    return notes(folder / "ran")


def submit(service, items, **terms):
    """A call for each item; they are submitted in this order when the loop goes on."""
    return [asyncio.create_task(service.predict(x, **terms)) for x in items]


@pytest.mark.parametrize("before", [[], [ps.stage(stages.EchoBatch, name="before")]], ids=["one stage", "two"])
async def test_an_urgent_item_waits_for_at_most_two_batches_of_its_worker(tmp_path, before):
    async with ps.Service(*before, gated(tmp_path)) as service:
        stage = service.engine.stages[-1]
        calls = submit(service, range(20))
        await until(lambda: stage.in_flight == 8 and stage.queued == 12)
        calls += submit(service, ["last"], urgency=7)
        calls += submit(service, ["urgent"], urgency=0)
        await until(lambda: stage.queued == 14)
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        batches = ran(tmp_path)
        assert batches[2] == ["urgent", 8, 9, 10], "one batch ran and one was sent ahead when it came"
        assert list(chain(*batches))[-1] == "last"


async def test_the_earliest_deadline_goes_first_where_that_is_asked_for(tmp_path):
    async with ps.Service(gated(tmp_path), queue_order="edf") as service:
        stage = service.engine.stages[0]
        calls = submit(service, range(8))
        await until(lambda: stage.in_flight == 8)
        for seconds in (50, 30, 40, 30):
            calls += submit(service, [seconds], timeout=seconds)
        calls += submit(service, ["urgent"], timeout=55, urgency=2)
        await until(lambda: stage.queued == 5)
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        assert ran(tmp_path)[2:] == [["urgent", 30, 30, 40], [50]]


async def test_who_waits_for_room_is_let_in_by_deadline_where_that_is_asked_for(tmp_path):
    async with ps.Service(gated(tmp_path, batch=ps.Batch(max_size=1)), max_in_flight=2, queue_order="edf") as service:
        calls = submit(service, range(2))
        await until(lambda: service.engine.stages[0].in_flight == 2)
        for seconds in (50, 30, 40):
            calls += submit(service, [seconds], timeout=seconds)
        await asyncio.sleep(0)
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        assert list(chain(*ran(tmp_path))) == [0, 1, 30, 40, 50]


async def test_tenants_of_weights_3_and_1_are_served_3_to_1_in_both_stages(tmp_path):
    specs = [gated(tmp_path, batch=ps.Batch(max_size=1), prefetch=0), ps.stage(stages.EchoBatch, name="after")]
    rules = tmp_path / "tenants.toml"
    rules.write_text("[tenants.gold]\nweight = 3\n")
    async with ps.Service(*specs, tenants_file=str(rules)) as service:
        calls = [*submit(service, ["i"] * 40, tenant="iron"), *submit(service, ["g"] * 40, tenant="gold")]
        await until(lambda: service.engine.stages[0].queued == 79)
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        served = list(chain(*ran(tmp_path)))[1:41]  # the first went before the others came
        assert abs(served.count("g") - 30) <= 1


async def test_a_file_of_tenants_is_read_once_for_keys_and_rates(tmp_path):
    rules = tmp_path / "tenants.toml"
    rules.write_text("[tenants.gold]\nrate = 5\n")
    service = ps.Service(stages.EchoBatch, tenants_file=str(rules), inline=True)
    ps.asgi(service)
    rules.write_text("[tenants.gold]\nrate = 7\n")
    async with service:
        assert service.engine.allowance("gold").quota == 5


async def test_what_a_killed_worker_had_not_begun_goes_back_to_its_place(tmp_path):
    async with ps.Service(gated(tmp_path)) as service:
        stage = service.engine.stages[0]
        calls = submit(service, range(12))
        await until(lambda: stage.in_flight == 8 and ran(tmp_path))
        calls += submit(service, ["urgent"], urgency=0)
        await until(lambda: stage.queued == 5)
        os.kill(stage.workers[0].pid, signal.SIGKILL)
        await until(lambda: len(ran(tmp_path)) == 2)
        (tmp_path / "open").touch()
        await asyncio.gather(*calls)
        order = list(chain(*ran(tmp_path)[1:]))
        assert order[:4] == [0, 1, 2, 3], "suspects, each alone"
        assert order[4] == "urgent"
        assert order[5:] == [4, 5, 6, 7, 8, 9, 10, 11]
