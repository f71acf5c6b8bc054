"""Decide what becomes of a run's tasks: who gets which, and what the end of an attempt means.

Contract
--------
* A fence counts while its task is leased and has not been claimed since, also after the lease has run out.
* A lease runs out when its time has come, and at once in another boot: nobody who held it is left.
* An attempt that failed, or whose lease had run out when the task was claimed again, is counted.  The last one that a
  task has makes the run fail.  What is given back is not counted.
* The first task that fails is the one that is told, until somebody has the run go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from penstock.training.rules.task_states import CLAIM, FINISH, GIVE_BACK, GIVE_UP, RETRY, Phase, TaskState
from penstock.training.task_store import Blocked, Failed, Ready, TaskEntry

KINDS: Final = tuple(Phase)
"""The kinds in the order in which they are worked on; that of saving is the last."""


class HostTime(NamedTuple):
    """What the clocks of a host say."""

    wall: float
    """In Unix seconds; shown only."""
    boottime: float
    """The seconds since the host's boot."""
    boot_id: str


class Worker(NamedTuple):
    """The process that claims."""

    pid: int
    host: str


class TaskRecord(NamedTuple):
    """What is kept of a task, but for its payload and its result."""

    kind: Phase
    place: int
    state: TaskState = TaskState.QUEUED
    fence: int = 0
    attempts: int = 0
    """How many have failed since the plan, or since the last retry."""
    lease_until: float | None = None
    """By the host's clock since its boot; None before the first claim."""
    boot_id: str = ""
    """The boot of the last claim, whose clock `lease_until` and `since` are of."""
    since: float | None = None
    """When it was claimed last, by the host's clock since its boot."""
    claimed: float | None = None
    """When it was claimed last, in Unix seconds."""
    pid: int | None = None
    host: str = ""
    trouble: str = ""
    """How the last failed attempt failed."""


class Situation(NamedTuple):
    """What is known of a run when somebody asks it for a task."""

    failed: Failed | None
    """The failure that is told, where the run has failed."""
    left: Mapping[Phase, int]
    """How many tasks of each kind are not done."""
    first: TaskRecord | None
    """Of the kind that is being worked on, the first task by its place that `may_be_claimed`."""
    version: int | None
    """What the save task has published; None where it is not done, or there is none."""


class Take(NamedTuple):
    """A task is claimed."""

    task: TaskRecord
    """As it is from now on."""


class GiveUp(NamedTuple):
    """A task's last attempt was lost: the run fails."""

    task: TaskRecord
    """As it is from now on."""


Decision: TypeAlias = Take | GiveUp | Ready | Failed | Blocked


def task_name(kind: Phase, place: int) -> str:
    """As "train 3", for people.  There is one save task, so it has no number."""
    return kind.value if kind is Phase.SAVE else f"{kind.value} {place}"


def failure_of(task: TaskRecord) -> Failed:
    """What is told of a run that has failed by this task."""
    return Failed(task_name(task.kind, task.place), task.trouble)


def current_kind(left: Mapping[Phase, int]) -> Phase | None:
    """The kind that is being worked on; None where everything is done."""
    return next((kind for kind in KINDS if left.get(kind, 0)), None)


def has_run_out(task: TaskRecord, now: HostTime) -> bool:
    """Whether the task is leased, and its lease no longer keeps others from it."""
    return task.state is TaskState.RUNNING and _seconds_left(task, now) <= 0


def may_be_claimed(task: TaskRecord, now: HostTime) -> bool:
    """Whether the task waits for a worker, or has lost its own."""
    return task.state is TaskState.QUEUED or has_run_out(task, now)


def fence_counts(task: TaskRecord | None, fence: int) -> bool:
    """Whether who claimed the task with this fence is still its holder.  None is a task that is not in the plan."""
    return task is not None and task.state is TaskState.RUNNING and task.fence == fence


def was_finished(task: TaskRecord | None, fence: int) -> bool:
    """Whether who claimed the task with this fence has finished it; the answer may not have come, and it asks again."""
    return task is not None and task.state is TaskState.DONE and task.fence == fence


