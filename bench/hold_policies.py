"""The policies that the simulator compares, by their names, and the queues that they make.

`auto` is the policy under test, `0` never waits.  `0.5` is a `max_wait` of half of a case's `a`, and `1:0.1` one of `a`
with a `max_idle_gap` of a tenth of it.  `module:function` names a function that is given the case and returns a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hold_sim import Case, Queue
from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.hosting.fine_timer import FINE_STEP_SECONDS
from penstock.hosting.loop_clock import TIMER_TICK_SECONDS

AUTO = "auto"
NEVER = "0"
FIXED = ("0.1", "0.25", "0.5", "1", "1:0.05", "1:0.1", "1:0.3", "2:0.1", "2:0.2")
"""The fixed policies that wait."""
YARDSTICKS = (NEVER, *FIXED)
"""The best of these is found for each case, afterwards: 0 is a fixed wait too."""


def tick_of(name: str, tick: float | None) -> float:
    """The resolution of the timers of the policy `name`: `tick`, or without it that of the server's."""
    if tick is not None:
        return tick
    return TIMER_TICK_SECONDS if name[0].isdigit() else FINE_STEP_SECONDS


def queue_maker(name: str, tick: float = TIMER_TICK_SECONDS) -> Callable[[Case], Queue]:
    """What makes the queue of the policy `name` for a case, with timers of that resolution."""
    if not name[0].isdigit() and ":" in name:
        module, _, function = name.partition(":")
        made: Callable[[Case], Queue] = getattr(import_module(module), function)
        return made

    def make(case: Case) -> Queue:
        wait: Any = AUTO
        gap = None
        if name != AUTO:
            first, _, second = name.partition(":")
            wait = float(first) * case.a
            gap = float(second) * case.a if second else None
        policy = Batch(max_size=case.max_size, max_wait=wait, max_idle_gap=gap)
        return BatchQueue(policy, workers=case.workers, timer_step=tick)

    return make


def policy_words(name: str) -> str:
    """The policy in words."""
    if not name[0].isdigit():
        return name
    wait, _, gap = name.partition(":")
    return "max_wait 0" if wait == NEVER else f"max_wait {wait} a" + (f", max_idle_gap {gap} a" if gap else "")
