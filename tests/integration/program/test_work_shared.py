"""Several consumers on one queue: none takes more than its share."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from served import PENSTOCK, Program
from waiting import until_now

from penstock import jobs

SERVICE = """
import time

import penstock as ps


class Short(ps.Stage):
    def predict(self, x: int) -> int:
        time.sleep(0.05)
        return x


service = ps.Service(Short, name="short")
"""
JOBS = 200
"""So many that one late look of a consumer, a few jobs long, does not decide."""


@pytest.fixture
def two_consumers(tmp_path):
    (tmp_path / "short.py").write_text(SERVICE)
    url = f"sqlite:///{tmp_path}/q.db"
    consumers = [Program(tmp_path, *PENSTOCK, "consume", "short:service", "--queue-url", url) for _ in range(2)]
    yield url, consumers
    for consumer in consumers:
        consumer.destroy()


def test_neither_of_two_idle_consumers_takes_more_than_60_percent_of_short_jobs(two_consumers):
    url, consumers = two_consumers
    for consumer in consumers:
        consumer.wait_for("working on")
    with jobs.connect(url) as q:
        q.submit_many([{"input": n} for n in range(JOBS)])
        until_now(lambda: q.stats().succeeded == JOBS, "all jobs are done", patience=40.0)
        done = Counter(job.attempts[-1].consumer_id for job in q.list(state="succeeded", limit=JOBS))
    assert len(done) == 2
    assert max(done.values()) <= 0.6 * JOBS, done
    for consumer in consumers:
        consumer.signal(signal.SIGTERM)
        assert consumer.wait() == 0, consumer.output
