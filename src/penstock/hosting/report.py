"""Write to the log what every service, worker and thread of this process is doing now: for somebody who was woken up.

Each line of the log is bounded, and nothing here reads a file: where the event loop is slow, this makes it no slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from penstock.codec.text import cut_middle
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.servable import Servable
from penstock.hosting.service_health import describe_process
from penstock.hosting.thread_stacks import STACKS_BYTES, stacks_of_threads

log = guarded_logger("penstock.server")

WORKERS_SECONDS = 5.0
"""How long the workers of a service may take to tell their stacks."""


async def report(services: Sequence[Servable], uptime: float, why: str) -> None:
    """Log the health and every stack; each line in the log begins with `why`."""
    log.info("%s: health: %s", why, msgspec.json.encode(describe_process(services, uptime)).decode())
    log.info("%s: the coordinator's threads:\n%s", why, cut_middle(stacks_of_threads(), STACKS_BYTES))
    await asyncio.gather(*(_report_workers(service, why) for service in services))


async def _report_workers(service: Servable, why: str) -> None:
    if service.engine is None:
        return
    try:
        stacks = await asyncio.wait_for(service.engine.worker_stacks(), WORKERS_SECONDS)
    except TimeoutError:
        log.warning("%s: no stack traces from the workers of %s within %g s", why, service.name, WORKERS_SECONDS)
        return
    for worker, text in stacks.items():
        log.info("%s: %s of service %r:\n%s", why, worker, service.name, cut_middle(text.rstrip(), STACKS_BYTES))
