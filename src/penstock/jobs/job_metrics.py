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
            "Jobs that this consumer finished, by final state.",
            queue,
            "outcome",
            counters.ended,
        )
        yield _counter(
            "penstock_jobs_attempts",
            "Attempts of this consumer that failed or were released, by cause. application: a stage "
            "raised. worker_lost: a worker died or hung. transfer: an input or output could not be "
            "transferred. invalid_input: the input is invalid.",
            queue,
            "cause",
            counters.attempts,
        )
        yield _counter(
            "penstock_jobs_renewals",
            "Lease renewals, by result. unknown: the store did not respond. lost: another consumer holds the job.",
            queue,
            "answer",
            {answer.value: n for answer, n in consumer.renewing.answers.items()},
        )
        yield _gauge(
            "penstock_jobs_in_flight", "Jobs that this consumer holds a lease of.", queue, len(consumer.holding)
        )
        yield _gauge(
            "penstock_jobs_buffered_bytes",
            "Bytes of inputs and results in memory. At max_buffered_bytes no more jobs are claimed.",
            queue,
            consumer.holding.nbytes,
        )
        steps = HistogramMetricFamily(
            "penstock_jobs_step_seconds",
            "Duration of each step of a job. compute includes the wait for a worker.",
            labels=("step",),
        )
        for step, histogram in counters.steps.items():
            add_histogram(steps, (step.value,), histogram)
        yield steps
        yield from self._stats(queue)
        yield _gauge(
            "penstock_jobs_store_up",
            "1 if the last call to the store succeeded.",
            queue,
            float(consumer.store_watch.up),
        )

    def _stats(self, queue: str) -> Iterator[Metric]:
        """What lay in the queue when the consumer last asked: at most some seconds ago."""
        stats = self._consumer.counters.stats
        states = GaugeMetricFamily(
            "penstock_jobs_state", "Jobs in the queue, by state, over all consumers.", labels=("queue", "state")
        )
        if stats is not None:
            for state in JobState:
                states.add_metric((queue, state.value), getattr(stats, state.value))
        yield states
        if stats is not None:
            yield _gauge(
                "penstock_jobs_oldest_queued_seconds",
                "Time that the oldest queued job has waited.",
                queue,
                stats.oldest_queued_seconds,
            )
            yield _gauge(
                "penstock_jobs_backlog_seconds",
                "Estimated work in the queue: queued jobs times model seconds per job. Divide by the number "
                "of workers for the time to completion.",
                queue,
                stats.estimated_backlog_seconds,
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
