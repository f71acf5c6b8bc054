"""A stage's own `health` with real workers: it is asked while they are idle, and who is not well is replaced."""

from __future__ import annotations

import stages
from waiting import until

import penstock as ps
from penstock.core import idle_checks
from penstock.hosting.service_health import describe_service
from penstock.runtime.idle_rounds import LATE  # before a test changes what it says


def worker_of(service):
    (worker,) = describe_service(service)["stages"]["Lamp"]["workers"]
    return worker


async def test_a_worker_that_says_it_is_not_well_is_replaced_until_it_says_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(idle_checks, "IDLE_SECONDS", 0.1)
    async with ps.Service(ps.stage(stages.Lamp, setup={"folder": str(tmp_path)}, workers=1)) as service:
        first = worker_of(service)
        await until((tmp_path / "asked").exists)
        assert worker_of(service)["reason"] == ""
        (tmp_path / "out").touch()
        await until(lambda: worker_of(service)["restarts"] == 1)
        assert worker_of(service)["reason"] == "RuntimeError: the lamp is out"
        (tmp_path / "out").unlink()
        await until(lambda: worker_of(service)["reason"] == "")
        assert worker_of(service)["pid"] != first["pid"]
        assert await service.predict(1) == 1


async def test_a_worker_that_does_not_answer_in_time_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(idle_checks, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(idle_checks, "LIMIT_SECONDS", 0.3)
    async with ps.Service(ps.stage(stages.Lamp, setup={"folder": str(tmp_path)}, workers=1)) as service:
        (tmp_path / "dark").touch()
        await until(lambda: worker_of(service)["restarts"] >= 1)
        assert worker_of(service)["reason"] == LATE
        (tmp_path / "dark").unlink()
        assert await service.predict(1) == 1


async def test_a_thread_is_left_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(idle_checks, "IDLE_SECONDS", 0.1)
    (tmp_path / "out").touch()
    async with ps.Service(ps.stage(stages.Lamp, setup={"folder": str(tmp_path)}), inline=True) as service:
        await until(lambda: worker_of(service)["reason"])
        assert worker_of(service)["restarts"] == 0
        assert await service.predict(1) == 1
    assert "health check failed: RuntimeError: the lamp is out; the worker keeps running for now" in caplog.text
