"""Leases of real consumers: renewed whatever the process is busy with, and another's soon after its holder has died."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from worked import SHORT_LEASE, queue_in

from night import tight
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import NewJob
from penstock.testing.history import Act
from redis_server import private_redis

POLL = 0.02
SLACK = tight(1.0)
"""Seconds that a machine on which other tests run may be late with what takes milliseconds."""


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.night)])
def queue(request, tmp_path):
    if request.param == "sqlite":
        with queue_in(tmp_path, f"sqlite:///{tmp_path}/q.db") as queue:
            yield queue
    else:
        with private_redis() as server, queue_in(tmp_path, server.url) as queue:
            yield queue


def test_what_a_killed_consumer_held_is_claimed_within_a_lease_and_a_poll(queue):
    """Measured in the history: from the last word of the dead to the next claim."""
    first = queue.work("--lease", str(SHORT_LEASE)).up()
    gate = queue.folder / "open"
    # It may begin with the first alone, and holds a batch of four besides what the model has begun with.
    jobs = [queue.submit(f"job-{n}", 2 * n, x=n, gate=str(gate)) for n in range(5)]
    queue.until(lambda: queue.states()[JobState.RUNNING] == len(jobs), "all to be held")
    other = queue.work().up()
    first.kill()
    gate.touch()
    queue.until_done()
    other.end()
    queue.check(reclaim_within=POLL + SLACK)
    words = [
        event for event in queue.events() if event.process == str(first.pid) and event.act in (Act.CLAIM, Act.RENEW)
    ]
    last = max(event.at for event in words)
    claims = {
        part.job: event.at
        for event in queue.events()
        if event.act is Act.CLAIM and event.ended
        for part in event.parts
        if part.fence == 2
    }
    # Its model runs one batch at a time: what comes later than the first claim waited for room, and not for a lease.
    assert min(claims.values()) - last <= SHORT_LEASE + POLL + SLACK
    assert claims.keys() == set(jobs)
    held_first = {job.attempts[0].consumer_id for job in queue.jobs()}
    assert held_first.isdisjoint(job.attempts[1].consumer_id for job in queue.jobs())


def test_leases_are_renewed_while_the_event_loop_is_busy(queue):
    busy = queue.work("--lease", str(SHORT_LEASE), JOBS_BLOCKED_LOOP=str(2 * SHORT_LEASE)).up()
    queue.submit_many(4)
    queue.until(lambda: any(event.act is Act.CLAIM and event.parts for event in queue.events()), "a claim")
    other = queue.work().up()
    queue.until_done()
    busy.end()
    other.end()
    queue.check()
    assert {len(job.attempts) for job in queue.jobs()} == {1}


def test_what_waits_behind_a_long_batch_keeps_its_lease(queue):
    """Batches of four that take longer than a lease; the second is sent ahead of its turn."""
    working = queue.work("--lease", str(SHORT_LEASE)).up()
    queue.submit_many(8, seconds=SHORT_LEASE / 3)
    queue.until_done()
    working.end()
    queue.check()
    assert {len(job.attempts) for job in queue.jobs()} == {1}
    assert not any(job.failures for job in queue.jobs())


def test_a_consumer_that_is_restarted_at_once_waits_for_the_leases_of_its_former_life(queue):
    """Its name is another one, so nobody takes it for who held the jobs."""
    first = queue.work("--lease", str(SHORT_LEASE), faults="before_commit=kill").up()
    queue.submit_many(4)
    first.until_dead()
    queue.finish()
    queue.check()
    for job in queue.jobs():
        assert len({attempt.consumer_id for attempt in job.attempts}) == len(job.attempts)
    assert any(len(job.attempts) == 2 for job in queue.jobs())


class Halfway(ThreadingHTTPServer):
    """Answers with `body`, and takes what is put; the first exchange of each kind stops half-way until `go_on`."""

    body = b'{"x": 21, "seconds": 0.01}'

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.met = {"GET": threading.Event(), "PUT": threading.Event()}
        self.go_on = threading.Event()
        self.put = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop_halfway(self, method: str) -> None:
        if not self.met[method].is_set():
            self.met[method].set()
            self.go_on.wait(30)


class Exchange(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.server.body
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:10])
        self.wfile.flush()
        self.server.stop_halfway("GET")
        self.wfile.write(body[10:])

    def do_PUT(self) -> None:
        self.server.stop_halfway("PUT")
        self.server.put.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the consumer was killed
            super().handle()

    def log_message(self, *words) -> None:
        """Nothing is logged."""


@contextmanager
def halfway():
    server = Halfway()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("method", ["GET", pytest.param("PUT", marks=pytest.mark.night)])
def test_a_consumer_that_is_killed_in_the_middle_of_a_transfer_costs_one_attempt(queue, method):
    with halfway() as server:
        more = (
            {"input_url": f"{server.url}/in"}
            if method == "GET"
            else {"body": server.body, "output": f"{server.url}/out"}
        )
        queue.store.submit([NewJob("job", digest="job", **more)])
        first = queue.work("--lease", str(SHORT_LEASE), "--allow-net", "127.0.0.0/8").up()
        assert server.met[method].wait(20)
        first.kill()
        server.go_on.set()
        queue.work("--until-empty", "--allow-net", "127.0.0.0/8").until_empty()
        queue.check()
        job = queue.job("job")
        assert (job.state, job.failures) == (JobState.SUCCEEDED, {"lease_expired": 1})
        if method == "PUT":  # at least once: what the dead consumer had sent may have arrived as well
            assert ("/out", b"42") in server.put
        else:
            assert queue.store.result("job").body == b"42"


# -- both are there again ---------------------------------------------------------------------------------------------


@contextmanager
def gone(how, queue, server, consumers):
    """For the block the store cannot be reached, or the consumers stand still."""
    with ExitStack() as during:
        match how:
            case "stopped":
                for each in consumers:
                    during.enter_context(each.suspended())
            case "locked":
                path = queue.url.removeprefix("sqlite:///")
                locking = during.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
                locking.execute("BEGIN IMMEDIATE")
            case "paused":
                server.pause()
                during.callback(server.go_on)
            case "restarted":
                server.kill()
                during.callback(server.start)
        for each in consumers:  # while a file is locked a call waits for longer than a lease
            during.enter_context(each.told_as_standing_still())
        yield


CASES = [
    ("sqlite", "locked", 1, "no renewal"),
    ("redis", "paused", 1, ""),
    ("sqlite", "stopped", 1, "no renewal"),
    *(
        pytest.param(*case, marks=pytest.mark.night)
        for case in (
            ("sqlite", "locked", 1, ""),
            ("sqlite", "stopped", 1, ""),
            ("redis", "paused", 1, "no renewal"),
            ("redis", "restarted", 1, ""),
            ("redis", "stopped", 1, "no renewal"),
            ("sqlite", "locked", 2, ""),
            ("sqlite", "stopped", 2, ""),
            ("redis", "paused", 2, ""),
            ("redis", "restarted", 2, ""),
            ("redis", "stopped", 2, ""),
        )
    ),
]


@pytest.mark.parametrize(("store", "how", "consumers", "mutant"), CASES)
def test_who_is_back_after_longer_than_a_lease_goes_on_with_what_nobody_else_has_claimed(
    tmp_path, store, how, consumers, mutant
):
    """One consumer runs each job once.  Of two that are back together each may have claimed what was the other's.

    Without the thread that renews a claim would always come first.
    """
    with ExitStack() as opened:
        server = None if store == "sqlite" else opened.enter_context(private_redis("--appendfsync", "always"))
        url = f"sqlite:///{tmp_path}/q.db" if server is None else server.url
        queue = opened.enter_context(queue_in(tmp_path, url))
        working = [queue.work("--lease", str(SHORT_LEASE), mutant=mutant).up() for _ in range(consumers)]
        jobs = queue.submit_many(8 * consumers, seconds=0.4)
        queue.until(lambda: len(set(map(holder_of, queue.jobs())) - {""}) == consumers, "everybody to hold something")
        with ExitStack() as unrenewed:
            for each in working if mutant else ():  # afterwards too a lease may run out before the next claim
                unrenewed.enter_context(each.told_as_standing_still())
            with gone(how, queue, server, working):
                over = time.monotonic() + 2 * SHORT_LEASE
                queue.until(lambda: time.monotonic() > over, "the leases to run out")
            queue.until_done()
        told = [each.end() for each in working]
        queue.check()
        if consumers == 1:
            assert [queue.calls(job) for job in jobs] == [1] * 8
            assert [(job.failures, len(job.attempts)) for job in queue.jobs()] == [({}, 1)] * 8
            assert "another consumer holds the job" not in told[0]
        for job in queue.jobs():
            assert queue.calls(job.id) <= len(job.attempts)
            for before, after in pairwise(job.attempts):
                assert (before.cause, before.consumer_id != after.consumer_id) == ("lease_expired", True)


def holder_of(job):
    return job.attempts[-1].consumer_id if job.state is JobState.RUNNING else ""
