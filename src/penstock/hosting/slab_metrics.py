"""The shared memory of services as metrics for Prometheus, read and named at scrape time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.hosting.servable import HostedEngine, Servable


def slab_families(running: Sequence[tuple[Servable, HostedEngine]]) -> Iterator[Metric]:
    """Every family once; without samples for a service that has no shared memory."""
    labels = ("service", "memory")
    size = GaugeMetricFamily(
        "penstock_shm_bytes",
        "Bytes of shared memory for large payloads (shm_bytes), by use: arrivals, or the results of "
        "the stage of that name.",
        labels=labels,
    )
    used = GaugeMetricFamily(
        "penstock_shm_used_bytes",
        "Bytes of it in use, in whole pages. Near the size, large payloads are copied through a socket instead.",
        labels=labels,
    )
    kept = GaugeMetricFamily(
        "penstock_shm_retained_bytes",
        "Bytes of it that a stage retains although their items are settled: it has stored a view of "
        "an input. Above a quarter of the size, large payloads are copied for that stage.",
        labels=labels,
    )
    inline = CounterMetricFamily(
        "penstock_shm_fallbacks",
        "Large payloads that were copied through a socket instead of shared memory, by reason. full: "
        "no free memory. kept: a stage retains too much. chunked: the client did not send the "
        "length. moved: a slow client was evicted for another. waiting: the stage has something "
        "async.",
        labels=("service", "reason"),
    )
    for service, engine in running:
        for slab in engine.slabs:
            label = (service.name, slab.name)
            size.add_metric(label, slab.nbytes)
            used.add_metric(label, slab.used_bytes)
            kept.add_metric(label, slab.kept_bytes)
        for reason, count in engine.inline_reasons.items():
            inline.add_metric((service.name, reason), count)
    yield from (size, used, kept, inline)
