import pytest

from penstock.core.moves import IllegalMove
from penstock.jobs.rules.job_states import CLAIM, ENDED, MOVES, RETRY, JobState


def test_a_run_that_has_ended_moves_no_more_but_by_a_retry():
    for move in MOVES:
        for state in ENDED:
            if move is RETRY and state is not JobState.SUCCEEDED:
                assert move[state] is JobState.QUEUED
            else:
                with pytest.raises(IllegalMove):
                    move[state]


def test_every_state_that_is_no_end_can_come_to_each_end():
    def reachable(state):
        found = set()
        ahead = [state]
        while ahead:
            here = ahead.pop()
            for move in MOVES:
                try:
                    there = move[here]
                except IllegalMove:
                    continue
                if there not in found:
                    found.add(there)
                    ahead.append(there)
        return found

    for state in set(JobState) - ENDED:
        assert reachable(state) >= ENDED


def test_only_a_claim_leads_to_a_lease():
    leading = set()
    for move in MOVES:
        for state in JobState:
            try:
                if move[state] is JobState.RUNNING:
                    leading.add(move)
            except IllegalMove:
                pass
    assert leading == {CLAIM}
