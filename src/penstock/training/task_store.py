"""What keeps the tasks of a training run: the seam between `Run` and the file.

Contract
--------
* What a method returns survives the end of the process, a crash of the system and a power cut.
* Of all that claim one task at a time, one gets it, with a fence that is larger than all fences of that task before.
* What is told with a fence that no longer counts changes nothing, and is answered with False.  A fence counts until
  the task is claimed again, given back, done or failed, also after its lease has run out.
* Every method may be called from any thread of the process that opened the store; the calls of several threads take
  turns.
* A method that has nothing to change writes nothing, so that who waits may ask often.

Errors
------
* `RunUnavailable`: what keeps the tasks cannot be used now.  Whether the call did what was asked is not known then.
* `ConfigError`: the store was opened in another process, or there is no plan and the call needs one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from penstock.training.rules.task_states import Phase, TaskState


class TaskHold(NamedTuple):
    """A claim on a task."""

    kind: Phase
    place: int
    """The place in the plan of its kind, from 0."""
    fence: int


class ClaimedTask(NamedTuple):
    """A task to be worked on."""

    hold: TaskHold
    payload: Any
    """As the plan has it; None for the save task."""
    attempt: int
    """Which attempt this is, from 1."""


class Ready(NamedTuple):
    """Nothing is left to be done."""

    version: int | None
    """The published version; None where the run publishes nothing."""


class Failed(NamedTuple):
    """The run has failed."""

    task: str
    """As "train 3"."""
    trouble: str
    """The traceback, or a sentence where the worker died."""


class Blocked(NamedTuple):
    """There is nothing to claim now."""

    kind: Phase
    """The kind that is being worked on."""
    left: int
    """How many of its tasks are not done."""
    claimable: bool
    """Whether some could be claimed by who has a function for this kind."""


Next: TypeAlias = ClaimedTask | Ready | Failed | Blocked


class RunPlan(NamedTuple):
    """What a run is to do."""

    tasks: Mapping[Phase, Sequence[Any]]
    """The payloads of train, evaluate and predict, which JSON can carry."""
    publish_to: str | None
    """The model directory, absolute; None: the run publishes nothing, and has no save task."""


class KindProgress(NamedTuple):
    """How far a kind is."""

    kind: Phase
    total: int
    left: int
    """How many of its tasks are not done."""


class TaskEntry(msgspec.Struct, frozen=True):
    """What is known of one task."""

    kind: Phase
    place: int
    state: TaskState
    attempts: int
    """How many attempts have failed since the plan, or since the last retry."""
    pid: int | None = None
    """Of the last claim."""
    host: str = ""
    """Of the last claim: the host name that its process saw."""
    claimed: float | None = None
    """When it was claimed last, in Unix seconds."""
    held: float | None = None
    """The seconds since it was claimed, by the host's clock since its boot; None where it is not leased, or since
    another boot."""
    lease_left: float | None = None
    """The seconds that its lease runs on; 0 or less where it ran out, None where it is not leased."""
    trouble: str = ""
    """How the last failed attempt failed: a traceback or a sentence."""


class TaskStore(Protocol):
    """The tasks of one run."""

    def plan(self, plan: RunPlan) -> str:
        """Keep the plan, and return the run's id.  The same plan again changes nothing.

        Raises:
            ConfigError: another plan, or another model directory, is there already; or a payload does not come out of
                JSON as it went in.
        """

    def run_id(self) -> str | None:
        """The run's id; None before there is a plan."""

    def publishes_to(self) -> str | None:
        """The model directory of the plan; None where it has none, and before there is a plan."""

    def claim(self, kinds: Collection[Phase], *, lease: float, attempts: int) -> Next:
        """Claim the first task that waits, or whose lease has run out, of the kind that is being worked on.

        A task whose lease has run out has had a failed attempt; where it was the last of `attempts`, the run fails.

        Args:
            kinds: those that the caller has functions for.
            lease: how many seconds the claim counts.
            attempts: how many attempts a task has.

        Raises:
            ConfigError: there is no plan.
        """

    def renew(self, hold: TaskHold, lease: float) -> bool:
        """Have the lease run for so many seconds from now; False where the fence no longer counts."""

    def holds(self, hold: TaskHold) -> bool:
        """Whether the fence still counts."""

    def finish(self, hold: TaskHold, result: Any) -> bool:
        """The task is done; `result` is what its function returned, of the save task the version.

        It may be told again, where the first answer did not come.  A result is kept as JSON has it: a tuple comes back
        as a list.

        Raises:
            ConfigError: JSON cannot carry the result; the task is as it was.
        """

    def fail(self, hold: TaskHold, trouble: str, *, attempts: int) -> bool:
        """The attempt has failed: the task goes back, or was the last of `attempts`, and the run fails."""

    def release(self, hold: TaskHold) -> bool:
        """The task goes back, and the attempt does not count."""

    def release_all(self) -> list[TaskHold]:
        """Every task goes back that was claimed through this store and has not ended; returns which went back.

        These attempts do not count.  One of these tasks may be that of a call of `claim` which somebody interrupted, so
        that nobody knows of the claim.
        """

    def retry(self) -> bool:
        """Have a failed run go on, every task that is not done with all its attempts; False if it has not failed.

        A task whose lease has run out is given back.
        """

    def results(self, kind: Phase) -> list[Any]:
        """What the functions of this kind returned, in the order of the plan; None where a task is not done."""

    def progress(self) -> list[KindProgress]:
        """How far each kind is, in the order of the kinds; at once, also where the plan is large."""

    def tasks(self) -> list[TaskEntry]:
        """Every task, by kind and place."""

    def close(self) -> None:
        """Let go of everything; may be called more than once."""
