"""What callers are told of items that a worker ran, or died under, and that have no result."""

from __future__ import annotations

from penstock.core.payload import Payload
from penstock.errors import ProtocolError, RequestError, StageFailed, WorkerLost
from penstock.transport.framing import Status
from penstock.transport.messages import Problem, invalid_input, stage_failure, unpack


def read_failure(stage: str, status: int, payload: Payload) -> RequestError:
    """What a worker of `stage` says of an item that it has run and that has no result."""
    try:
        problem = unpack(payload, Problem)
    except ProtocolError as broken:
        # The worker no longer holds the batch: if the item is not settled here, it never is.
        return StageFailed(str(broken), stage=stage)
    error = invalid_input(problem) if status == Status.INVALID else stage_failure(problem, stage)
    error.started = True
    return error


def lost_with_worker(stage: str, *, hung: bool, alone: bool, again: bool) -> WorkerLost:
    """Why an item of `stage` ends whose worker ended under it; `again` says that it was the second one."""
    what = "this item alone" if alone else "a batch with this item"
    how = f"was killed, because it ran {what} longer than the stage's timeout" if hung else f"died while it ran {what}"
    words = f"The worker process {how}."
    if again:
        words = f"The worker process {how}; a worker had been lost while it ran this item before."
    return WorkerLost(words, stage=stage, hung=hung, alone=alone)
