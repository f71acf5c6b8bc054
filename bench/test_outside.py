"""The echo with a worker from outside: the worker is started, counted and ended, and its rate is held to a target."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import servers
from builds import SOURCES
from loadgen import LoadResult
from procfs import tree
from report import OUTSIDE, Measurement, Run, summarise
from servers import SUBJECTS, Server, ServerFailed

OUTSIDE_SOURCES = replace(SUBJECTS["penstock-external"], build=SOURCES)


def measured(subject: str, number: int, rate: float, coordinator: float = 20.0, workers: float = 4.0) -> Measurement:
    load = LoadResult(1, 1, 1.0, rate, 1.0, 1.0, 1.0, 1.0, 0, "", 1.0)
    return Measurement(subject, number, load, coordinator, workers, 1.0, 0.0, 1, 1, 1)


def a_run(*outside: float) -> Run:
    """As many rounds as there are rates of the echo from outside; the other's rate is always 1000."""
    pairs = [
        (measured(OUTSIDE[0], i, rate, coordinator=22.0, workers=6.0), measured(OUTSIDE[1], i, 1000.0))
        for i, rate in enumerate(outside)
    ]
    return Run(datetime.now(UTC), {}, {"connections": 256, "rounds": len(outside)}, [m for pair in pairs for m in pair])


@pytest.mark.night
def test_the_worker_is_started_beside_its_server_is_counted_apart_and_ends_with_it() -> None:
    server = Server(OUTSIDE_SOURCES)
    try:
        server.wait_ready()
        coordinator, workers = server.costs()
        assert coordinator.cpu > 0
        assert workers.cpu > 0
        assert workers.rss >= workers.pss > 0
        assert server.cpu_seconds() >= coordinator.cpu + workers.cpu
        (outside,) = (pid for pid in tree(os.getpid()) if pid not in tree(server.pid) and is_worker(pid))
    finally:
        server.stop()
    assert outside not in tree(os.getpid())
    server.stop()  # any number of times


def is_worker(pid: int) -> bool:
    return b"\0worker\0echo:Echo\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.night
def test_a_worker_from_outside_that_cannot_start_is_found_out() -> None:
    server = Server(replace(OUTSIDE_SOURCES, outside="echo:Nobody"))
    try:
        with pytest.raises(ServerFailed, match="Nobody"):
            server.wait_ready()
    finally:
        server.stop()


@pytest.mark.night
def test_a_worker_from_outside_that_runs_no_compiled_penstock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = {SOURCES.packages / "penstock" / "a.so"}
    monkeypatch.setattr(servers, "mapped_files", lambda pid: set() if is_worker(pid) else compiled)
    server = Server(OUTSIDE_SOURCES)
    try:
        server.wait_ready()
        with pytest.raises(ServerFailed, match="runs no compiled module"):
            server.check_build()
    finally:
        server.stop()


def test_the_echo_from_outside_is_held_to_nine_tenths_of_ours() -> None:
    assert summarise(a_run(700.0, 910.0, 2000.0))
    assert not summarise(a_run(700.0, 890.0, 2000.0))
