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

from penstock.core.counters import REFUSED, Histogram, StageCounters
from penstock.core.series import OWN, USER
from penstock.core.state import State, WorkerState
from penstock.hosting.build import is_compiled
from penstock.hosting.handing_over import dropped_lines
from penstock.hosting.servable import HostedEngine, Servable, StageView
from penstock.hosting.service_health import state_of, version
from penstock.hosting.slab_metrics import slab_families

STAGE = ("service", "stage")

ENDINGS = ("succeeded", "failed", "invalid", "expired", "cancelled", "lost", "turned_away", "displaced")
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
            "The Penstock that wrote this. compiled is false where it is plain Python: a request costs twice as much.",
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
        "Lines of this process's output that were dropped because nobody read them and 8 MiB waited, or because they "
        "could not be written. The log has a line where they are missing. Lines of workers are not counted here.",
        value=dropped_lines(),
    )


def _versions(services: Sequence[Servable]) -> Metric:
    family = InfoMetricFamily(
        "penstock_service",
        "Which version of each service runs, in the words of its author; of a trained model its artifact's digest, and "
        "as model_version its number in the model directory that it was loaded from.",
        labels=("service",),
    )
    for service in services:
        number = "" if service.model_version is None else str(service.model_version)
        family.add_metric((service.name,), {"version": service.version, "model_version": number})
    return family


def _states(services: Sequence[Servable]) -> Metric:
    family = GaugeMetricFamily(
        "penstock_state",
        "1 for the state the service is in, 0 for the others. ready and busy take traffic; busy refuses new work "
        "because it is full; stalled takes what comes, but a stage with work has given nothing back for long; failed "
        "means that a stage has no worker, because none can be started or because all that its workers ran failed. It "
        "is tried again by itself.",
        labels=("service", "state"),
    )
    for service in services:
        current = state_of(service)
        for state in State:
            family.add_metric((service.name, state.value), float(state is current))
    return family


def _service_families(running: Sequence[tuple[Servable, HostedEngine]]) -> Iterator[Metric]:
    accepted = CounterMetricFamily("penstock_items_accepted", "Items taken in.", labels=("service",))
    refused = CounterMetricFamily(
        "penstock_items_refused",
        "Items never taken in, by reason. full: so many are in hand. bytes: so many bytes are held. late: it would not "
        "have ended before its deadline. quota: its tenant has used up what it may have. memory: too little is free. "
        "not_ready: the service takes no work. A client batch refused at its head counts as one.",
        labels=("service", "reason"),
    )
    ended = CounterMetricFamily(
        "penstock_items_ended",
        "Accepted items by what became of them. failed: a stage raised. invalid: the client's input. expired: its "
        "deadline passed. cancelled: the client left. lost: a worker died twice under it. turned_away: the service "
        "stopped or a stage failed first, or client batches had gathered too many bytes of results, its own the most. "
        "displaced: it made way for an item of a tenant with less than its share, or of a better urgency.",
        labels=("service", "ending"),
    )
    gauges = {
        "queued": ("penstock_items_in_hand", "Accepted items without an outcome, wherever they are."),
        "max_queued": ("penstock_items_in_hand_limit", "Refuse new work at so many items (max_queued)."),
        "backlog": (
            "penstock_backlog_seconds",
            "How long what is in hand will take, by the runs of late; 0 while nothing is in hand: scale by it.",
        ),
        "held": ("penstock_held_bytes", "Bytes of queued payloads, half-received bodies and unread answers."),
        "answers": (
            "penstock_unread_answer_bytes",
            "Bytes of finished answers, which are not read or wait for their turn. Above the limit nothing is run.",
        ),
        "max_held": (
            "penstock_held_bytes_limit",
            "Most bytes of finished answers, and of all else: then new work is refused (max_queued_bytes).",
        ),
    }
    made = {key: GaugeMetricFamily(*words, labels=("service",)) for key, words in gauges.items()}
    for service, engine in running:
        label = (service.name,)
        accepted.add_metric(label, engine.counters.accepted)
        for reason, attribute in REFUSED.items():
            refused.add_metric((service.name, reason), getattr(engine.counters, attribute))
        for ending in ENDINGS:
            ended.add_metric((service.name, ending), getattr(engine.counters, ending))
        made["queued"].add_metric(label, engine.queued)
        made["max_queued"].add_metric(label, service.options.max_queued)
        made["backlog"].add_metric(label, engine.backlog_seconds)
        made["held"].add_metric(label, engine.held_bytes)
        made["answers"].add_metric(label, engine.answer_bytes)
        made["max_held"].add_metric(label, service.options.max_queued_bytes)
    yield from (accepted, refused, ended, *made.values())
    watched = [(service.name, left) for service, engine in running if (left := engine.memory_available) is not None]
    if watched:
        memory = GaugeMetricFamily(
            "penstock_memory_available_bytes",
            "Bytes of memory that the cgroup, or the machine, has left; below min_free_memory new work is refused. "
            "Only of services with that option.",
            labels=("service",),
        )
        for name, left in watched:
            memory.add_metric((name,), left)
        yield memory


