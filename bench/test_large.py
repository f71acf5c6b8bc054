"""The servers of large bodies answer what the load generator compares, and the targets are about what is measured."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from builds import SOURCES
from loadgen import run_load
from report import TARGETS
from servers import LARGE, LARGE_LOADS, Server

NO_MOSEC = pytest.mark.skipif(find_spec("mosec") is None, reason="mosec comes with the extra `bench`")
NAMES = [pytest.param(name, marks=NO_MOSEC) if "mosec" in name else name for name in LARGE]


@pytest.mark.night
@pytest.mark.parametrize("name", NAMES)
def test_each_server_gives_the_right_answer_over_many_connections(name):
    server = Server(replace(LARGE[name], build=SOURCES))
    try:
        server.wait_ready()
        seen = run_load(
            server.port,
            server.subject.path,
            connections=4,
            seconds=10,
            warmup=0,
            requests=20,
            exchange=server.subject.exchange,
        )
    finally:
        server.stop()
    assert seen.completed >= 20


def test_every_target_of_the_scene_is_about_servers_that_are_measured():
    measured = {f"{name}@{connections}" for name in LARGE for connections in LARGE_LOADS}
    wanted = [subject for target in TARGETS for subject in target.subjects if subject.startswith("large-")]
    assert len(wanted) == 36
    assert measured >= set(wanted)
