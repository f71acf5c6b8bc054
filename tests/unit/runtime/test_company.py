"""A stage that learns how long to hold a free worker: what its driver tells the queue, and its timer."""

from __future__ import annotations

import math

from penstock.config import Batch
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.worker.stage import Stage

RUN = 0.020
BACK = 0.001
"""How long after its answer a caller asks again."""


class Well(Stage):
    """A stage that can be asked whether it is well."""

    batch = Batch()

    def predict(self, xs: list[int]) -> list[int]:
        return xs

    def health(self) -> None:
        """It is."""


async def crowd(make_rig, count=4, **options):
    """A stage with one worker, and so many callers of whom the first is alone in its batch."""
    rig = await make_rig(stage(math.sqrt, batch=Batch(max_size=64), **options)).start()
    await rig.call()
    for _ in range(count - 1):
        rig.submit()
    await rest()
    return rig


async def run_once(rig, *, back=None):
    """Let the batch of the worker run and be answered, and `back` of its callers, or all of them, ask again."""
    worker = rig.workers[0]
    n = len(worker.batches[0]) if back is None else back
    await rig.clock.advance(RUN)
    worker.answer(seconds=RUN)
    await rest()
    await rig.clock.advance(BACK)
    for _ in range(n):
        rig.submit()
    await rest()


async def learn(rig):
    """Run until those who are left from one batch are waited for in the next."""
    for _ in range(20):
        await run_once(rig)
        if rig.engine.stages[0].counters.batches_closed.get("adaptive"):
            return
    raise AssertionError("it has not learned to wait")


async def finish(rig):
    await rig.clock.advance(RUN)
    while rig.workers[0].frames:
        rig.workers[0].answer(seconds=RUN)
        await rest()
        await rig.clock.advance(RUN)


async def test_callers_who_were_split_into_two_batches_are_soon_in_one(make_rig):
    rig = await crowd(make_rig)
    assert [len(batch) for batch in rig.workers[0].batches] == [1]
    await run_once(rig)
    assert [len(batch) for batch in rig.workers[0].batches] == [3]
    await learn(rig)
    driver = rig.engine.stages[0]
    assert [len(batch) for batch in rig.workers[0].batches] == [4], "all of them, and not when the hold ran out"
    assert 0 < driver.hold_seconds <= RUN
    assert driver.held_seconds == driver.queue.held_seconds
    assert abs(driver.held_seconds - BACK) < 1e-9
    await finish(rig)


async def test_a_hold_that_nobody_joins_ends_at_its_moment_and_no_worker_takes_before(make_rig):
    rig = await crowd(make_rig)
    await learn(rig)
    await run_once(rig, back=0)
    assert rig.workers[0].frames == []
    await rig.call()  # it comes where nobody waits: the worker takes it at once
    for _ in range(3):
        rig.submit()
    await rest()
    await run_once(rig, back=0)
    driver = rig.engine.stages[0]
    assert (rig.workers[0].frames, driver.held) == ([], True)
    assert driver.counters.batches_closed.get("adaptive_timeout") is None
    await rig.clock.advance(driver.hold_seconds)
    assert [len(batch) for batch in rig.workers[0].batches] == [3]
    assert driver.counters.batches_closed["adaptive_timeout"] == 1
    await finish(rig)


async def test_the_queue_hears_of_a_batch_before_its_answers_are_written(make_rig):
    rig = await make_rig(stage(math.sqrt, batch=Batch())).start()
    queue = rig.engine.stages[0].queue
    call = await rig.call()
    seen = []
    told = call.told.append
    call.told = type("Told", (list,), {"append": lambda self, outcomes: (seen.append(queue.expected_run(1)), told)})()
    rig.workers[0].answer(seconds=0.5)
    await rest()
    assert seen == [0.5]
    call.told = [[]]


async def test_a_batch_of_which_nothing_is_sent_leaves_its_worker_free(make_rig):
    rig = await make_rig(stage(math.sqrt, batch=Batch())).start()
    queue = rig.engine.stages[0].queue
    rig.submit(within=0.0)
    await rest()
    assert rig.workers[0].frames == []
    assert queue._batches.free == 1
    await rig.call()
    assert queue._batches.free == 0
    rig.workers[0].answer()
    await rest()
    assert queue._batches.free == 1


async def test_a_worker_that_died_has_nothing_any_more_and_is_free_when_it_is_back(make_rig):
    rig = await make_rig(stage(math.sqrt, batch=Batch(), workers=2)).start()
    queue = rig.engine.stages[0].queue
    assert (queue.workers, queue._batches.free) == (2, 2)
    await rig.call()
    rig.workers[0].die()
    await rest()
    assert (queue.workers, queue._batches.free) == (1, 0), "the other one runs what was lost"
    rig.workers[1].answer()
    await rest()
    assert (queue.workers, queue._batches.free) == (1, 1)
    await rig.clock.advance(1.0)
    rig.workers.alive[-1].become_ready()
    await rest()
    assert (queue.workers, queue._batches.free) == (2, 2)


async def test_no_more_workers_are_free_than_may_be_given_batches(make_rig):
    rig = await make_rig(stage(math.sqrt, batch=Batch(), workers=3, max_in_flight_batches=2)).start()
    queue = rig.engine.stages[0].queue
    assert (queue.workers, queue._batches.free) == (3, 2)
    await rig.call()
    assert queue._batches.free == 1
    rig.workers[0].answer()
    await rest()


async def test_a_worker_that_runs_its_health_is_not_free(make_rig):
    rig = await make_rig(stage(Well)).start()
    queue = rig.engine.stages[0].queue
    await rig.clock.advance(10.0)
    assert rig.workers[0].checked
    await rig.call()
    assert (queue.workers, queue._batches.free) == (0, 0)
    rig.workers[0].finish_check()
    await rest()
    assert [len(batch) for batch in rig.workers[0].batches] == [1]
    assert queue.workers == 1
    rig.workers[0].answer()
    await rest()


async def test_a_stage_without_a_batch_policy_and_one_with_a_wait_of_its_own_learn_none(make_rig):
    for given, learns in ((None, False), (Batch(max_wait=0), False), (Batch(max_wait=1), False), (Batch(), True)):
        rig = make_rig(stage(math.sqrt, batch=given))
        assert rig.engine.stages[0].queue.learns is learns
