"""Two hundred thousand jobs in a file, fewer in Redis, and others on a disk that is full now and then, while consumers
are killed or stopped, stand still, or do not reach the store for longer than a lease: none is lost, none has two
results, none runs again that no other consumer has claimed, none begins after a stop, memory is flat.

Beside them the same consumers have jobs of a slow service whose worker dies now and then, and jobs whose input never
comes.  Those hold up none of the others, and have their ends as well.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socketserver
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import pytest
from file_programs import fill, mounting_alone
from notes_and_gates import notes
from processes import resident
from served import PENSTOCK, Program, write_module
from waiting import until_now

from penstock.errors import QueueFull
from penstock.jobs.endings import cause_of_death
from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import NewJob, StoreFull
from penstock.jobs.stores.opening import open_store
from redis_server import private_redis

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

SLOW_SECONDS, SLOW_EVERY = 1.5, 2500
DIES_EVERY = 50
"""So many jobs of the slow service have one under which the worker dies the first time."""
SOURCE = f"""
import os
import time
from pathlib import Path

from notes_and_gates import note

import penstock as ps

class Double(ps.Stage):
    batch = ps.Batch(max_size=64)

    def predict(self, xs: list[int]) -> list[int]:
        note("ran", [int(os.environ["CONSUMER"]), time.monotonic(), xs])
        time.sleep(0.0015 * len(xs) + {SLOW_SECONDS} * any(x % {SLOW_EVERY} == 7 for x in xs))
        return [2 * x for x in xs]

class Slow(ps.Stage):
    def predict(self, x: int) -> int:
        note("ran-slow", [int(os.environ["CONSUMER"]), time.monotonic(), [x]])
        died = Path(f"died-{{x}}")
        if x % {DIES_EVERY} == 7 and not died.exists():
            died.touch()
            os._exit(1)
        time.sleep(0.1)
        return x + 1

