"""What `penstock work` makes of the services it is given."""

from __future__ import annotations

import argparse
import math

import pytest

import penstock as ps
from penstock.cli.options import flag_name
from penstock.cli.work import Work


def read(*flags, environ=None):
    parser = argparse.ArgumentParser()
    for name in ("queue", "queue_file", "max_run", "stall_unready", "http", "health", "api_key_file"):
        parser.add_argument(flag_name(name))
    return Work.read(parser.parse_args(["--queue", "sqlite:///q.db", *flags]), environ or {})


def stalls_after(work, **options):
    (service,) = work.bounded([ps.Service(math.sqrt, **options)])
    return service.options.stall_unready


def test_a_stage_has_stalled_only_after_the_longest_run_of_a_job():
    assert stalls_after(read()) == 3600.0
    assert stalls_after(read("--max-run", "90")) == 90.0


@pytest.mark.parametrize("given", [{"flags": ("--stall-unready", "60")}, {"environ": {"PENSTOCK_STALL_UNREADY": "60"}}])
def test_what_was_said_is_kept(given):
    assert stalls_after(read(*given.get("flags", ()), environ=given.get("environ"))) == 60.0


def test_a_stage_has_stalled_before_its_service_is_dead():
    assert stalls_after(read("--max-run", "900"), stall_dead=100.0) == 100.0


def test_what_the_service_itself_says_is_kept():
    assert stalls_after(read(), stall_unready=math.inf) == math.inf
    assert stalls_after(read(), stall_unready=5.0) == 5.0
