"""The event loop that a waiting stage lives in: how it runs, and how it ends, whoever feeds its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.worker")

LAST_TASKS_SECONDS: Final = 1.0
"""How long tasks may go on that were cancelled because the worker ends."""


def live_in(loop: asyncio.AbstractEventLoop, life: Coroutine[Any, Any, None], name: str) -> None:
    """Run `life` in `loop`, which is this thread's, end what the stage `name` has left there, and close the loop."""
    asyncio.set_event_loop(loop)
    try:
        try:
            _run_until_over(loop, life, name)
        finally:
            _run_until_over(loop, _end_what_is_left(loop), name)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _run_until_over(loop: asyncio.AbstractEventLoop, steps: Coroutine[Any, Any, None], name: str) -> None:
    # A task that the stage has started may raise SystemExit, which ends the loop's turn, and not the worker.
    # Not by the loop's `create_task`: a stage may have set a task factory, which may do anything.
    task = asyncio.Task(steps, loop=loop)
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            log.warning(
                "stage %r: a background task of the stage raised %s; the worker keeps running",
                name,
                type(error).__name__,
            )
    task.result()


async def _end_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await wait_for_last({*left, asyncio.Task(loop.shutdown_asyncgens(), loop=loop)})


async def wait_for_last(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for `tasks`, which were cancelled, for `LAST_TASKS_SECONDS`."""
    if tasks:
        await asyncio.wait(tasks, timeout=LAST_TASKS_SECONDS)
