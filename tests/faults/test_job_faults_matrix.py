"""Consumers killed, or stopped for longer than their leases, at each fault point: nothing is lost and nothing doubled.

One of two consumers is armed.  Every case runs by night and under `make faults`; those in `OFTEN` by day too: one is
killed with what it claimed, one stopped before its model, one killed with an output, one commits too late.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack

import pytest
from worked import SHORT_LEASE, queue_in

from redis_server import private_redis

POINTS = (
    "after_start", "after_claim", "before_download", "after_download", "before_compute", "after_compute",
    "before_upload", "after_upload", "before_commit", "after_commit", "before_delivery", "after_delivery",
    "before_renewal", "after_renewal", "before_drain", "after_drain",
)  # fmt: skip
ACTIONS = ("kill", "stop")
STORES = ("sqlite", "redis")
OFTEN = {
    ("after_claim", "kill", "redis"),
    ("before_compute", "stop", "sqlite"),
    ("after_upload", "kill", "sqlite"),
    ("before_commit", "stop", "redis"),
}
JOBS = 24
HOLDING = ("after_claim", "before_compute", "after_compute", "before_commit")
IN_DRAIN = ("before_drain", "after_drain")


@pytest.fixture
def queue(store, tmp_path):
    with ExitStack() as opened:
        url = f"sqlite:///{tmp_path}/q.db" if store == "sqlite" else opened.enter_context(private_redis()).url
        yield opened.enter_context(queue_in(tmp_path, url))


def cases():
    for point in POINTS:
        for action in ACTIONS:
            for store in STORES:
                marks = () if (point, action, store) in OFTEN else pytest.mark.night
                yield pytest.param(point, action, store, marks=marks, id=f"{point}-{action}-{store}")


@pytest.mark.parametrize(("point", "action", "store"), list(cases()))
def test_no_job_is_lost_or_done_twice_when_a_consumer_fails(queue, point, action, store):
    # The second visit, where there is one to be sure of: something has been done by then, and something is held.
    visit = 2 if point in ("after_claim", "after_compute", "before_compute", "before_commit") else 1
    armed = queue.work("--lease", str(SHORT_LEASE), faults=f"{point}={action}:{visit}")
    if point != "after_start":
        armed.up()
    queue.submit_many(JOBS, seconds=0.15 if "renewal" in point else 0.02)  # something is held when a renewal is due
    other = queue.work()
    if point in IN_DRAIN:
        queue.until(lambda: any(job.is_finished for job in queue.jobs()), "something to be done")
        armed.signal(signal.SIGTERM)
    if action == "kill":
        armed.until_dead()
        queue.until_done()
    else:
        with armed.suspended(by=None):
            queue.until_done()
        armed.end()
    other.end()
    queue.check(most_held=JOBS)
    assert len(queue.jobs()) == JOBS
    if point in HOLDING:
        expired = sum(job.failures.get("lease_expired", 0) for job in queue.jobs())
        assert expired, "the consumer held nothing when it failed"
