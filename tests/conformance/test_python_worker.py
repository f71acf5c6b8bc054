"""`penstock worker run` does what every worker must."""

from __future__ import annotations

import sys

import pytest

from penstock.testing.command_worker import CommandWorker
from penstock.testing.worker_case import SuiteTerms
from penstock.testing.workers import WORKER_CHECKS, check_worker

COMMAND = [sys.executable, "-m", "penstock", "worker", "run", "penstock.testing.inline_worker:SquareStage"]


@pytest.mark.parametrize("check", WORKER_CHECKS, ids=lambda check: check.name)
def test_the_worker_in_python_does_what_every_worker_must(check):
    check_worker(check, CommandWorker([*COMMAND, "--stage", "square", "--connect", "{path}"]), SuiteTerms())
