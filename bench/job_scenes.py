"""The scenes of the bench of the job queue: each plays once with stores of its own, and tells what it saw.

Consumers are real processes.  What a scene tells is a number for each name in its table of figures, see `jobs.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import msgspec

from builds import HERE, Build
from job_figures import idle_share, largest_share, share_of_rest
from job_services import BATCH_SECONDS, CALLS
from loadgen import LoadResult, run_load
from payload import BODY
from penstock.jobs import connect
from penstock.jobs.job import Job
from queue_floor import FloorSeen
from queues import ConsumerProcess, consumer, redis_server, slow_web
from servers import ServerFailed, free_port

AT_MOST = 600.0
"""Seconds after which a queue that is not empty ends the bench."""
IDLE_SECONDS = 10.0
POLL_SECONDS = 0.2
LEASE_SECONDS = 2.0
TRANSFER_SECONDS = 0.15
"""How long each download and each upload takes."""
HTTP_SECONDS = 4.0
HTTP_WARMUP = 0.5
HTTP_CONNECTIONS = 16
BACKLOG = 30_000
"""Jobs: more than are done in two times HTTP_SECONDS."""


@dataclass
class Setting:
    """Where scenes play: the folder, the stores, the build, and how many no-op jobs a round has."""

    folder: Path
    build: Build
    jobs: int
    stack: ExitStack
    number: int = 0

    @cached_property
    def redis(self) -> str:
        """The URL of the run's own server, which is started for the first scene that needs it."""
        return self.stack.enter_context(redis_server(self.folder))

    def place(self, store: str) -> str:
        """The URL of a queue in `store` that nobody has used."""
        self.number += 1
        if store == "sqlite":
            return f"sqlite:///{self.folder}/q{self.number}.db"
        return f"{self.redis}?queue=q{self.number}"


Values = dict[str, float]


def throughput(store: str) -> Callable[[Setting], Values]:
    """A scene: the floor, a no-op service, and the floor once more, each with all jobs there before it begins."""

    def play(setting: Setting) -> Values:
        before = floor_seen(setting, store)
        url = setting.place(store)
        submit(url, [{"input": 1}] * setting.jobs)
        with connect(url) as queue, consumer_of_paused(setting, "no_op", url) as process:
            consumer_before, workers_before = process.cpu_seconds()
            queue.resume()
            wait_empty(url)
            consumer_after, workers_after = process.cpu_seconds()
        jobs = all_jobs(url)
        check_succeeded(jobs)
        after = floor_seen(setting, store)
        floor = (before.jobs + after.jobs) / (before.seconds + after.seconds)
        rate = len(jobs) / (
            max(job.finished_at or 0.0 for job in jobs) - min(job.attempts[0].started_at for job in jobs)
        )
        return {
            "jobs/s": rate,
            "jobs/s of the floor": floor,
            "jobs/s, penstock / floor": rate / floor,
            "consumer CPU, us a job": (consumer_after - consumer_before) / len(jobs) * 1e6,
            "workers' CPU, us a job": (workers_after - workers_before) / len(jobs) * 1e6,
        }

    return play


