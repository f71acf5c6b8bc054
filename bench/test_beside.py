"""Small requests and bodies of 16 MB are answered by one server at the same time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from beside import SERVED, measure
from builds import SOURCES
from servers import Server


@pytest.mark.night
def test_the_echo_and_large_bodies_are_measured_at_the_same_time() -> None:
    server = Server(replace(SERVED, build=SOURCES))
    try:
        server.wait_ready()
        seen = measure(server, seconds=1.0)
    finally:
        server.stop()
    assert seen.echo.requests > 0
    assert seen.large.requests > 0
