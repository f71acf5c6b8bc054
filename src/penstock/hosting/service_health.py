"""What each service of a process is doing, as plain data for a load balancer, a person or a log line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.codec.text import cut_line, one_line, printable
from penstock.core.load_progress import loading_words
from penstock.core.state import State
from penstock.hosting.build import is_compiled, version_of
from penstock.hosting.host_part import HostPart
from penstock.hosting.servable import Servable, StageDescription, StageView, WorkerView

_WORST_FIRST = (
    State.FAILED,
    State.STALLED,
    State.STOPPED,
    State.DRAINING,
    State.STARTING,
    State.BUSY,
    State.READY,
)


LONGEST_STATUS_BYTES = 512
"""`systemctl status` shows the words in a line, and takes 4096 bytes with all that is told beside them."""


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
    specs = {spec.name: spec for spec in service.stages}
    return {
        **told,
        "state": engine.state,
        "reason": one_line(engine.reason),
        "queued": engine.queued,
        "in_flight": sum(stage.in_flight for stage in engine.stages),
        "bytes": engine.held_bytes,
        "stages": {stage.name: _describe_stage(stage, specs[stage.name]) for stage in engine.stages},
    }


def _describe_stage(stage: StageView, spec: StageDescription) -> dict[str, Any]:
    return {
        "queued": stage.queued,
        "in_flight": stage.in_flight,
        "max_size": stage.max_size,
        "devices_lost": stage.counters.devices_lost,
        "progress_age_seconds": _rounded(stage.progress_age),
        "retry_in_seconds": _rounded(stage.retry_in_seconds),
        "workers": [_describe_worker(worker, spec) for worker in stage.workers],
    }


def _describe_worker(worker: WorkerView, spec: StageDescription) -> dict[str, Any]:
    return {
        "index": worker.index,
        "state": worker.state,
        "remote": spec.external is not None,
        "language": printable(worker.language),
        "pid": worker.pid,
        "gpus": list(spec.gpus_of(worker.index)),
        "restarts": worker.restarts,
        "busy_seconds": _rounded(worker.busy_seconds),
        "reason": worker.reason,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def stuck_because(services: Sequence[Servable], parts: Sequence[HostPart]) -> str:
    """Why this process will not go on by itself, and should be restarted; or "".

    A stage that has given nothing back for `liveness_deadline` seconds is such a reason.
    """
    stuck = [why for part in parts if (why := part.stuck_because())]
    stuck += [why for service in services if (why := _dead_because(service))]
    return one_line("; ".join(stuck))


def _dead_because(service: Servable) -> str:
    """Why nothing is hoped for any more from a service that runs; or ""."""
    engine = service.engine
    if engine is None:
        return ""
    longest = max(engine.stages, key=lambda stage: stage.progress_age)
    age = longest.progress_age
    if age < engine.options.liveness_deadline:
        return ""
    return f"{service.name}: stage {longest.name!r} has work, but has completed no batch for {age:.0f} s"


def status_words(services: Sequence[Servable], parts: Sequence[HostPart], *, stopping: bool = False) -> str:
    """How all of them are, in a line: what still loads, why one takes no work, what is in hand while it is `stopping`.

    Nothing in it breaks the line, and it is no longer than `LONGEST_STATUS_BYTES` of UTF-8.
    """
    if stopping:
        return f"draining: {in_hand(services, parts)} in flight"
    each = [(service.name, _service_words(service)) for service in services]
    told = [each[0][1]] if len(each) == 1 else [f"{name}: {words}" for name, words in each]
    told += [f"{part.name}: {printable(one_line(why))}" for part in parts if (why := part.unready_because())]
    if stuck := stuck_because(services, parts):
        told.append(f"stuck: {printable(stuck)}")
    return cut_line("; ".join(told), LONGEST_STATUS_BYTES)


def in_hand(services: Sequence[Servable], parts: Sequence[HostPart]) -> int:
    """How much was taken in and has not ended: items of the services, and what other parts hold, as jobs."""
    return sum(service.engine.queued for service in services if service.engine is not None) + sum(
        part.in_hand for part in parts
    )


def _service_words(service: Servable) -> str:
    engine = service.engine
    if engine is None:
        return State.STARTING
    reason = loading_words(engine.loading) if engine.state is State.STARTING else engine.reason
    return f"{engine.state}: {printable(one_line(reason))}" if reason else engine.state
