"""Stores that go away under consumers: restarted, cut off, silent, answering too late, and out of disk."""

from __future__ import annotations

import resource
from contextlib import ExitStack

import pytest
from cutting_proxy import CuttingProxy
from worked import SHORT_LEASE, queue_in

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.stores.redis_scripts import read_scripts
from redis_server import private_redis

JOBS = 24
SLOW = 0.1
"""Seconds for a job, so that the queue is not empty when the store goes."""


@pytest.fixture
def server():
    with private_redis() as server:
        yield server


@pytest.fixture
def queue(server, tmp_path):
    with queue_in(tmp_path, server.url) as queue:
        yield queue


@pytest.fixture
def proxy(server):
    proxy = CuttingProxy(server.path)
    yield proxy
    proxy.close()


def test_a_redis_that_is_killed_and_restarted_is_found_again_with_all_that_it_has_told(tmp_path):
    with private_redis("--appendfsync", "always") as server, queue_in(tmp_path, server.url) as queue:
        working = queue.work().up()
        queue.submit_many(JOBS, seconds=SLOW)
        for done in (4, 8):
            queue.until(lambda done=done: queue.states()[JobState.SUCCEEDED] >= done, f"{done} jobs to be done")
            server.kill()
            server.start()
        queue.until_done()
        working.end()
        queue.check()


@pytest.mark.parametrize("how", ["refuse", pytest.param("swallow", marks=pytest.mark.night)])
def test_a_consumer_that_is_cut_off_goes_on_when_the_store_is_back(proxy, queue, how):
    """Another has taken what it held; it claims again, and nothing of its late results is taken."""
    cut_off = queue.work("--lease", str(SHORT_LEASE), url=f"redis://127.0.0.1:{proxy.port}/0").up()
    queue.submit_many(JOBS, seconds=SLOW)
    queue.until(lambda: queue.states()[JobState.SUCCEEDED] >= 4, "some jobs to be done")
    getattr(proxy, how)()
    with cut_off.told_as_standing_still():  # in a black hole no renewal is answered
        other = queue.work().up()
        queue.until_done()
        other.end()
        cut_off.wait_for("job store unavailable")
        proxy.go_on()
        cut_off.wait_for("job store available again")
    queue.submit_many(JOBS, prefix="later")
    queue.until_done()  # by who was cut off, for there is nobody else
    cut_off.end()
    queue.check()
    assert max(job.failures.get("lease_expired", 0) for job in queue.jobs()) == 1


@pytest.mark.night
def test_a_renewal_that_is_never_answered_leaves_time_for_another(proxy, queue):
    holder = queue.work("--lease", "3", url=f"redis://127.0.0.1:{proxy.port}/0").up()
    proxy.swallow_once(read_scripts()["renew"].sha.encode())
    job = queue.submit("long", 2, x=1, seconds=6.0)
    queue.until_called(job)
    other = queue.work("--lease", "3").up()
    queue.until_done()
    holder.wait_for("cannot renew leases")
    for working in (holder, other):
        working.end()
    queue.check()
    assert queue.calls(job) == 1


@pytest.mark.parametrize(
    "script", ["end", *(pytest.param(each, marks=pytest.mark.night) for each in ("claim", "renew", "delivered"))]
)
def test_a_call_whose_answer_is_lost_is_made_again_and_done_once(proxy, queue, script):
    working = queue.work(url=f"redis://127.0.0.1:{proxy.port}/0").up()
    proxy.cut_answers(read_scripts()[script].sha.encode())
    queue.submit_many(JOBS, seconds=SLOW)
    queue.until(lambda: proxy.cuts >= 4, "four answers to be cut off")
    proxy.go_on()
    queue.until_done()
    working.end()
    queue.check()


def test_a_consumer_whose_store_is_a_file_on_a_full_disk_goes_on_when_there_is_room(tmp_path):
    """The limit of a file's size stands for the disk."""
    with ExitStack() as opened:
        queue = opened.enter_context(queue_in(tmp_path, f"sqlite:///{tmp_path}/q.db"))
        working = queue.work().up()
        queue.submit_many(JOBS, seconds=SLOW, size=50_000, expected="x" * 50_000)
        resource.prlimit(working.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        working.wait_for("job store unavailable: .*disk")
        resource.prlimit(working.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        queue.until_done()
        working.end()
        queue.check()
        assert {queue.calls(job.id) for job in queue.jobs()} == {1}
