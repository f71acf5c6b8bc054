"""What a proxy in front of replicas is told, and every number of it that is the same in all proxies.

Contract
--------
* A `ProxyDescription` that exists is whole: the replicas are named and no two are the same, and where they speak TLS
  it says how their certificates are checked.
* Every number follows from the options that the replicas run with, or is a constant here with its reason.
* The proxy never ends first what a replica would answer: its limits are a little wider than ours, so that the answer is
  ours and says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.cli.config_files.endpoints import HOST_NAME, Endpoint
from penstock.config import ServerOptions, ServiceOptions
from penstock.errors import ConfigError
from penstock.server.pages.jobs_document import LONGEST_WAIT_SECONDS

ANSWER_MARGIN_SECONDS: Final = 5.0
"""How much longer than a request may take a proxy waits for its answer."""
CONNECT_SECONDS: Final = 2.0
"""How long a proxy waits for a connection: one lost packet is sent again after 1 s."""
NOTICED_SECONDS: Final = 1.0
"""A draining replica must answer for so long, until nobody sends it anything: checks of HAProxy take half of it."""
LONGEST_SECONDS: Final = 24 * 86_400.0
"""The longest time that proxies can be told: they count milliseconds in 31 bits."""
MOST_CONNECTIONS: Final = 100_000
"""The most connections that a proxy is asked to have, for each of which it takes memory or a file at once."""
LARGEST_HEAD: Final = 1024 * 1024
"""A proxy is asked for no larger buffer for a head than this."""
LARGEST_NUMBER: Final = 2**62
"""No size is larger than this: proxies count in 63 bits."""


@dataclass(frozen=True, slots=True)
class ProxyDescription:
    """A proxy that listens, and the replicas behind it."""

    listen: Endpoint
    """Where clients connect."""
    replicas: tuple[Endpoint, ...]
    server: ServerOptions
    """What every replica runs with."""
    service: ServiceOptions
    """What every service of a replica runs with."""
    listen_cert: str | None = None
    """PEM file with the certificate chain and the key for clients; None: clients speak plain HTTP."""
    replica_ca: str | None = None
    """PEM file with the certificates by which those of the replicas are checked, where these speak TLS."""
    replica_name: str | None = None
    """The name that stands in the certificates of the replicas."""

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ConfigError("a proxy needs a replica: write --server ADDRESS for each")
        for number, replica in enumerate(self.replicas):
            if replica in self.replicas[:number]:
                raise ConfigError(f"--server {replica} is repeated: a retry would reach the same replica")
            if replica == self.listen:
                raise ConfigError(f"--server {replica} is the address of the proxy itself")
        if self.replicas_speak_tls and (self.replica_ca is None or self.replica_name is None):
            raise ConfigError(
                "replicas with tls_cert use TLS: write --server-ca FILE to verify their certificates, "
                "and --server-name NAME, the host name in them"
            )
        if self.replica_name is not None and HOST_NAME.fullmatch(self.replica_name) is None:
            raise ConfigError(f"--server-name must be the name of a host, got {self.replica_name!r}")
        if not self.replicas_speak_tls and (self.replica_ca is not None or self.replica_name is not None):
            raise ConfigError("--server-ca and --server-name are for replicas with --tls-cert and --tls-key")

    @property
    def replicas_speak_tls(self) -> bool:
        """Whether connections to the replicas are encrypted."""
        return self.server.tls_cert is not None

    @property
    def answer_seconds(self) -> float:
        """How long the proxy waits for an answer."""
        return self.service.timeout + ANSWER_MARGIN_SECONDS

    @property
    def job_answer_seconds(self) -> float | None:
        """The same for calls about jobs, where clients may wait longer; None: it need be no longer."""
        wanted = LONGEST_WAIT_SECONDS + ANSWER_MARGIN_SECONDS
        return wanted if wanted > self.answer_seconds else None

    @property
    def idle_seconds(self) -> float:
        """How long a connection to a replica may be idle until the proxy closes it; 0: it is not kept.

        A request that is sent while the replica closes the connection is lost.  So the proxy closes first: well before
        the replica does in service, and well before the replica does at the end of its `drain_delay`.
        """
        return min(self.server.keepalive_timeout, self.server.drain_delay or 2 * NOTICED_SECONDS) / 2

    @property
    def replica_connections(self) -> int:
        """The most connections to one replica."""
        return min(self.server.max_connections, MOST_CONNECTIONS)


def proxy_warnings(description: ProxyDescription) -> Iterator[str]:
    """Sentences on what the options of the replicas do not allow the proxy to promise."""
    delay = description.server.drain_delay
    if delay < NOTICED_SECONDS:
        yield (
            f"drain_delay is {delay:g} s, but a proxy needs {NOTICED_SECONDS:g} s to detect that a "
            "replica is shutting down: requests fail at each shutdown. Start the replicas, and this "
            "command, with --drain-delay 2"
        )
    if len(description.replicas) == 1:
        yield (
            "there is only one replica: its rejected requests cannot be retried, and the service is "
            "down while it restarts"
        )


def proxy_time(seconds: float) -> str:
    """A time as HAProxy and nginx read it; one that is too long for them is the longest that they take."""
    milliseconds = max(1, round(min(seconds, LONGEST_SECONDS) * 1000))
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def problem(status: int, title: str, detail: str) -> str:
    """The body of an answer of the proxy's own, of the same shape as a problem of ours; it has no single quote."""
    return f'{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}'


TOO_LARGE: Final = (413, "Content Too Large", "The body is larger than max_body_bytes of the replicas.")
BAD_GATEWAY: Final = (
    502,
    "Bad Gateway",
    "The proxy got no response from a replica. The request may have run.",
)
UNAVAILABLE: Final = (
    503,
    "Service Unavailable",
    "The proxy found no replica that accepts requests. Nothing was run.",
)
GATEWAY_TIMEOUT: Final = (
    504,
    "Gateway Timeout",
    "No replica has responded in time. The request may have run.",
)
"""What a proxy says itself: status, title and detail."""
