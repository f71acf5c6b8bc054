"""Say how a run is, for people and for programs: a snapshot of its file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ArtifactInvalid
from penstock.hosting.host_clock import time_now
from penstock.training.rules.task_rules import task_name
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.task_store import TaskEntry
from penstock.training.training_run import open_run

MOST_TROUBLES: Final = 10
"""How many failed attempts are told, the newest."""


class RunState(StrEnum):
    """How a run is, by the names that users see."""

    UNPLANNED = "unplanned"
    """Nobody has called `plan` to its end."""
    RUNNING = "running"
    """Tasks are left; `workers` has those that somebody works on."""
    DONE = "done"
    """Nothing is left."""
    FAILED = "failed"
    """A task used up its attempts."""


class PhaseStatus(msgspec.Struct, frozen=True):
    """How many tasks of a phase are in each state."""

    phase: Phase
    queued: int
    running: int
    done: int
    failed: int


class WorkerStatus(msgspec.Struct, frozen=True):
    """A task that a worker has claimed."""

    task: str
    """As ``train 3``."""
    pid: int | None
    host: str
    attempt: int
    """Which attempt it is, from 1."""
    running_seconds: float | None
    """The seconds since it was claimed; None since another boot."""
    lease_left: float | None
    """The seconds that the lease runs on; 0 or less where it ran out."""


class TaskError(msgspec.Struct, frozen=True):
    """How the last failed attempt of a task failed."""

    task: str
    state: TaskState
    """Of the task, now."""
    attempts: int
    """How many attempts have failed since the plan, or since the last retry."""
    error: str
    """The traceback, or a sentence."""


class RunStatus(msgspec.Struct, frozen=True):
    """How a run is."""

    taken_at: str
    """When that was, in UTC."""
    folder: str
    run: str | None
    """Its id."""
    state: RunState
    publish_to: str | None
    """The model directory, or None."""
    version: int | None
    """The version that it has published, also where the worker died that did, and the run does not know it yet."""
    phases: tuple[PhaseStatus, ...]
    """In the order in which they are done; those without tasks are left out."""
    workers: tuple[WorkerStatus, ...]
    errors: tuple[TaskError, ...]
    """The newest last."""


def read_status(folder: Path) -> RunStatus:
    """How the run in `folder` is; nothing is made there.

    Raises:
        ConfigError: there is no run.
        RunUnavailable: its file is locked, or the disk fails.
    """
    with closing(open_run(folder)) as store:
        run, publish_to, entries = store.run_id(), store.publishes_to(), store.tasks()
        saved = store.results(Phase.SAVE)
    return RunStatus(
        taken_at=time_now(),
        folder=str(folder),
        run=run,
        state=_state(run, entries),
        publish_to=publish_to,
        version=next((version for version in saved if version is not None), _published(run, publish_to)),
        phases=tuple(_kind(kind, entries) for kind in Phase if any(entry.kind is kind for entry in entries)),
        workers=tuple(_holder(entry) for entry in entries if entry.state is TaskState.RUNNING),
        errors=_troubles(entries),
    )


def _published(run: str | None, publish_to: str | None) -> int | None:
    """The version of the run that `CURRENT` knows of; None where there is none, or nobody can tell."""
    if run is None or publish_to is None:
        return None
    with contextlib.suppress(ArtifactInvalid, ModuleNotFoundError):  # numpy, which who only looks may not have
        from penstock.artifact.publishing import version_of_run

        return version_of_run(publish_to, run)
    return None


def _state(run: str | None, entries: Sequence[TaskEntry]) -> RunState:
    if run is None:
        return RunState.UNPLANNED
    if any(entry.state is TaskState.FAILED for entry in entries):
        return RunState.FAILED
    return RunState.DONE if all(entry.state is TaskState.DONE for entry in entries) else RunState.RUNNING


def _kind(kind: Phase, entries: Sequence[TaskEntry]) -> PhaseStatus:
    states = [entry.state for entry in entries if entry.kind is kind]
    return PhaseStatus(kind, *(states.count(state) for state in TaskState))


def _holder(entry: TaskEntry) -> WorkerStatus:
    name = task_name(entry.kind, entry.place)
    return WorkerStatus(name, entry.pid, entry.host, entry.attempts + 1, entry.held, entry.lease_left)


def _troubles(entries: Sequence[TaskEntry]) -> tuple[TaskError, ...]:
    troubled = sorted((entry for entry in entries if entry.trouble), key=lambda entry: entry.claimed or 0.0)
    return tuple(
        TaskError(task_name(entry.kind, entry.place), entry.state, entry.attempts, entry.trouble)
        for entry in troubled[-MOST_TROUBLES:]
    )
