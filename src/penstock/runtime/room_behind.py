"""How much a stage may be sent now, by the room behind it.

What is asked for at each pump is a function that is made once for each stage.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.dispatch import room_after, room_for_answers, room_for_back
from penstock.core.ledger import ByteLedger
from penstock.runtime.stage_driver import StageDriver


def room_behind(
    stage: StageDriver, following: StageDriver | None, max_bytes: int, ledger: ByteLedger
) -> Callable[[], int | None]:
    """A function that returns how many items `stage` may be sent now, by the room behind it.

    None is any number, 0 is none now.
    """
    if following is None:
        return lambda: room_for_answers(ledger.answers, max_bytes=ledger.max_bytes)
    queue, limit = following.queue, following.spec.options.max_queued

    # A nested function is slow to make once compiled; this one is made once for each stage.
    def room() -> int | None:
        on_the_way = stage.in_flight - stage.back_in_flight
        return room_after(queue.front_items, queue.front_nbytes, on_the_way, max_queued=limit, max_bytes=max_bytes)

    return room


def back_room_behind(following: StageDriver | None, max_bytes: int) -> Callable[[], bool]:
    """A function that returns whether the stage before `following` may be sent items of BACK now."""
    if following is None:
        return lambda: True
    queue = following.queue
    return lambda: room_for_back(queue.back_items, queue.back_nbytes, most=following.most_at_once, max_bytes=max_bytes)
