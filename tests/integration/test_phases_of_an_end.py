"""What a door is told when a run ends, in which order, and for how long."""

from __future__ import annotations

import pytest

from penstock.hosting.run import LAST_ANSWERS_SECONDS, LAST_REQUESTS_SECONDS, run_until_signal
from penstock.testing.virtual_clock import rest


class Door:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    async def start(self):
        self.told.append("start")

    def leave_soon(self):
        self.told.append("leave soon")

    def stop_accepting(self):
        self.told.append("stop accepting")

    async def see_out(self, seconds):
        self.told.append(("see out", seconds))

    async def close(self, grace):
        self.told.append(("close", grace))


@pytest.mark.parametrize(
    ("delay", "see_out", "phases"),
    [
        (0.0, 0.0, []),
        (0.0, 3.0, [("see out", 3.0)]),
        (0.01, 0.0, ["leave soon", ("see out", LAST_REQUESTS_SECONDS)]),  # for who has just connected
        (0.01, 3.0, ["leave soon", ("see out", 3.0)]),
    ],
)
def test_a_door_is_led_through_the_phases_of_an_end(delay, see_out, phases):
    door, ready = Door(), []

    async def until():
        while not ready:
            await rest()

    run_until_signal(
        [],
        door,
        drain=2.0,
        on_ready=lambda: ready.append(True),
        on_end=lambda: door.told.append("end"),
        drain_delay=delay,
        see_out=see_out,
        until=until,
    )
    assert door.told == ["start", *phases, ("close", 2.0 + LAST_ANSWERS_SECONDS), "end"]
