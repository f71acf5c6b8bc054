"""The channel inside one process, where its event loop is no more."""

from __future__ import annotations

import asyncio

import pytest

from penstock.testing.channels import Recorder, answers
from penstock.transport.memory import MemoryChannel


def test_a_worker_that_outlives_the_event_loop_is_told_that_nobody_is_left():
    async def open_one():
        return MemoryChannel(Recorder())

    channel = asyncio.run(open_one())
    with pytest.raises(BrokenPipeError):
        channel.worker_end.send(answers(1, [b"x"]))
