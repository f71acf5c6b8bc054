"""Workers of every kind pass one suite: `penstock.testing.workers`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.codec.formats import Codec
from penstock.testing.command_worker import CommandWorker
from penstock.testing.inline_worker import InlineWorker
from penstock.testing.worker_case import CheckSkipped, SuiteTerms
from penstock.testing.workers import WORKER_CHECKS, check_worker

NOT_INLINE = {
    "hello",
    "unknown-fields",
    "turned-away",
    "max-body",
    "cut-off",
    "detach-while-idle",
    "detach-while-busy",
    "drained",
    "server-gone-and-back",
}

NODE_WORKER = Path(__file__).parents[2] / "examples" / "node_worker" / "worker.mjs"

each_check = pytest.mark.parametrize("check", WORKER_CHECKS, ids=lambda check: check.name)


@each_check
def test_the_worker_of_inline_does_what_every_worker_must(check):
    if check.name in NOT_INLINE:
        with pytest.raises(CheckSkipped):
            check_worker(check, InlineWorker(), SuiteTerms())
    else:
        check_worker(check, InlineWorker(), SuiteTerms())


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
@each_check
def test_the_worker_in_node_does_what_every_worker_must(check):
    check_worker(check, CommandWorker(["node", str(NODE_WORKER)]), SuiteTerms())


@pytest.mark.parametrize("codec", [Codec.JSON, Codec.MSGPACK], ids=lambda codec: codec.name)
@each_check
def test_a_suite_in_one_format_passes_too(check, codec):
    if check.name not in NOT_INLINE:
        check_worker(check, InlineWorker(), SuiteTerms(codecs=(codec,), max_size=5))
