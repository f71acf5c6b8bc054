"""Two hundred thousand jobs in a file, and others on a disk that is full now and then, while consumers are killed or
stopped, stand still, or find the file locked for longer than a lease: none is lost, none has two results, none runs
again that no other consumer has claimed, none begins after a stop, memory is flat.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from file_programs import fill, mounting_alone
from notes_and_gates import notes
from processes import resident
from served import PENSTOCK, Program, write_module
from waiting import until_now

from penstock.errors import QueueFull
from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import NewJob, StoreFull
from penstock.jobs.stores.opening import open_store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

SLOW_SECONDS, SLOW_EVERY = 1.5, 2500
SOURCE = f"""
import os
import time

from notes_and_gates import note

import penstock as ps

class Double(ps.Stage):
    batch = ps.Batch(max_size=64)

    def predict(self, xs: list[int]) -> list[int]:
        note("ran", [int(os.environ["CONSUMER"]), time.monotonic(), xs])
        time.sleep(0.0015 * len(xs) + {SLOW_SECONDS} * any(x % {SLOW_EVERY} == 7 for x in xs))
        return [2 * x for x in xs]

service = ps.Service(Double, name="double")
"""
JOBS = int(os.environ.get("SOAK_JOBS", "200000"))
SEED = int(os.environ.get("SOAK_SEED") or time.time())
CONSUMERS = 3
LEASE = 2.0
AWAY = (1.2 * LEASE, 2.0 * LEASE)
"""Seconds for which a consumer stands still, or the file is locked."""
BETWEEN_KILLS = (1.0, 4.0)
"""Seconds."""
LATE_SECONDS = 0.75
"""By then a consumer has acted on a signal; a slow job goes on for longer, and what lies behind it may not begin."""
DISK_SECONDS = float(os.environ.get("SOAK_DISK_SECONDS", "120"))
DISK_BYTES = 24 * 1024 * 1024
SPARE_BYTES = 2 * 1024 * 1024
GROWTH = 16 * 1024 * 1024
PAGE = 1000
PATIENCE_SECONDS = 2000.0


class Fleet:
    """Consumers of one queue; all but the first are killed or stopped now and then, and started again."""

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        self.module = write_module(folder, SOURCE)
        self.started = self.kills = self.stalls = self.locks = 0
        self._disturbances = itertools.cycle(("kill", "stall", "stop", "lock"))
        self.stopped = {}
        """When which consumer was told to stop."""
        self.consumers = [self.start() for _ in range(CONSUMERS)]

    def start(self):
        flags = ("--queue", self.url, "--lease", f"{LEASE:g}", "--poll", "0.05")
        env = {"CONSUMER": str(self.started)}
        self.started += 1
        consumer = Program(self.folder, *PENSTOCK, "work", f"{self.module}:service", *flags, env=env)
        consumer.number = self.started - 1
        return consumer

    def disturb(self, chance):
        """End one, or have one stand still for longer than a lease, or nobody reach the store for as long."""
        match next(self._disturbances):
            case "kill" | "stop" as how:
                self.end_one(chance, kill=how == "kill")
            case "stall":
                stalled = chance.choice(self.consumers).process
                stalled.send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(*AWAY))
                stalled.send_signal(signal.SIGCONT)
                self.stalls += 1
            case "lock":
                path = self.url.removeprefix("sqlite:///")
                with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60.0)) as locking:
                    locking.execute("BEGIN IMMEDIATE")
                    time.sleep(chance.uniform(*AWAY))
                self.locks += 1

    def end_one(self, chance, *, kill):
        """Have one be killed, or stopped with a signal that comes once or twice, and another be there instead."""
        place = chance.randrange(1, CONSUMERS)
        consumer = self.consumers[place]
        if kill:
            consumer.process.send_signal(signal.SIGKILL)
            self.kills += 1
        else:
            self.stop([consumer], chance.choice([1, 2]))
        consumer.destroy()
        self.consumers[place] = self.start()

    def stop(self, consumers, deliveries=1):
        """Stop these; they end well."""
        for each in consumers:
            each.wait_for("working on ")  # who is still starting takes no signals yet
        for each in consumers:
            self.stopped[each.number] = time.monotonic()
            for _ in range(deliveries):
                each.signal(signal.SIGTERM)
        for each in consumers:
            assert each.wait() == 0, each.output

    def ran(self):
        """How often the model has run each job; after a stop it begins with none."""
        found = Counter()
        for consumer, began, numbers in notes(self.folder / "ran"):
            assert began < self.stopped.get(consumer, began) + LATE_SECONDS, (consumer, numbers)
            found.update(numbers)
        return found

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


def check(store, job: Job, ran: Counter[int]) -> None:
    """It succeeded, with its own result; each attempt before was lost to another, or given back and never run."""
    assert job.state is JobState.SUCCEEDED, job
    number = int(job.id.partition("-")[2])
    causes = [attempt.cause for attempt in job.history]
    assert causes[-1] == "succeeded", job
    assert set(causes[:-1]) <= {"lost", "released"}, job
    for before, after in pairwise(job.history):
        assert before.cause == "released" or before.holder != after.holder, job
    assert 1 <= ran[number] <= 1 + job.attempts.get("lost", 0), (ran[number], job)
    assert json.loads(store.result(job.id).body) == 2 * number, job


def test_no_job_is_lost_or_done_twice_while_consumers_are_killed_and_stopped(tmp_path, capsys):
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
                fleet.disturb(chance)
                if not memory and done > JOBS / 10:
                    memory = resident(survivor.pid)
            seconds = time.monotonic() - began
            grown = resident(survivor.pid) - memory
            fleet.stop(fleet.consumers)
        finally:
            fleet.destroy()
        lost, causes, ran = Counter(), Counter(), fleet.ran()
        count = 0
        for job in all_jobs(store):
            check(store, job, ran)
            lost[job.attempts.get("lost", 0)] += 1
            causes.update(attempt.cause for attempt in job.history)
            count += 1
        print(  # noqa: T201  # the figures are what it is run for
            f"{count} jobs succeeded in {seconds:.0f} s, {fleet.kills} kills, {len(fleet.stopped)} stops, "
            f"{fleet.stalls} stalls, {fleet.locks} locks; {ran.total() - count} runs again, {causes['lost']} lost; "
            f"how many jobs lost how many leases: {dict(lost)}; {causes['released']} released; "
            f"MiB of who was not killed: {memory / 2**20:.1f}, grown by {grown / 2**20:.1f}"
        )
        assert count == JOBS
        assert fleet.kills
        assert fleet.stalls
        assert fleet.locks
        assert len(fleet.stopped) > CONSUMERS
        assert causes["released"]
        assert memory
        assert grown < GROWTH


class FullDisk:
    """A queue on a small disk, which others fill and empty again, and its consumers.

    It runs in a process of its own that may mount: what is there is seen only by what that process has started.
    """

    def __init__(self, folder):
        self.disk = folder / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", self.disk], check=True)
        self.url = f"sqlite:///{self.disk}/q.db?max_waiting=3000"
        self.store = open_store(self.url)
        self.fleet = Fleet(folder, self.url)
        self.submitted, self.done = 0, set()
        self.seen = Counter()

    def submit_until_refused(self):
        for _ in range(100):
            numbers = range(self.submitted, self.submitted + 50)
            jobs = [NewJob(f"job-{n}", b"%d" % n + b" " * 500, digest=str(n)) for n in numbers]
            try:
                self.store.submit(jobs)
            except (StoreFull, QueueFull) as error:
                self.seen[type(error).__name__] += 1
                return
            self.submitted += len(jobs)

    def fill_or_empty(self, chance):
        """Fill the disk once for each life of the spare file, whose room is all that is promised."""
        hog = self.disk / "hog"
        if hog.exists():
            hog.unlink()
        elif (self.disk / "q.db-spare").exists() and chance.random() < 0.7:
            self.seen["full to the last 4 KiB"] += fill(self.disk) < 4096

    def take_results(self):
        """Look at what has succeeded, and have the store forget it."""
        began = time.monotonic()
        jobs = [job for job in all_jobs(self.store) if job.state in ENDED]
        ran = self.fleet.ran()
        for job in jobs:
            check(self.store, job, ran)
            self.done.add(job.id)
        self.seen["purged"] += self.store.purge(JobState.SUCCEEDED, time.monotonic() - began + 1)

    def live(self, chance):
        try:
            end = time.monotonic() + DISK_SECONDS
            while time.monotonic() < end:
                self.submit_until_refused()
                self.fill_or_empty(chance)
                time.sleep(chance.uniform(0.0, 2.0))
                self.fleet.end_one(chance, kill=chance.random() < 0.5)
                if chance.random() < 0.5:
                    self.take_results()
            (self.disk / "hog").unlink(missing_ok=True)
            until_now(lambda: not (stats := self.store.stats()).waiting + stats.leased, "all jobs to end", 120)
            self.fleet.stop(self.fleet.consumers)
        finally:
            self.fleet.destroy()
        self.take_results()
        assert self.done == {f"job-{n}" for n in range(self.submitted)}
        self.store.tend(keep=1e9, keep_dead=1e9, seconds_per_job=None)
        assert (self.disk / "q.db-spare").stat().st_size == SPARE_BYTES
        self.store.close()
        with contextlib.closing(sqlite3.connect(self.disk / "q.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert self.seen["StoreFull"]
        assert self.seen["full to the last 4 KiB"]
        assert self.seen["purged"]
        stops = len(self.fleet.stopped)
        print(f"{self.submitted} jobs succeeded, {self.fleet.kills} kills, {stops} stops; {dict(self.seen)}")  # noqa: T201


def test_no_job_is_lost_or_done_twice_on_a_disk_that_is_full_now_and_then(tmp_path, capsys):
    command = [*mounting_alone(), sys.executable, __file__, str(tmp_path), str(SEED)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True
    )
    with capsys.disabled():
        print(f"\nseed {SEED}: {done.stdout}")  # noqa: T201  # the figures are what it is run for
    assert done.returncode == 0


if __name__ == "__main__":
    FullDisk(Path(sys.argv[1])).live(random.Random(sys.argv[2]))
