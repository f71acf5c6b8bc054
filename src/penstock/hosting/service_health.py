"""What each service of a process is doing, as plain data for a load balancer, a person or a log line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.codec.text import one_line, printable
from penstock.core.state import State
from penstock.hosting.build import is_compiled, version_of
from penstock.hosting.servable import Servable, StageView, WorkerView

_WORST_FIRST = (
    State.FAILED,
    State.STALLED,
    State.STOPPED,
    State.DRAINING,
    State.STARTING,
    State.BUSY,
    State.READY,
)


def version() -> str:
    """The installed version of Penstock, or "unknown" where it runs without having been installed."""
    return version_of("penstock")


def state_of(service: Servable) -> State:
    """The state of a service, STARTING while it has no engine."""
    engine = service.engine
    return State.STARTING if engine is None else engine.state


def worst_state(services: Sequence[Servable]) -> State:
    """The state that needs attention most."""
    return min((state_of(service) for service in services), key=_WORST_FIRST.index)


def describe_process(services: Sequence[Servable], uptime: float) -> dict[str, Any]:
    """What this process and each of its services are doing; `uptime` is in seconds."""
    return {
        "state": worst_state(services),
        "version": version(),
        "compiled": is_compiled(),
        "uptime": round(uptime, 3),
        "services": {service.name: describe_service(service) for service in services},
    }


def describe_service(service: Servable) -> dict[str, Any]:
    """What one service is doing, in the words of the glossary."""
    engine = service.engine
    told: dict[str, Any] = {
        "state": State.STARTING,
        "version": service.version,
        "model_version": service.model_version,
        "reason": "",
    }
    if engine is None:
        return {**told, "queued": 0, "in_flight": 0, "bytes": 0, "stages": {}}
    external = {spec.name for spec in service.stages if spec.external is not None}
    return {
        **told,
        "state": engine.state,
        "reason": one_line(engine.reason),
        "queued": engine.queued,
        "in_flight": sum(stage.in_flight for stage in engine.stages),
        "bytes": engine.held_bytes,
        "stages": {stage.name: _describe_stage(stage, external=stage.name in external) for stage in engine.stages},
    }


def _describe_stage(stage: StageView, *, external: bool) -> dict[str, Any]:
    return {
        "queued": stage.queued,
        "in_flight": stage.in_flight,
        "progress_age_seconds": _rounded(stage.progress_age),
        "retry_in_seconds": _rounded(stage.retry_in_seconds),
        "workers": [_describe_worker(worker, external=external) for worker in stage.workers],
    }


def _describe_worker(worker: WorkerView, *, external: bool) -> dict[str, Any]:
    return {
        "index": worker.index,
        "state": worker.state,
        "external": external,
        "language": printable(worker.language),
        "pid": worker.pid,
        "restarts": worker.restarts,
        "busy_seconds": _rounded(worker.busy_seconds),
        "reason": worker.reason,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
