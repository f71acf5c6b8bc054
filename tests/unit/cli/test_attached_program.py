"""What signals ask of the process of `penstock worker run`, told when each comes."""

import signal

from penstock.cli import attached_program
from penstock.cli.attached_program import _AttachedProgram
from penstock.worker.leaving import AttachedPhase


def test_a_signal_that_is_delivered_twice_has_the_worker_leave_and_a_later_one_ends_it(monkeypatch):
    program, ended = _AttachedProgram("model:Square", None, None, None), []
    monkeypatch.setattr(program, "_end", ended.append)
    times = iter((3.0, 3.0, 4.0, 4.1))
    monkeypatch.setattr(attached_program, "monotonic", lambda: next(times))
    program._leaving.enter(AttachedPhase.WAITING)
    for _ in range(3):
        program._told(signal.SIGTERM)
    assert (program._leaving.asked, ended) == (True, [])
    program._told(signal.SIGTERM)
    assert ended == [128 + signal.SIGTERM]
