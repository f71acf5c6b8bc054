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

    max_inline: int = option(256 * KIB, "largest input and result that the store keeps itself", minimum=1)
    allow_input: str | None = option(
        None, "prefixes of file:// and s3:// from which inputs may be read, with commas between; none: no such input"
    )
    allow_output: str | None = option(
        None, "prefixes of file:// and s3:// below which outputs may be written, with commas between"
    )
    allow_net: str | None = option(
        None, "networks that are not public and that http(s) inputs and outputs may reach, as 10.1.0.0/16"
    )
    allow_file_from_http: bool = option(
        False, "let those who submit over HTTP name file:// too, below the allowed prefixes"
    )

    def __post_init__(self) -> None:
        check_options(self)


@checked_fields
@dataclass(frozen=True, slots=True)
class WorkOptions(QueueOptions):
    """How a consumer takes jobs out of a queue, and what it may do for them."""

    concurrency: int = option(
        0,
        "most jobs of a service held; 1 takes one through alone, end to end; 0: as many as keep its model busy",
        minimum=0,
    )
    lease: float = option(30.0, "seconds after which a job is another's whose holder is not heard of", minimum=1)
    poll: float = option(0.2, "seconds between two looks at an empty queue", minimum=0.001)
    max_run: float = option(
        3600.0,
        "seconds a batch may run in a stage without a timeout of its own; then its worker is killed",
        minimum=0.1,
    )
    download_timeout: float = option(60.0, "longest an input may take to fetch, and an output to store", minimum=0.1)
    max_input: int = option(GIB, "largest input that is fetched", minimum=1)
    max_held_bytes: int = option(
        256 * MIB,
        "most bytes of inputs and results held in memory, an even part for each service; one job may pass it",
        minimum=1,
    )
    spool: str | None = option(None, "folder for results that cannot be stored yet; without it they stay in memory")
    max_spool: int = option(
        GIB,
        "most bytes in the spool, an even part for each service; one whose part is full claims nothing more",
        minimum=1,
    )
    drain: float = option(
        30.0, "longest that jobs which have begun may go on after SIGTERM; 0 gives all back", minimum=0
    )
    backoff: float = option(
        1.0, "bound of the first rest after a failed attempt, doubling to 300 s; 0 is no rest", minimum=0
    )
    keep: float = option(7 * DAY_SECONDS, "seconds that ended jobs and their results are kept", minimum=0)
    keep_dead: float = option(30 * DAY_SECONDS, "seconds that dead jobs are kept", minimum=0)
    until_empty: bool = option(False, "end when nothing is scheduled, waiting or leased")
    http: str | None = option(
        None, "HOST:PORT, or systemd for its sockets, where the services are served over HTTP as well; none by default"
    )
    health: str | None = option(None, "HOST:PORT at which probes and /metrics are answered, and nothing else")

    def __post_init__(self) -> None:
        QueueOptions.__post_init__(self)
        if math.inf in (self.lease, self.poll):
            raise ConfigError("lease and poll must be finite: a job whose holder died would never be another's")
