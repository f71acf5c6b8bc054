"""Write to the log what every service, worker and thread of this process is doing now: for somebody who was woken up.

Each line of the log is bounded, and nothing here reads a file: where the event loop is slow, this makes it no slower.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import msgspec

from penstock.codec.text import cut_middle
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.servable import Servable
from penstock.hosting.service_health import describe_process

log = guarded_logger("penstock.server")

STACKS_BYTES = 64 * 1024
"""Most of the stacks of one process that are written; of more, the middle is left out."""
FRAMES_PER_THREAD = 100
"""The innermost frames of a thread that are written; `faulthandler` has the same limit."""
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
        log.warning("%s: the workers of %s did not tell their stacks in %g s", why, service.name, WORKERS_SECONDS)
        return
    for worker, text in stacks.items():
        log.info("%s: %s of service %r:\n%s", why, worker, service.name, cut_middle(text.rstrip(), STACKS_BYTES))


def stacks_of_threads() -> str:
    """The stack of each thread of this process, this thread first, in the form of `faulthandler`.

    It has no lines of source, because those would be read from files.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    ours = threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda thread: thread[0] != ours)
    return "\n".join(
        f"Thread {names.get(thread, 'unknown')} (most recent call first):\n{_stack(frame)}" for thread, frame in frames
    )


def _stack(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES_PER_THREAD:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}')
        frame = frame.f_back
    if frame is not None:
        lines.append("  ...")
    return "\n".join(lines)
