"""`GET /metrics`: the counters of the HTTP traffic, of the services and of this process.

Nothing here is touched by a request: everything is read at scrape time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock.hosting.servable import Servable
from penstock.hosting.service_metrics import ServiceCollector, add_histogram
from penstock.server.application import HttpRequest, Response
from penstock.server.protocols.route import Traffic


class ListenerView(Protocol):
    """What a listener tells of itself."""

    @property
    def connections(self) -> int:
        """How many clients are connected."""

    @property
    def most_connections(self) -> int:
        """How many are served at a time."""

    @property
    def certificate_expires(self) -> float | None:
        """When its certificate expires, in seconds since the epoch; None without TLS, or if that is unknown."""


class Metrics:
    """Makes the text of `/metrics`, in its own registry: what a user's stages register elsewhere stays out."""

    def __init__(self, services: Sequence[Servable], traffic: Sequence[Traffic]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(TrafficCollector(traffic))
        self._registry.register(ServiceCollector(services))
        ProcessCollector(registry=self._registry)

    def watch(self, listener: ListenerView) -> None:
        """Show what `listener` tells from now on; an app under another server has no listener of ours."""
        self._registry.register(ListenerCollector(listener))

    def collect_from(self, collector: Collector) -> None:
        """Show what `collector` gives, too."""
        self._registry.register(collector)

    def page(self, request: HttpRequest) -> Response:
        """The metrics, as Prometheus text or as OpenMetrics if the scraper asks for that."""
        encode, media = choose_encoder(request.headers.get(b"accept", b"").decode("latin-1"))
        return Response(200, media.encode(), encode(self._registry), ((b"cache-control", b"no-store"),))


class TrafficCollector(Collector):
    """Reads what became of the requests to each route."""

    def __init__(self, traffic: Sequence[Traffic]) -> None:
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """Both families once, with a sample for each route."""
        requests = CounterMetricFamily(
            "penstock_http_requests",
            "Requests completed, by route and status. 499: the client disconnected before the "
            "response. 503 and 429 are rejections under load or while not ready, 500 faults of the "
            "service, 504 deadlines that passed while an item ran; the options overload_status, "
            "queue_timeout_status and run_timeout_status change some of them.",
            labels=("service", "route", "status"),
        )
        seconds = HistogramMetricFamily(
            "penstock_http_request_seconds",
            "Time from a complete request head to its written response, rejected requests included.",
            labels=("service", "route"),
        )
        for each in self._traffic:
            for status, count in sorted(each.statuses.items()):
                requests.add_metric((each.service, each.route, str(status)), count)
            if each.statuses:
                add_histogram(seconds, (each.service, each.route), each.seconds)
        yield requests
        yield seconds


class ListenerCollector(Collector):
    """Reads how many connections a listener has, and when its certificate expires."""

    def __init__(self, listener: ListenerView) -> None:
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        """The number and its limit; the date, where there is one."""
        yield GaugeMetricFamily(
            "penstock_connections",
            "Open connections, including those above the limit, which may only use health endpoints. "
            "At the limit, new connections get 503 unless an idle connection is closed for them.",
            value=self._listener.connections,
        )
        yield GaugeMetricFamily(
            "penstock_connections_limit",
            "Maximum connections that are served at a time (max_connections, or fewer where the system "
            "allows fewer open files).",
            value=self._listener.most_connections,
        )
        expires = GaugeMetricFamily(
            "penstock_tls_certificate_expires_timestamp_seconds",
            "Expiry of the certificate that new connections get, in seconds since the epoch. Renew its "
            "file before, and send SIGHUP.",
        )
        if self._listener.certificate_expires is not None:
            expires.add_metric((), self._listener.certificate_expires)
        yield expires
