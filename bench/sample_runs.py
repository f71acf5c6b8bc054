"""Made-up measurements of the simulated device, for tests."""

from __future__ import annotations

from datetime import UTC, datetime

from device import Ideal, Sleeps
from loadgen import LoadResult
from report import Measurement, Run, figure_name


def measured(subject: str, connections: int, share: float, *, several: bool = True, number: int = 0) -> Measurement:
    """A measurement of a server that got `share` of an ideal in which each batch overslept 0.2 ms."""
    sleeps = Sleeps(10, 80, 10 * 0.0052 + 80 * 0.0001)
    ideal = Ideal.of(connections, sleeps)
    load = LoadResult(1, 1, 1.0, share * ideal.real, 1.0, 1.0, 1.0, 1.0, 0, "", 1.0)
    name = figure_name(subject, connections, several=several)
    return Measurement(name, number, load, 1.0, 1.0, 1.0, 0.0, 1, 1, 1, connections, ideal)


def a_run(*measurements: Measurement) -> Run:
    connections = list(dict.fromkeys(m.connections for m in measurements))
    settings: dict[str, float | list[int]] = {"rounds": 1.0, "seconds": 1.0, "connections": connections}
    return Run(datetime.now(UTC), {"cpu": "some", "cores": "2"}, settings, list(measurements))
