"""The numbers of a consumer as metrics for Prometheus, read and named at scrape time; nobody is asked for them then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.hosting.service_metrics import add_histogram
from penstock.jobs.held_work import Holding
from penstock.jobs.job_counters import JobCounters
from penstock.jobs.renewing import Renewing
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store_watch import StoreWatch


class Counted(Protocol):
    """The consumer, as its metrics see it."""

    counters: JobCounters
    holding: Holding
    renewing: Renewing
    store_watch: StoreWatch

    @property
    def queue(self) -> str:
        """The name of its queue, or "" before the start."""


class JobCollector(Collector):
    """Reads a consumer when it is asked to."""

    def __init__(self, consumer: Counted) -> None:
        self._consumer = consumer

    def collect(self) -> Iterator[Metric]:
        """Every family once."""
        consumer, counters, queue = self._consumer, self._consumer.counters, self._consumer.queue
        yield _counter(
            "penstock_jobs_ended",
            "Runs of jobs that this consumer has ended, by the state that they ended in.",
            queue,
            "outcome",
            counters.ended,
        )
        yield _counter(
            "penstock_jobs_attempts",
            "Attempts of this consumer that failed or were released, by cause. application: a stage raised. crash: a "
            "worker died or hung. transfer: an input or output could not be moved. input: the job is at fault itself.",
            queue,
            "cause",
            counters.attempts,
        )
        yield _counter(
            "penstock_jobs_renewals",
            "Leases renewed, by answer. unknown: the store did not answer. lost: another consumer has the job.",
            queue,
            "answer",
            {answer.value: n for answer, n in consumer.renewing.answers.items()},
        )
        yield _gauge("penstock_jobs_held", "Jobs that this consumer has leased.", queue, len(consumer.holding))
        yield _gauge(
            "penstock_jobs_held_bytes",
            "Bytes of inputs and results in memory. At max_held_bytes nothing more is claimed.",
            queue,
            consumer.holding.nbytes,
        )
        steps = HistogramMetricFamily(
            "penstock_jobs_step_seconds",
            "Time that each step of a job took. compute: the wait for a worker included.",
            labels=("step",),
        )
        for step, histogram in counters.steps.items():
            add_histogram(steps, (step.value,), histogram)
        yield steps
        yield from self._stats(queue)
        yield _gauge(
            "penstock_jobs_store_up", "1 if the store answered the last call.", queue, float(consumer.store_watch.up)
        )

    def _stats(self, queue: str) -> Iterator[Metric]:
        """What lay in the queue when the consumer last asked: at most some seconds ago."""
        stats = self._consumer.counters.stats
        states = GaugeMetricFamily(
            "penstock_jobs_state", "Jobs in the queue, by state; of all consumers.", labels=("queue", "state")
        )
        if stats is not None:
            for state in JobState:
                states.add_metric((queue, state.value), getattr(stats, state.value))
        yield states
        if stats is not None:
            yield _gauge(
                "penstock_jobs_oldest_waiting_seconds",
                "How long the oldest waiting job has waited.",
                queue,
                stats.oldest_waiting,
            )
            yield _gauge(
                "penstock_jobs_backlog_seconds",
                "The waiting jobs times the seconds of model that one takes: divide by the workers to know when they "
                "are done.",
                queue,
                stats.backlog_seconds,
            )


def _counter(name: str, words: str, queue: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, words, labels=("queue", label))
    for value, n in sorted(counts.items()):
        family.add_metric((queue, value), n)
    return family


def _gauge(name: str, words: str, queue: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, words, labels=("queue",))
    family.add_metric((queue,), value)
    return family