def decide_claim(
    situation: Situation, kinds: Collection[Phase], attempts: int, lease: float, worker: Worker, now: HostTime
) -> Decision:
    """What somebody gets who asks for a task of one of `kinds`.

    A last attempt that was lost is found by who has no function for the kind too: there may be nobody else.
    """
    if situation.failed is not None:
        return situation.failed
    kind = current_kind(situation.left)
    if kind is None:
        return Ready(situation.version)
    task = situation.first
    if task is not None and has_run_out(task, now):
        task = _lost(task)
        if task.attempts >= attempts:
            return GiveUp(task._replace(state=GIVE_UP[task.state]))
    if task is None or kind not in kinds:
        return Blocked(kind, situation.left[kind], claimable=task is not None)
    return Take(_claimed(task, lease, worker, now))


def renewed(task: TaskRecord, lease: float, now: HostTime) -> TaskRecord:
    """The task with a lease of so many seconds from now, for the holder whose fence counts."""
    since = task.since if task.boot_id == now.boot_id else None
    return task._replace(lease_until=now.boottime + lease, boot_id=now.boot_id, since=since)


def finished(task: TaskRecord) -> TaskRecord:
    """The task after its function has returned."""
    return task._replace(state=FINISH[task.state])


def after_failure(task: TaskRecord, trouble: str, attempts: int) -> TaskRecord:
    """The task after an attempt that failed by `trouble`: it waits, or has failed where that was the last one."""
    failures = task.attempts + 1
    move = GIVE_UP if failures >= attempts else GIVE_BACK
    return task._replace(state=move[task.state], attempts=failures, trouble=trouble)


def released(task: TaskRecord) -> TaskRecord:
    """The task after it was given back; the attempt does not count."""
    return task._replace(state=GIVE_BACK[task.state])


def retried(task: TaskRecord, now: HostTime) -> TaskRecord:
    """The task after somebody had the failed run go on.

    One whose lease has run out is given back: its attempt was lost before, and must not count as one of the new ones.
    """
    if task.state is TaskState.DONE:
        return task
    if task.state is TaskState.FAILED:
        return task._replace(state=RETRY[task.state], attempts=0)
    if has_run_out(task, now):
        return task._replace(state=GIVE_BACK[task.state], attempts=0)
    return task._replace(attempts=0)


def entry_of(task: TaskRecord, now: HostTime) -> TaskEntry:
    """What is shown of the task."""
    held = lease_left = None
    if task.state is TaskState.RUNNING:
        lease_left = _seconds_left(task, now)
        if task.since is not None and task.boot_id == now.boot_id:
            held = now.boottime - task.since
    return TaskEntry(
        kind=task.kind,
        place=task.place,
        state=task.state,
        attempts=task.attempts,
        pid=task.pid,
        host=task.host,
        claimed=task.claimed,
        held=held,
        lease_left=lease_left,
        trouble=task.trouble,
    )


def _seconds_left(task: TaskRecord, now: HostTime) -> float:
    """The seconds that the lease of a leased task runs on; 0 in another boot."""
    if task.lease_until is None or task.boot_id != now.boot_id:
        return 0.0
    return task.lease_until - now.boottime


def _lost(task: TaskRecord) -> TaskRecord:
    """The task, still leased, with the attempt counted whose lease has run out."""
    trouble = (
        f"lease expired: process {task.pid} on {task.host} sent no renewal; it was killed, hung or "
        "paused, or its host restarted"
    )
    return task._replace(attempts=task.attempts + 1, trouble=trouble)


def _claimed(task: TaskRecord, lease: float, worker: Worker, now: HostTime) -> TaskRecord:
    return task._replace(
        state=CLAIM[task.state],
        fence=task.fence + 1,
        lease_until=now.boottime + lease,
        boot_id=now.boot_id,
        since=now.boottime,
        claimed=now.wall,
        pid=worker.pid,
        host=worker.host,
    )
