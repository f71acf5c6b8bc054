"""Mistakes planted in real consumers: the history tells of each.

`tests/unit/jobs/test_history_of_mistakes.py` has such histories written down, and is run by day.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from worked import LEASE, queue_in

from penstock.testing.history_events import Act

pytestmark = pytest.mark.night


@pytest.fixture
def queue(tmp_path):
    with queue_in(tmp_path, f"sqlite:///{tmp_path}/q.db") as queue:
        yield queue


def told_of(queue, **how):
    with pytest.raises(AssertionError) as told:
        queue.check(**how)
    return str(told.value)


def test_who_acknowledges_before_it_computes_is_told(queue):
    working = queue.work(mutant="ack before commit").up()
    queue.submit_many(8)
    queue.until_ended()
    # No call may have begun by then: a history without one tells nothing of when the model ran.
    queue.until(lambda: any(event.act is Act.CALL for event in queue.events()), "a call of the model")
    working.kill()
    assert "before the model had run" in told_of(queue)


def test_who_commits_without_a_fence_is_told(queue, tmp_path):
    gate = Path(tmp_path, "gate")
    gate.touch()  # open for the first, shut for the other until the first has committed
    armed = queue.work(mutant="unfenced commit", faults="before_commit=stop").up()
    queue.submit("job", 6, x=3, gate=str(gate))
    with armed.suspended(by=None):
        gate.unlink()
        other = queue.work().up()
        queue.until(lambda: len(queue.job("job").attempts) == 2, "another claim")

    def has_committed():
        return any(part.fence == 1 for e in queue.events() if e.act is Act.END and e.ended for part in e.parts)

    # The end of the job is not enough: who is killed then has not written down that the store took its word.
    queue.until(has_committed, "the commit of who had stopped")
    gate.touch()
    queue.until_ended()
    armed.kill()
    other.kill()
    assert "was taken from fence 1 after the next claim" in told_of(queue)


def test_who_does_not_renew_is_told(queue):
    working = queue.work(mutant="no renewal").up()
    queue.submit("job", 6, x=3, seconds=1.5 * LEASE)
    queue.until(lambda: len(queue.job("job").attempts) == 2, "another claim")
    queue.submit("later", 0, x=0)
    queue.until(lambda: queue.job("later").attempts, "a claim that shows that it lives")
    working.kill()
    assert "was not renewed in time" in told_of(queue, finished=False)


def test_who_moves_an_output_before_the_commit_is_told(queue):
    working = queue.work(mutant="output moved early").up()
    queue.submit_many(4)
    queue.until_ended()
    working.kill()
    assert "had its output moved before" in told_of(queue)
