"""Two hundred thousand jobs in a file, while consumers are killed: none is lost, none is done twice, memory is flat."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter

import pytest
from processes import resident
from served import PENSTOCK, Program, write_module

from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import NewJob
from penstock.jobs.stores.opening import open_store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

SOURCE = """
import time

import penstock as ps

class Double(ps.Stage):
    batch = ps.Batch(max_size=64)

    def predict(self, xs: list[int]) -> list[int]:
        time.sleep(0.0015 * len(xs))
        return [2 * x for x in xs]

service = ps.Service(Double, name="double")
"""
JOBS = int(os.environ.get("SOAK_JOBS", "200000"))
SEED = int(os.environ.get("SOAK_SEED") or time.time())
CONSUMERS = 3
BETWEEN_KILLS = (1.0, 4.0)
"""Seconds."""
GROWTH = 16 * 1024 * 1024
PAGE = 1000
PATIENCE_SECONDS = 2000.0


class Fleet:
    """Consumers of one queue; all but the first are killed now and then, and started again."""

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        self.module = write_module(folder, SOURCE)
        self.kills = 0
        self.consumers = [self.start() for _ in range(CONSUMERS)]

    def start(self):
        flags = ("--queue", self.url, "--lease", "2", "--poll", "0.05")
        return Program(self.folder, *PENSTOCK, "work", f"{self.module}:service", *flags)

    def kill_one(self, chance):
        place = chance.randrange(1, CONSUMERS)
        self.consumers[place].process.send_signal(signal.SIGKILL)
        self.consumers[place].destroy()
        self.kills += 1
        self.consumers[place] = self.start()

    def end(self):
        for each in self.consumers:
            each.wait_for("working on ")  # who is still starting takes no signals yet
        for each in self.consumers:
            each.signal(signal.SIGTERM)
        for each in self.consumers:
            assert each.wait() == 0, each.output

    def destroy(self):
        for each in self.consumers:
            each.destroy()


def submitted(store):
    for first in range(0, JOBS, PAGE):
        numbers = range(first, min(first + PAGE, JOBS))
        store.submit([NewJob(f"job-{n:07}", b"%d" % n, digest=str(n)) for n in numbers])


def all_jobs(store):
    """Every job, page by page."""
    after = None
    while page := store.list_jobs(None, PAGE, after):
        yield from page
        after = page[-1].id


def check(store, job: Job) -> None:
    """It succeeded, once, with its own result; every attempt before was lost or given back."""
    assert job.state is JobState.SUCCEEDED, job
    causes = [attempt.cause for attempt in job.history]
    assert causes[-1] == "succeeded", job
    assert set(causes[:-1]) <= {"lost", "released"}, job
    assert json.loads(store.result(job.id).body) == 2 * int(job.id.partition("-")[2]), job


def test_no_job_is_lost_or_done_twice_while_consumers_are_killed(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/q.db"
    chance = random.Random(SEED)
    with capsys.disabled(), contextlib.closing(open_store(url)) as store:
        print(f"\nseed {SEED}: {JOBS} jobs")  # noqa: T201  # to run it again as it was
        submitted(store)
        fleet = Fleet(tmp_path, url)
        try:
            survivor = fleet.consumers[0]
            survivor.wait_for("working on ")
            began = time.monotonic()
            memory = 0
            while (done := sum(getattr(stats := store.stats(), state) for state in ENDED)) < JOBS:
                time.sleep(chance.uniform(*BETWEEN_KILLS))
                assert survivor.process.poll() is None, survivor.output
                assert time.monotonic() - began < PATIENCE_SECONDS, stats
                fleet.kill_one(chance)
                if not memory and done > JOBS / 10:
                    memory = resident(survivor.pid)
            seconds = time.monotonic() - began
            grown = resident(survivor.pid) - memory
            fleet.end()
        finally:
            fleet.destroy()
        lost = Counter()
        count = 0
        for job in all_jobs(store):
            check(store, job)
            lost[job.attempts.get("lost", 0)] += 1
            count += 1
        print(  # noqa: T201  # the figures are what it is run for
            f"{count} jobs succeeded in {seconds:.0f} s, {fleet.kills} kills; "
            f"how many jobs lost how many leases: {dict(lost)}; "
            f"MiB of who was not killed: {memory / 2**20:.1f}, grown by {grown / 2**20:.1f}"
        )
        assert count == JOBS
        assert fleet.kills
        assert memory
        assert grown < GROWTH