service = ps.Service(Double, name="double")
slow = ps.Service(Slow, name="slow")
"""
JOBS = {"sqlite": int(os.environ.get("SOAK_JOBS", "200000"))}
JOBS["redis"] = JOBS["sqlite"] // 10
FETCHED_EVERY = 100
"""One of so many jobs has its input at a server that answers."""
BESIDE = {"slow": 400, "hanging": 250}
"""How many jobs of each kind lie beside the others: more than three consumers hold, or do between two looks."""
DOWNLOAD_SECONDS = 1.0
DEAD_AT = {"transfer": 10, "lease_expired": 5}
"""The attempts at which a run is dead, by cause."""
SEED = int(os.environ.get("SOAK_SEED") or time.time())
CONSUMERS = 3
LEASE = 2.0
AWAY = (1.2 * LEASE, 2.0 * LEASE)
"""Seconds for which a consumer stands still, or nobody reaches the store."""
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
    """Consumers of one queue; all but the first are killed or stopped now and then, and started again.

    `outage` is a context in which nobody reaches the store.
    """

    def __init__(self, folder, url, *flags, services=("service",), outage=None):
        self.folder, self.url, self.flags = folder, url, flags
        self.module = write_module(folder, SOURCE)
        self.services = [f"{self.module}:{name}" for name in services]
        self.outage = outage
        self.started = self.kills = self.stalls = self.outages = 0
        self._disturbances = itertools.cycle(("kill", "stall", "stop", "outage"))
        self.stopped = {}
        """When which consumer was told to stop."""
        self.consumers = [self.start() for _ in range(CONSUMERS)]

    def start(self):
        flags = ("--queue-url", self.url, "--lease", f"{LEASE:g}", "--poll-interval", "0.05", *self.flags)
        env = {"CONSUMER": str(self.started)}
        self.started += 1
        consumer = Program(self.folder, *PENSTOCK, "consume", *self.services, *flags, env=env)
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
            case "outage":
                with self.outage(chance):
                    time.sleep(chance.uniform(*AWAY))
                self.outages += 1

    def all_were_there(self):
        """Whether there was each kind of trouble."""
        return self.kills and self.stalls and self.stopped and self.outages

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

    def ran_slow(self):
        """How often the slow one has run each; after a stop too, where its worker died before."""
        return Counter(number for _, _, numbers in notes(self.folder / "ran-slow") for number in numbers)

    def destroy(self):
        for each in self.consumers:
            each.destroy()


class Silent(socketserver.BaseRequestHandler):
    """Takes all that is sent, and never answers."""

    def handle(self):
        with contextlib.suppress(ConnectionError):  # the consumer was killed
            while self.request.recv(65536):
                pass


class Answering(BaseHTTPRequestHandler):
    """Answers with the number that is the path."""

    def do_GET(self):
        body = self.path.removeprefix("/").encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *words):
        """Nothing is logged."""


class Host(socketserver.ThreadingTCPServer):
    request_queue_size = 1000
    daemon_threads = True


@contextmanager
def host(handler):
    """The URL of a server on this host."""
    with Host(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Beside:
    """Jobs of the slow service and jobs whose input never comes: as many as there are to be, until that is enough."""

    def __init__(self, store, silent):
        self.store, self.silent = store, silent
        self.submitted = dict.fromkeys(BESIDE, 0)
        self.open = {kind: [] for kind in BESIDE}
        """Those that had not ended when it was looked."""

    def top_up(self):
        """Submit more for those that have ended."""
        for kind, many in BESIDE.items():
            first = self.submitted[kind]
            numbers = range(first, first + many - len(self.open[kind]))
            made = [self.new(kind, n) for n in numbers]
            self.submitted[kind] += len(made)
            self.open[kind] += [job.id for job in made]
            self.store.submit(made)

    def new(self, kind, n):
        name = f"{kind}-{n:07}"
        if kind == "slow":
            return NewJob(name, b"%d" % n, digest=name, service="slow")
        return NewJob(name, digest=name, service="double", input_url=f"{self.silent}/{n}")

    def look(self):
        """Find out which have ended."""
        self.open = {kind: still_open(self.store, names) for kind, names in self.open.items()}


def still_open(store, names):
    """Those of these jobs that have not ended; it is looked at no more of them than up to a page with such a job."""
    while names and not (page := [job.id for job in store.get(names[:PAGE]) if job.state not in ENDED]):
        names = names[PAGE:]
    return page + names[PAGE:] if names else []


def submitted(store, count, answering):
    """Submit the ordinary jobs; their ids."""
    names = [f"job-{n:07}" for n in range(count)]
    for first in range(0, count, PAGE):
        jobs = []
        for n in range(first, min(first + PAGE, count)):
            what = {"input_url": f"{answering}/{n}"} if n % FETCHED_EVERY == 3 else {"body": b"%d" % n}
            jobs.append(NewJob(names[n], digest=str(n), service="double", **what))
        store.submit(jobs)
    return names


def all_jobs(store):
    """Every job, page by page."""
    after = None
    while page := store.list_jobs(None, PAGE, after):
        yield from page
        after = page[-1].id


def check(store, job: Job, ran: Counter[int], result=lambda number: 2 * number, dies: bool = False) -> None:
    """It succeeded, with its own result.

    Each attempt before was lost to another, or given back and never run, or its input did not come in time, or it was
    the one whose worker `dies`.
    """
    assert job.state is JobState.SUCCEEDED, job
    number = int(job.id.partition("-")[2])
    causes = [attempt.cause for attempt in job.attempts]
    assert causes[-1] == "succeeded", job
    may_be = {"lease_expired", "released"}
    may_be |= ({"transfer"} if job.input_url else set()) | ({"worker_lost"} if dies else set())
    assert set(causes[:-1]) <= may_be, job
    check_history(job)
    assert 1 <= ran[number] <= 1 + job.failures.get("lease_expired", 0) + dies, (ran[number], job)
    assert json.loads(store.result(job.id).body) == result(number), job


def check_history(job: Job) -> None:
    """What a consumer has lost another has claimed."""
    for before, after in pairwise(job.attempts):
        assert before.cause != "lease_expired" or before.consumer_id != after.consumer_id, job


def check_slow(store, job: Job, ran: Counter[int]) -> None:
    """It succeeded likewise, though the worker may have died once under it."""
    number = int(job.id.partition("-")[2])
    check(store, job, ran, lambda number: number + 1, dies=number % DIES_EVERY == 7)


def check_hanging(store, job: Job) -> None:
    """It is dead because its input never came; or each of its holders was gone, as often as may be."""
    assert job.state is JobState.DEAD, job
    *causes, last = [attempt.cause for attempt in job.attempts]
    assert set(causes) <= {"transfer", "lease_expired", "released"}, job
    assert last in {"dead", "lease_expired"}, job
    cause = cause_of_death(job.failures)
    assert cause in DEAD_AT, job
    assert job.failures[cause] == DEAD_AT[cause], job
    check_history(job)
    assert store.result(job.id) is None, job


@contextmanager
def a_store(kind, folder):
    """The URL of a queue in a store of this kind, and a context in which nobody reaches it."""

    @contextmanager
    def locked(chance):
        with contextlib.closing(sqlite3.connect(folder / "q.db", isolation_level=None, timeout=60.0)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def gone(chance):
        away, back = chance.choice([(server.pause, server.go_on), (server.kill, server.start)])
        away()
        try:
            yield
        finally:
            back()

    if kind == "sqlite":
        yield f"sqlite:///{folder}/q.db", locked
    else:
        with private_redis("--appendfsync", "always") as server:
            yield server.url, gone


@pytest.mark.parametrize("kind", JOBS)
def test_no_job_is_lost_or_done_twice_while_consumers_are_killed_and_stopped(kind, tmp_path, capsys):
    chance = random.Random(SEED)
    with capsys.disabled(), ExitStack() as opened:
        print(f"\nseed {SEED}: {JOBS[kind]} jobs in {kind}")  # noqa: T201  # to run it again as it was
        url, outage = opened.enter_context(a_store(kind, tmp_path))
        store = opened.enter_context(contextlib.closing(open_store(url)))
        beside = Beside(store, opened.enter_context(host(Silent)))
        beside.top_up()
        ordinary = submitted(store, JOBS[kind], opened.enter_context(host(Answering)))
        flags = ("--allow-net", "127.0.0.0/8", "--transfer-timeout", f"{DOWNLOAD_SECONDS:g}", "--retry-backoff", "0.01")
        fleet = Fleet(tmp_path, url, *flags, services=("service", "slow"), outage=outage)
        try:
            survivor = fleet.consumers[0]
            survivor.wait_for("working on ")
            began = time.monotonic()
            memory = 0
            while ordinary or any(beside.open.values()):
                time.sleep(chance.uniform(*BETWEEN_KILLS))
                assert survivor.process.poll() is None, survivor.output
                assert time.monotonic() - began < PATIENCE_SECONDS, store.stats()
                fleet.disturb(chance)
                ordinary = still_open(store, ordinary)
                beside.look()
                if ordinary or not fleet.all_were_there():
                    beside.top_up()
                if not memory and len(ordinary) < 0.9 * JOBS[kind]:
                    memory = resident(survivor.pid)
            seconds = time.monotonic() - began
            grown = resident(survivor.pid) - memory
            fleet.stop(fleet.consumers)
        finally:
            fleet.destroy()
        lost, causes, ran, ran_slow = Counter(), Counter(), fleet.ran(), fleet.ran_slow()
        counts, last_causes, spans = Counter(), Counter(), {each: [] for each in BESIDE}
        last = 0.0
        for job in all_jobs(store):
            match job.id.partition("-")[0]:
                case "job":
                    check(store, job, ran)
                    lost[job.failures.get("lease_expired", 0)] += 1
                    last = max(last, job.finished_at)
                case "slow":
                    check_slow(store, job, ran_slow)
                case "hanging":
                    check_hanging(store, job)
                    last_causes[str(cause_of_death(job.failures))] += 1
            name = job.id.partition("-")[0]
            counts[name] += 1
            if name in spans:
                spans[name].append((job.created_at, job.finished_at))
            causes.update(attempt.cause for attempt in job.attempts)
        still_there = {name: sum(created < last < ended for created, ended in found) for name, found in spans.items()}
        print(  # noqa: T201  # the figures are what it is run for
            f"{dict(counts)} ended in {seconds:.0f} s, {fleet.kills} kills, {len(fleet.stopped)} stops, "
            f"{fleet.stalls} stalls, {fleet.outages} outages; {ran.total() - counts['job']} runs again; "
            f"attempts: {dict(causes)}; how many jobs lost how many leases: {dict(lost)}; "
            f"hanging ones died of {dict(last_causes)}; beside the last of the others were {still_there}; "
            f"MiB of who was not killed: {memory / 2**20:.1f}, grown by {grown / 2**20:.1f}"
        )
        assert counts == {"job": JOBS[kind], **beside.submitted}
        assert all(still_there.values())
        assert last_causes["transfer"]
        assert fleet.all_were_there()
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
            until_now(lambda: not (stats := self.store.stats()).queued + stats.running, "all jobs to end", 120)
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