def _tenant_families(running: Sequence[tuple[Servable, HostedEngine]]) -> Iterator[Metric]:
    rest = "The 100 busiest by name, the rest as `other`; none where no tenant has a name."
    labels = ("service", "tenant")
    accepted = CounterMetricFamily(
        "penstock_tenant_items_accepted", f"Items taken in, by tenant. {rest}", labels=labels
    )
    refused = CounterMetricFamily(
        "penstock_tenant_items_refused",
        f"Items of a tenant that were never taken in, for whatever reason. {rest}",
        labels=labels,
    )
    waited = CounterMetricFamily(
        "penstock_tenant_waited_seconds",
        "Seconds that the items of a tenant lay in the queues of the stages, together. Its rate divided by that of the "
        f"items accepted is how long an item waits. {rest}",
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
        "Items waiting for a worker of this stage. Growing while its workers are busy: the bottleneck is here.",
        labels=STAGE,
    )
    in_flight = GaugeMetricFamily(
        "penstock_stage_in_flight_items", "Items handed to workers and not answered yet.", labels=STAGE
    )
    workers = GaugeMetricFamily(
        "penstock_stage_workers",
        "Workers by state. idle and busy are up; down is dead and due to be started again.",
        labels=(*STAGE, "state"),
    )
    up = GaugeMetricFamily(
        "penstock_stage_workers_up", "Workers that are set up and can run batches: idle or busy.", labels=STAGE
    )
    age = GaugeMetricFamily(
        "penstock_stage_progress_age_seconds",
        "Seconds since a batch last came back from this stage, or since work came to it where it had none. 0 while it "
        "has no work. From stall_unready on the service is unready.",
        labels=STAGE,
    )
    hold = GaugeMetricFamily(
        "penstock_stage_hold_seconds",
        "How long a free worker was last held for company, as it was decided (max_wait); 0: it was not held.",
        labels=STAGE,
    )
    size = GaugeMetricFamily(
        "penstock_stage_max_size",
        "The most items of a batch now: those of its policy, or fewer where there was not enough memory.",
        labels=STAGE,
    )
    device = GaugeMetricFamily(
        "penstock_worker_device_memory_bytes",
        "Bytes of device memory that torch's caching allocator has reserved in a worker, as that told with its last "
        "batches. Only of workers whose stage uses CUDA by torch; what CUDA itself takes is not counted.",
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
    "batches": ("penstock_stage_batches", "Batches sent to workers; what ran again after a death counts again."),
    "restarts": (
        "penstock_stage_worker_restarts",
        (
            "Ends of workers that were or will be followed by a new start: deaths, failed starts, and workers that "
            "Penstock killed because they ran too long, were recycled or abandoned, or because their stage rests. "
            "The log has the reason of each."
        ),
    ),
    "recycled": (
        "penstock_stage_worker_recycled",
        (
            "Workers ended because every batch of theirs failed, and the stage's example where it has one, or because "
            "the stage's health() raised or took longer than 5 s."
        ),
    ),
    "abandoned": (
        "penstock_stage_abandoned",
        "Workers killed because they ran a batch on and on that nobody waited for. The log has the worker's stacks.",
    ),
    "retried": ("penstock_stage_retried_items", "Items run again because a worker died under them."),
    "devices_lost": (
        "penstock_stage_devices_lost",
        "Workers ended because their device was lost: a batch failed, and what ran well before failed too.",
    ),
    "shortages": (
        "penstock_stage_out_of_memory",
        "Batches for which there was not enough memory; they were run in halves. max_size says how large they may be.",
    ),
    "bisected": (
        "penstock_stage_bisected_batches",
        "Batches that raised as a whole and were taken apart to find the items at fault.",
    ),
}


def _stage_counters(stages: Sequence[tuple[str, StageView]]) -> Iterator[Metric]:
    for attribute, (name, words) in _STAGE_COUNTERS.items():
        family = CounterMetricFamily(name, words, labels=STAGE)
        for service, stage in stages:
            family.add_metric((service, stage.name), getattr(stage.counters, attribute))
        yield family
    held = CounterMetricFamily(
        "penstock_stage_held_seconds",
        "Time in which a worker was free and items were held for company (max_wait), as far as the hold has ended.",
        labels=STAGE,
    )
    for service, stage in stages:
        held.add_metric((service, stage.name), stage.held_seconds)
    yield held
    cuts = CounterMetricFamily(
        "penstock_stage_cuts",
        "Batches by why they were cut: full, idle (a worker was free and nobody was held), company (held, and "
        "all had come, or more were not worth it), patience (held for as long as was worth it), waited (max_wait), gap "
        "(max_gap), bulk (a client batch is never held), back (nor are jobs), alone (an item that must run so), "
        "deadline, drain, retry (alone, after a death).",
        labels=(*STAGE, "reason"),
    )
    for service, stage in stages:
        for reason, count in sorted(stage.counters.cuts.items()):
            cuts.add_metric((service, stage.name, str(reason)), count)
    yield cuts


_STAGE_HISTOGRAMS = {
    "batch_size": (
        "penstock_stage_batch_items",
        "Items in a batch. Always 1 under load: max_size or the callers, not the model, set the pace.",
    ),
    "waited": (
        "penstock_stage_waited_seconds",
        "Time an item lay in this stage's queue. High while computed is low: more workers or larger batches.",
    ),
    "computed": ("penstock_stage_computed_seconds", "Time a worker spent on a batch."),
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
