"""A worker from outside as it is made: what it cannot serve is refused before it looks for a server."""

from __future__ import annotations

from unittest import mock

import pytest

from penstock.errors import ConfigError
from penstock.worker.attached import AttachedWorker
from penstock.worker.attachment import Attachment
from penstock.worker.leaving import Leaving
from penstock.worker.stage import Stage
from rows import each


async def look_up(x):
    return x


class Score(Stage):
    async def preprocess(self, x):
        return x

    def predict(self, x):
        return x


@each(("target", "what", "name"), [(look_up, "look_up", "look_up"), (Score, "Score.preprocess", "preprocess")])
def test_a_stage_with_something_async_is_refused(target, what, name):
    never = mock.Mock(side_effect=AssertionError)
    with pytest.raises(ConfigError) as refused:
        AttachedWorker(target, Attachment("nobody"), Leaving(), on_launch=never, on_loaded=never, end_process=never)
    assert str(refused.value) == (
        f"{what} is `async`, and a worker that attaches calls it without an event loop: write `def {name}`, with "
        "`asyncio.run(...)` in it for what has to be awaited, or let the service start the stage, by penstock.stage"
    )
