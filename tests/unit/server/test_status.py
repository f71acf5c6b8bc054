"""The table of problem types and numbers has a row for every ending."""

from __future__ import annotations

import inspect

import pytest

from penstock import errors
from penstock.config import ServerOptions
from penstock.errors import RequestError
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
from penstock.server.status import KINDS, Problems

ENDINGS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RequestError)]


def test_every_ending_has_a_problem_type_of_its_own():
    assert set(KINDS) == set(ENDINGS)
    assert len({kind for kind, _ in KINDS.values()}) == len(ENDINGS)


@pytest.mark.parametrize("kind", ENDINGS)
def test_every_ending_has_a_number(kind):
    assert 400 <= Problems(ServerOptions(), FaultLog(LoopClock())).status(kind()) < 600
