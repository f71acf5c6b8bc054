"""The plain counters of services and their stages as metrics for Prometheus, read and named at scrape time.

No request touches anything here.  Names begin with ``penstock_``, units are seconds, bytes, items or batches, and each
help text says what the number means to an operator who looks for a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.core.counters import REJECTED, Histogram, StageCounters
from penstock.core.series import OWN, USER
from penstock.core.state import State, WorkerState
from penstock.hosting.build import is_compiled
from penstock.hosting.handing_over import dropped_lines
from penstock.hosting.servable import HostedEngine, Servable, StageView
from penstock.hosting.service_health import state_of, version
from penstock.hosting.slab_metrics import slab_families

STAGE = ("service", "stage")

ENDINGS = ("succeeded", "failed", "invalid", "expired", "cancelled", "worker_lost", "aborted", "preempted")
"""What may become of an accepted item: counters of a service, and the label of a metric."""


class ServiceCollector(Collector):
    """Reads services and their engines when it is asked to."""

    def __init__(self, services: Sequence[Servable]) -> None:
        self._services = services
        self._version = version()

    def collect(self) -> Iterator[Metric]:
        """Every family once, with a sample for each service or stage."""
        yield InfoMetricFamily(
            "penstock",
            "The build of Penstock. compiled is false for plain Python: a request costs about twice as much.",
            value={"version": self._version, "compiled": "true" if is_compiled() else "false"},
        )
        yield _dropped_lines()
        yield _versions(self._services)
        yield _states(self._services)
        running = [(service, engine) for service in self._services if (engine := service.engine) is not None]
        yield from _service_families(running)
        yield from _tenant_families(running)
        yield from slab_families(running)
        stages = [(service.name, stage) for service, engine in running for stage in engine.stages]
        yield from _stage_gauges(stages)
        yield from _stage_counters(stages)
        yield from _stage_histograms(stages)
        yield from _counted_families(stages)


def _dropped_lines() -> Metric:
    return CounterMetricFamily(
        "penstock_log_lines_dropped",
        "Lines of this process's output that were dropped: the reader was too slow and 8 MiB were "
        "buffered, or writing failed. The log has a notice where lines are missing. Lines of workers "
        "are not counted here.",
        value=dropped_lines(),
    )


def _versions(services: Sequence[Servable]) -> Metric:
    family = InfoMetricFamily(
        "penstock_service",
        "The version of each service, as its author set it; for a trained model the digest of its "
        "artifact, with model_version, its number in the model directory that it was loaded from.",
        labels=("service",),
    )
    for service in services:
        number = "" if service.model_version is None else str(service.model_version)
        family.add_metric((service.name,), {"version": service.version, "model_version": number})
    return family


def _states(services: Sequence[Servable]) -> Metric:
    family = GaugeMetricFamily(
        "penstock_state",
        "1 for the current state of the service, 0 for the others. ready and busy accept traffic; "
        "busy rejects new work because it is full; stalled accepts work, but a stage with work has "
        "completed no batch for long; failed means that a stage has no worker, because none can be "
        "started or because all that its workers ran failed. A failed stage is retried automatically.",
        labels=("service", "state"),
    )
    for service in services:
        current = state_of(service)
        for state in State:
            family.add_metric((service.name, state.value), float(state is current))
    return family


def _service_families(running: Sequence[tuple[Servable, HostedEngine]]) -> Iterator[Metric]:
    accepted = CounterMetricFamily("penstock_items_accepted", "Items accepted.", labels=("service",))
    refused = CounterMetricFamily(
        "penstock_items_rejected",
        "Items rejected before they were accepted, by reason. queue_full: max_in_flight is reached. "
        "memory_budget: max_queued_bytes is reached. deadline: predicted to miss its deadline. quota: "
        "the tenant has used up its quota. memory_pressure: free memory is below min_free_memory. "
        "not_ready: the service accepts no work. A client batch rejected at its head counts as one.",
        labels=("service", "reason"),
    )
    ended = CounterMetricFamily(
        "penstock_items_ended",
        "Accepted items by outcome. failed: a stage raised. invalid: the client's input. expired: "
        "its deadline passed. cancelled: the client disconnected. worker_lost: its worker was lost "
        "twice. aborted: the service stopped or a stage failed first, or it was dropped to free bytes "
        "of results. preempted: an item of a tenant below its share, or of a better urgency, took its "
        "room.",
        labels=("service", "ending"),
    )
    gauges = {
        "queued": ("penstock_items_in_flight", "Accepted items without an outcome, queued or running."),
        "max_queued": (
            "penstock_items_in_flight_limit",
            "Limit of items in flight (max_in_flight): above it new work is rejected.",
        ),
        "backlog": (
            "penstock_backlog_seconds",
            (
                "Estimated time to complete all items in flight, by recent run times; 0 if there are none. "
                "Use it to scale."
            ),
        ),
        "held": ("penstock_reserved_bytes", "Bytes of queued payloads, partly received bodies and unsent responses."),
        "answers": (
            "penstock_unsent_response_bytes",
            (
                "Bytes of completed responses that wait for their turn or for a slow client. Above the "
                "limit nothing is run."
            ),
        ),
        "max_held": (
            "penstock_reserved_bytes_limit",
            (
                "Limit of bytes of completed responses, and again of all others (max_queued_bytes): above "
                "it new work is rejected."
            ),
        ),
    }
    made = {key: GaugeMetricFamily(*words, labels=("service",)) for key, words in gauges.items()}
    for service, engine in running:
        label = (service.name,)
        accepted.add_metric(label, engine.counters.accepted)
        for reason, attribute in REJECTED.items():
            refused.add_metric((service.name, reason), getattr(engine.counters, attribute))
        for ending in ENDINGS:
            ended.add_metric((service.name, ending), getattr(engine.counters, ending))
        made["queued"].add_metric(label, engine.queued)
        made["max_queued"].add_metric(label, service.options.max_in_flight)
        made["backlog"].add_metric(label, engine.backlog_seconds)
        made["held"].add_metric(label, engine.held_bytes)
        made["answers"].add_metric(label, engine.answer_bytes)
        made["max_held"].add_metric(label, service.options.max_queued_bytes)
    yield from (accepted, refused, ended, *made.values())
    watched = [(service.name, left) for service, engine in running if (left := engine.memory_available) is not None]
    if watched:
        memory = GaugeMetricFamily(
            "penstock_memory_available_bytes",
            "Free bytes of memory of the cgroup or the machine; below min_free_memory new work is "
            "rejected. Only for services with that option.",
            labels=("service",),
        )
        for name, left in watched:
            memory.add_metric((name,), left)
        yield memory


def _tenant_families(running: Sequence[tuple[Servable, HostedEngine]]) -> Iterator[Metric]:
    rest = "The 100 busiest by name, the rest as `other`; no series if no tenant has a name."
    labels = ("service", "tenant")
    accepted = CounterMetricFamily(
        "penstock_tenant_items_accepted", f"Items accepted, by tenant. {rest}", labels=labels
    )
    refused = CounterMetricFamily(
        "penstock_tenant_items_rejected",
        f"Items rejected, by tenant, for any reason. {rest}",
        labels=labels,
    )
    waited = CounterMetricFamily(
        "penstock_tenant_queue_seconds",
        "Seconds that the items of a tenant spent in the queues of the stages, in total. Its rate "
        f"divided by the rate of accepted items is the mean queue time. {rest}",
        labels=labels,
    )
    for service, engine in running:
        for name, numbers in engine.tenant_rows():
            accepted.add_metric((service.name, name), numbers.accepted)
            refused.add_metric((service.name, name), numbers.refused)
            waited.add_metric((service.name, name), numbers.waited)
    yield from (accepted, refused, waited)


def _stage_gauges(stages: Sequence[tuple[str, StageView]]) -> Iterator[Metric]:
    queued = GaugeMetricFamily(
        "penstock_stage_queued_items",
        "Items queued for a worker of this stage. If it grows while the workers are busy, this stage "
        "is the bottleneck.",
        labels=STAGE,
    )
    in_flight = GaugeMetricFamily(
        "penstock_stage_in_flight_items", "Items sent to workers and not completed yet.", labels=STAGE
    )
    workers = GaugeMetricFamily(
        "penstock_stage_workers",
        "Workers by state. idle and busy are up; down is dead and will be restarted.",
        labels=(*STAGE, "state"),
    )
    up = GaugeMetricFamily(
        "penstock_stage_workers_up", "Workers that are set up and can run batches: idle or busy.", labels=STAGE
    )
    age = GaugeMetricFamily(
        "penstock_stage_progress_age_seconds",
        "Seconds since this stage last completed a batch, or since work arrived where it had none. 0 "
        "while it has no work. From progress_deadline on the service is unready.",
        labels=STAGE,
    )
    hold = GaugeMetricFamily(
        "penstock_stage_last_batch_delay_seconds",
        "Last delay that a free worker waited to fill a batch (max_wait); 0: no delay.",
        labels=STAGE,
    )
    size = GaugeMetricFamily(
        "penstock_stage_max_size",
        "Current maximum size of a batch: that of its policy, or less after memory ran out.",
        labels=STAGE,
    )
    device = GaugeMetricFamily(
        "penstock_worker_device_memory_bytes",
        "Bytes of device memory that torch's caching allocator has reserved in a worker, as reported "
        "with its last batches. Only for workers of stages that use CUDA by torch; memory that CUDA "
        "itself uses is not counted.",
        labels=(*STAGE, "worker"),
    )
    for service, stage in stages:
        label = (service, stage.name)
        for worker in stage.workers:
            if worker.device_memory is not None:
                device.add_metric((*label, str(worker.index)), worker.device_memory)
        size.add_metric(label, stage.max_size)
        hold.add_metric(label, stage.hold_seconds)
        age.add_metric(label, stage.progress_age)
        queued.add_metric(label, stage.queued)
        in_flight.add_metric(label, stage.in_flight)
        states = [worker.state for worker in stage.workers]
        for state in WorkerState:
            workers.add_metric((*label, state.value), states.count(state))
        up.add_metric(label, sum([state.up for state in states]))
    yield from (queued, in_flight, workers, up, age, hold, size, device)


_STAGE_COUNTERS = {
    "batches": ("penstock_stage_batches", "Batches sent to workers; a batch that is run again counts again."),
    "restarts": (
        "penstock_stage_worker_restarts",
        (
            "Workers that exited and were or will be restarted: crashes, failed starts, and workers "
            "that Penstock killed because they timed out, were unhealthy or orphaned, or because their "
            "stage is paused. The log has the reason of each."
        ),
    ),
    "unhealthy_restarts": (
        "penstock_stage_worker_unhealthy_restarts",
        (
            "Workers restarted because every batch failed, and the stage's example if it has one, or "
            "because the stage's health() raised or took longer than 5 s."
        ),
    ),
    "orphan_kills": (
        "penstock_stage_orphan_kills",
        "Workers killed because they kept running a batch that no caller waited for. The log has the worker's stacks.",
    ),
    "retried": ("penstock_stage_retried_items", "Items run again because their worker was lost."),
    "devices_lost": (
        "penstock_stage_devices_lost",
        "Workers restarted because their device was lost: a batch failed, and what ran well before failed too.",
    ),
    "shortages": (
        "penstock_stage_out_of_memory",
        "Batches that ran out of memory and were run in halves. max_size shows the current limit.",
    ),
    "bisected": (
        "penstock_stage_bisected_batches",
        "Batches that raised as a whole and were split to find the failing items.",
    ),
}


def _stage_counters(stages: Sequence[tuple[str, StageView]]) -> Iterator[Metric]:
    for attribute, (name, words) in _STAGE_COUNTERS.items():
        family = CounterMetricFamily(name, words, labels=STAGE)
        for service, stage in stages:
            family.add_metric((service, stage.name), getattr(stage.counters, attribute))
        yield family
    held = CounterMetricFamily(
        "penstock_stage_batch_delay_seconds",
        "Total time that a worker was free while items waited to fill a batch (max_wait), for delays that have ended.",
        labels=STAGE,
    )
    for service, stage in stages:
        held.add_metric((service, stage.name), stage.held_seconds)
    yield held
    cuts = CounterMetricFamily(
        "penstock_stage_batches_closed",
        "Batches by the reason they were closed: full, idle (a worker was free and no delay was "
        "set), adaptive (after a delay: all expected items arrived, or more were not worth the wait), "
        "adaptive_timeout (the longest useful delay), timeout (max_wait), idle_gap (max_idle_gap), bulk "
        "(a client batch is never delayed), background (nor are jobs), isolated (an item that must run "
        "alone), deadline, drain, retry (alone, after a worker was lost).",
        labels=(*STAGE, "reason"),
    )
    for service, stage in stages:
        for reason, count in sorted(stage.counters.batches_closed.items()):
            cuts.add_metric((service, stage.name, str(reason)), count)
    yield cuts


_STAGE_HISTOGRAMS = {
    "batch_size": (
        "penstock_stage_batch_items",
        "Items in a batch. If it is always 1 under load, max_size or the callers, not the model, limit throughput.",
    ),
    "queue_seconds": (
        "penstock_stage_queue_seconds",
        (
            "Time an item spent in the queue of this stage. If it is high while the run time is low: add "
            "workers or larger batches."
        ),
    ),
    "run_seconds": ("penstock_stage_run_seconds", "Time a worker spent on a batch."),
}


def _stage_histograms(stages: Sequence[tuple[str, StageView]]) -> Iterator[Metric]:
    for attribute, (name, words) in _STAGE_HISTOGRAMS.items():
        family = HistogramMetricFamily(name, words, labels=STAGE)
        for service, stage in stages:
            add_histogram(family, (service, stage.name), _histogram(stage.counters, attribute))
        yield family


def _counted_families(stages: Sequence[tuple[str, StageView]]) -> Iterator[Metric]:
    families = {name: CounterMetricFamily(f"penstock_{name}", words) for name, words in OWN.items()}
    for service, stage in stages:
        for (name, labels), total in list(stage.counters.series.items()):
            family = families.get(name)
            if family is None:
                words = f"Counted by stages themselves, as {name.removeprefix(USER)}."
                family = families[name] = CounterMetricFamily(f"penstock_{name}", words)
            # Not `add_metric`: stages that know nothing of each other may give one name different labels.
            family.add_sample(f"{family.name}_total", {"service": service, "stage": stage.name, **dict(labels)}, total)
    yield from families.values()


def _histogram(counters: StageCounters, attribute: str) -> Histogram:
    found: Histogram = getattr(counters, attribute)
    return found


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    """Add a histogram to `family`: ours counts each interval, Prometheus wants counts up to each bound."""
    buckets, below = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(below)))
    family.add_metric(labels, buckets, histogram.total)
