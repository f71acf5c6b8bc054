"""Say why a worker's task counts no longer: the run has failed, or somebody else has the task."""

from __future__ import annotations

from penstock.errors import LeaseLost, RunFailed
from penstock.training.rules.task_rules import task_name
from penstock.training.task_store import Failed, TaskHold


def run_failed(failed: Failed) -> RunFailed:
    """What is raised where a run has failed."""
    return RunFailed(
        f"the run has failed: task {failed.task} used up its attempts; retry it with `penstock training retry`",
        task=failed.task,
        traceback=failed.trouble,
    )


def lease_lost(hold: TaskHold) -> LeaseLost:
    """What is raised where the fence of a task counts no longer."""
    return LeaseLost(
        f"lease of task {task_name(hold.kind, hold.place)} expired: another worker has the task, or "
        "it was given up; the result of its function was dropped"
    )
