"""Here belongs what a consumer makes of jobs: no process, no thread, and no store but the one in memory."""

from __future__ import annotations

import asyncio

import pytest

from fake_work import Bench, fake_service


@pytest.fixture
async def bench(tmp_path):
    """Makes a started bench; each is closed in the end."""
    made = []

    async def make(*services, **options):
        found = Bench(tmp_path, list(services) or [fake_service()], **options)
        made.append(found)
        await found.start()
        return found

    yield make
    for each in made:
        each.store.gone = None
        closing = asyncio.ensure_future(each.consumer.close(0))
        for _ in range(5):
            await each.clock.advance(1.0)
        await closing
