"""What the log has of a service that starts, in a time that a test moves."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from penstock.core.load_progress import Loading
from penstock.hosting.load_lines import loading_logged, loading_shown
from penstock.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def service():
    return SimpleNamespace(name="prices", engine=SimpleNamespace(loading=[]))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "penstock.loading")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_the_log_has_a_line_every_ten_seconds_until_the_end(service, clock, lines):
    with loading_logged(service, clock):
        service.engine.loading = [Loading("M", 1, 1, 9.0)]
        await clock.advance(9.99)
        assert lines() == []
        service.engine.loading = [Loading("M", 1, 1, 10.0)]
        await clock.advance(0.01)
        assert lines() == [("INFO", "service 'prices': M is loading, 10 s")]
        service.engine.loading = [Loading("M", 1, 1, 20.0)]
        await clock.advance(10.0)
        assert lines()[1:] == [("INFO", "service 'prices': M is loading, 20 s")]
    assert clock.waiting == []


async def test_nothing_is_told_where_nothing_loads(service, clock, lines):
    with loading_logged(service, clock):
        await clock.advance(10.0)
        service.engine = None
        await clock.advance(10.0)
    assert lines() == []


async def test_a_reason_stays_in_its_line(service, clock, lines):
    service.engine.loading = [Loading("M", 1, 1, 10.0, "\x1b[2Jgone\nTraceback")]
    with loading_logged(service, clock):
        await clock.advance(10.0)
    assert lines() == [("INFO", "service 'prices': M is loading, 10 s; the last attempt failed: ?[2Jgone")]


async def test_without_a_terminal_the_log_goes_on(service, clock, lines):
    service.engine.loading = [Loading("M", 1, 1, 10.0)]
    with loading_shown([service], clock), loading_logged(service, clock):
        await clock.advance(10.0)
    assert len(lines()) == 1