def floor_seen(setting: Setting, store: str) -> FloorSeen:
    """What the floor takes for as many jobs, in a queue of its own."""
    url = f"sqlite:///{setting.folder}/floor.db" if store == "sqlite" else setting.redis
    command = [sys.executable, str(HERE / "queue_floor.py"), url, "--jobs", str(setting.jobs)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise ServerFailed(f"the floor ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    return msgspec.json.decode(done.stdout, type=FloorSeen)


def overlap(setting: Setting) -> Values:
    """A scene: downloads, computing and uploads of different jobs overlap."""
    url, calls = setting.place("sqlite"), setting.folder / f"calls{setting.number}"
    with slow_web(TRANSFER_SECONDS) as web:
        submit(url, [{"input_url": f"{web}/in/{n}", "output_url": f"{web}/out/{n}"} for n in range(300)])
        flags = ("--allow-net", "127.0.0.0/8")
        with consumer("computing", url, *flags, build=setting.build, variables={CALLS: str(calls)}):
            wait_empty(url)
    check_succeeded(all_jobs(url))
    seen = [tuple(map(float, line.split())) for line in calls.read_text().splitlines()]
    return {"time in which the worker idles": idle_share([(began, done) for began, done in seen])}


def fairness(setting: Setting) -> Values:
    """A scene: two idle consumers get 200 jobs at once."""
    url = setting.place("sqlite")
    with consumer("short", url, build=setting.build), consumer("short", url, build=setting.build):
        submit(url, [{"input": 1}] * 200)
        wait_empty(url)
    jobs = all_jobs(url)
    check_succeeded(jobs)
    return {"jobs of the busier of two": largest_share([job.attempts[-1].consumer_id for job in jobs])}


def beside_http(setting: Setting) -> Values:
    """A scene: HTTP alone, jobs alone, and HTTP beside a backlog of jobs."""
    url, port = setting.place("sqlite"), free_port()
    with consumer("paced", url, "--bind", f"127.0.0.1:{port}", build=setting.build):
        alone = http_load(port)
        submit(url, [{"input": msgspec.Raw(BODY)}] * BACKLOG)
        time.sleep(1.0)  # the consumer claims all it may
        capacity = jobs_done(url, lambda: time.sleep(HTTP_SECONDS))
        both: list[LoadResult] = []
        jobs = jobs_done(url, lambda: both.append(http_load(port)))
    (beside,) = both
    http = beside.completed / (beside.seconds + HTTP_WARMUP)
    return {
        "HTTP p99 alone, ms": alone.p99_us / 1e3,
        "HTTP p99 beside jobs, ms": beside.p99_us / 1e3,
        "rise of p99, batch times": (beside.p99_us - alone.p99_us) / 1e6 / BATCH_SECONDS,
        "requests/s beside jobs": http,
        "jobs/s alone": capacity,
        "jobs/s beside HTTP": jobs,
        "jobs, of what HTTP leaves": share_of_rest(jobs, http, capacity),
    }


def http_load(port: int) -> LoadResult:
    return run_load(port, "/predict", connections=HTTP_CONNECTIONS, seconds=HTTP_SECONDS, warmup=HTTP_WARMUP)


def jobs_done(url: str, meanwhile: Callable[[], object]) -> float:
    """The jobs a second that succeed while `meanwhile` is called."""
    with connect(url) as queue:
        before, begin = queue.stats().succeeded, time.monotonic()
        meanwhile()
        found = queue.stats()
        seconds = time.monotonic() - begin
    if not found.queued:
        raise ServerFailed("the backlog of jobs was too short")
    return (found.succeeded - before) / seconds


def idle(store: str) -> Callable[[Setting], Values]:
    """A scene: a consumer whose queue is empty."""

    def play(setting: Setting) -> Values:
        with consumer(
            "no_op", setting.place(store), "--poll-interval", str(POLL_SECONDS), build=setting.build
        ) as process:
            time.sleep(2.0)  # what a start does is over
            before, begin = process.cpu_seconds()[0], time.monotonic()
            time.sleep(IDLE_SECONDS)
            spent = process.cpu_seconds()[0] - before
            return {"CPU, of one core": spent / (time.monotonic() - begin)}

    return play


def reclaim(store: str) -> Callable[[Setting], Values]:
    """A scene: of two consumers that are at work one is killed."""

    def play(setting: Setting) -> Values:
        url = setting.place(store)
        flags = ("--lease", str(LEASE_SECONDS), "--poll-interval", str(POLL_SECONDS))
        with (
            consumer("short", url, *flags, build=setting.build) as first,
            consumer("short", url, *flags, build=setting.build),
            connect(url) as queue,
        ):
            submit(url, [{"input": 1}] * 100)
            wait_until(lambda: queue.stats().succeeded >= 20)
            first.kill()
            killed = time.time()
            wait_empty(url)
        jobs = all_jobs(url)
        check_succeeded(jobs)
        later = [
            after.started_at - killed
            for job in jobs
            for before, after in pairwise(job.attempts)
            if before.cause == "lease_expired"
        ]
        if not later:
            raise ServerFailed("the consumer that was killed held no job")
        return {"seconds from the kill to the next claim": max(later)}

    return play


# -- queues -----------------------------------------------------------------------------------------------------------


def submit(url: str, entries: Sequence[dict[str, object]]) -> None:
    """Submit jobs, a thousand at a time."""
    with connect(url) as queue:
        for first in range(0, len(entries), 1000):
            queue.submit_many(entries[first : first + 1000])


@contextmanager
def consumer_of_paused(setting: Setting, service: str, url: str) -> Iterator[ConsumerProcess]:
    """A consumer that is ready, and that claims nothing before the queue is resumed."""
    with connect(url) as queue:
        queue.pause()
    with consumer(service, url, build=setting.build) as process:
        yield process


def wait_empty(url: str) -> None:
    """Return when nothing is scheduled, waiting or leased."""
    with connect(url) as queue:
        wait_until(lambda: not ((seen := queue.stats()).scheduled or seen.queued or seen.running))


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds, which is asked five times a second.  Raises ServerFailed after AT_MOST seconds."""
    end = time.monotonic() + AT_MOST
    while not condition():
        if time.monotonic() > end:
            raise ServerFailed(f"the jobs were not done in {AT_MOST:g} s")
        time.sleep(0.2)


def all_jobs(url: str) -> list[Job]:
    """Every job of the queue, in the order of submission."""
    jobs: list[Job] = []
    with connect(url) as queue:
        while found := queue.list(limit=1000, after=jobs[-1].id if jobs else None):
            jobs += found
    return jobs


def check_succeeded(jobs: Sequence[Job]) -> None:
    """Raise ServerFailed unless every job has succeeded: a figure would mean nothing."""
    wrong = [job for job in jobs if job.state != "succeeded"]
    if wrong:
        raise ServerFailed(f"{len(wrong)} jobs have not succeeded, as {wrong[0]}")
