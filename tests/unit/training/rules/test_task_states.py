"""The legal moves of a task."""

from __future__ import annotations

import pytest

from penstock.core.moves import IllegalMove
from penstock.training.rules.task_states import CLAIM, FINISH, GIVE_BACK, GIVE_UP, MOVES, RETRY, TaskState

QUEUED, RUNNING, DONE, FAILED = TaskState


def test_the_moves_are_these_and_no_others():
    found = set()
    for move in MOVES:
        for state in TaskState:
            try:
                found.add((move, state, move[state]))
            except IllegalMove:
                continue
    assert found == {
        (CLAIM, QUEUED, RUNNING),
        (CLAIM, RUNNING, RUNNING),
        (FINISH, RUNNING, DONE),
        (GIVE_BACK, RUNNING, QUEUED),
        (GIVE_UP, RUNNING, FAILED),
        (RETRY, FAILED, QUEUED),
    }


def test_an_illegal_move_says_what_cannot_be_done():
    with pytest.raises(IllegalMove, match="cannot claim a task that is done"):
        CLAIM[DONE]
