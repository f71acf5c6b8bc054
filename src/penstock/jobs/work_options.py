"""The options of a queue and of a consumer.

They are not beside the other options, because whoever imports `penstock` without a queue would pay for them too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.config import MIB, checked_fields
from penstock.errors import ConfigError
from penstock.option_fields import check_options, option

KIB = 1024
GIB = 1024 * MIB
DAY_SECONDS = 86_400.0


@checked_fields
@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What jobs may name, and how large they may be: for those who let jobs in, and those who work on them."""

    max_inline_bytes: int = option(
        256 * KIB, "maximum bytes of an input or result that is stored in the queue itself", minimum=1
    )
    allow_input: str | None = option(
        None,
        "comma-separated prefixes of file:// and s3:// URLs from which inputs may be read; not set: no such inputs",
    )
    allow_output: str | None = option(
        None, "comma-separated prefixes of file:// and s3:// URLs below which outputs may be written"
    )
    allow_net: str | None = option(
        None, "comma-separated non-public networks that http(s) inputs and outputs may connect to, such as 10.1.0.0/16"
    )
    allow_file_from_http: bool = option(
        False, "allow file:// URLs, below the allowed prefixes, in jobs that are submitted over HTTP"
    )

    def __post_init__(self) -> None:
        check_options(self)


@checked_fields
@dataclass(frozen=True, slots=True)
class WorkOptions(QueueOptions):
    """How a consumer takes jobs out of a queue, and what it may do for them."""

    max_in_flight_jobs: int = option(
        0,
        "maximum jobs of a service claimed at the same time; 1 runs them one by one; 0: enough to keep its model busy",
        minimum=0,
    )
    lease: float = option(
        30.0, "seconds without a lease renewal after which a job is released to other consumers", minimum=1
    )
    poll_interval: float = option(0.2, "seconds between two polls of an empty queue", minimum=0.001)
    run_timeout: float = option(
        3600.0,
        "maximum seconds for a batch in a stage without a timeout of its own; then its worker is killed",
        minimum=0.1,
    )
    transfer_timeout: float = option(60.0, "maximum seconds to download an input, and to upload an output", minimum=0.1)
    max_input_bytes: int = option(GIB, "maximum bytes of a downloaded input", minimum=1)
    max_buffered_bytes: int = option(
        256 * MIB,
        "maximum bytes of inputs and results in memory, shared equally by the services; one job may exceed it",
        minimum=1,
    )
    spool_dir: str | None = option(
        None, "directory for results that cannot be stored yet; if not set, they stay in memory"
    )
    max_spool_bytes: int = option(
        GIB,
        "maximum bytes in the spool, shared equally by the services; a service with a full share claims no more jobs",
        minimum=1,
    )
    drain_timeout: float = option(
        30.0, "on SIGTERM, maximum seconds to wait for running jobs; 0: release them immediately", minimum=0
    )
    retry_backoff: float = option(
        1.0, "maximum delay before the first retry, doubled with each retry up to 300 s; 0: no delay", minimum=0
    )
    result_ttl: float = option(7 * DAY_SECONDS, "seconds to keep finished jobs and their results", minimum=0)
    dead_ttl: float = option(30 * DAY_SECONDS, "seconds to keep dead jobs", minimum=0)
    until_empty: bool = option(False, "exit when no job is scheduled, queued or running")
    bind: str | None = option(
        None, "HOST:PORT to serve the services over HTTP too, or systemd for its sockets; not set: no HTTP"
    )
    health_bind: str | None = option(None, "HOST:PORT for health endpoints and /metrics only")

    def __post_init__(self) -> None:
        QueueOptions.__post_init__(self)
        if math.inf in (self.lease, self.poll_interval):
            raise ConfigError("lease and poll must be finite: otherwise a job of a lost consumer is never released")
