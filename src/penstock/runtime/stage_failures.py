"""How the failures of a stage's workers are told: in the log, in the reason of a stage, and by a start."""

from __future__ import annotations

from typing import Final

from penstock.codec.text import one_line
from penstock.core.dispatch import SentFrame
from penstock.core.fault_lines import FaultKind
from penstock.core.item import Item
from penstock.errors import RETURNED, ProtocolError, StartFailed
from penstock.runtime.worker_slot import IncarnationEnd, WorkerSlot
from penstock.transport.framing import Frame, Status
from penstock.transport.messages import Problem, unpack

REASON_CHARACTERS: Final = 300
"""Longest text of an error in the reason why a worker was restarted or a stage has failed."""


def first_error(frame: Frame) -> str:
    """Why the first item failed that did so by no fault of its caller, in a line."""
    try:
        return short_reason(unpack(frame.payloads[frame.statuses.index(Status.FAILED)], Problem))
    except ProtocolError as broken:
        return str(broken)


def short_reason(problem: Problem) -> str:
    """An error as the reason why a worker or a stage failed: its type and the first line of its message."""
    return one_line(f"{_kind_of(problem)}{problem.message.strip()}"[:REASON_CHARACTERS])


def _kind_of(problem: Problem) -> str:
    """The class of an error before its message; nothing where there is none, or it says what a stage returned."""
    name = problem.type_name
    return "" if not name or name in RETURNED else f"{name.removeprefix('builtins.')}: "


def split_answers(sent: SentFrame, *, retry: bool) -> tuple[list[Item], Frame]:
    """The items that end by the answers of a worker whose device is lost, and these answers; the others stay in `sent`.

    A failure says nothing of an item that gets another try.
    """
    answers: Frame = sent.answers
    ended = Frame(answers.kind, answers.frame_id, answers.seconds, answers.calls)
    items: list[Item] = []
    others: list[Item] = []
    statuses: list[int] = []
    for item, status, payload in zip(sent.items, answers.statuses, answers.payloads, strict=True):
        if status == Status.FAILED and retry and not item.suspect:
            others.append(item)
        else:
            items.append(item)
            statuses.append(status)
            ended.payloads.append(payload)
    ended.statuses = tuple(statuses)
    sent.items = others
    return items, ended


def fault_kind(stage: str, problem: Problem | None) -> FaultKind:
    """What `FaultLog` counts as the same failure."""
    return FaultKind(stage, "", "") if problem is None else FaultKind(stage, problem.type_name, problem.raised_at)


def start_words(worker: WorkerSlot, problem: Problem | None) -> str:
    """What of a start failed."""
    on_examples = problem is not None and problem.on_examples
    return f"{worker} failed on its examples" if on_examples else f"{worker} could not be set up"


def start_failure(worker: WorkerSlot, end: IncarnationEnd) -> StartFailed:
    """Why `worker` ended before it was ready."""
    problem = end.problem
    if problem is not None:
        what = f"{start_words(worker, problem)}: {_kind_of(problem)}{problem.message}"
        return StartFailed(what, traceback=problem.traceback)
    return StartFailed(f"{worker} ended before it was ready: {end.reason}")
