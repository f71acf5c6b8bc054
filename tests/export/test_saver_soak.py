"""The saver of a training run killed, or stopped past its lease, at 200 random moments: one version comes each time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from itertools import count

import pytest

pytest.importorskip("skl2onnx")

from forked_workers import Worker, nursery
from shared_run import LEASE, NEW, SharedRun, shared_run
from waiting import until_now

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

ROUNDS = int(os.environ.get("SOAK_SAVERS", "200"))
SEED = int(os.environ.get("SOAK_SEED") or time.time())
LONGEST_STOP_SECONDS = LEASE + 4.0
"""For how long a saver is stopped at most: it may have the publishing lock, for which others wait 30 s."""


@pytest.fixture(scope="module", autouse=True)
def workers_start_at_once():
    with nursery():
        yield


def seconds_of_a_save(shared: SharedRun, saver: Worker) -> float:
    """How long it was from when `save` was called to its end."""
    assert saver.end() == {"version": NEW}
    return saver.order.path("end").stat().st_mtime - (shared.folder / "saving").stat().st_mtime


def killed(shared: SharedRun, saver: Worker, others: list[Worker]) -> str:
    """Kill the saver, and start it again, as its operator would."""
    saver.signal(signal.SIGKILL)
    saver.until(lambda: saver.ended, "to be killed")
    others.append(shared.start("first-again"))
    return "killed"


def stood_still(shared: SharedRun, saver: Worker, others: list[Worker]) -> str:
    """Stop the saver past its lease, and have it go on."""
    saver.signal(signal.SIGSTOP)
    until = time.monotonic() + LONGEST_STOP_SECONDS
    until_now(
        lambda: all(other.ended for other in others) or time.monotonic() > until, "others", 2 * LONGEST_STOP_SECONDS
    )
    waited = "" if all(other.ended for other in others) else ", with a lock"
    saver.signal(signal.SIGCONT)
    end = saver.end()
    assert end == {"version": NEW} or end["error"] == "LeaseLost", end
    return f"stopped{waited}, got {'the version' if 'version' in end else 'LeaseLost'}"


def test_one_version_comes_whenever_its_saver_fails(tmp_path, capsys):
    chance = random.Random(SEED)
    began = time.monotonic()
    ends: Counter[str] = Counter()
    savers: Counter[str] = Counter()
    seconds = 0.0
    with capsys.disabled():
        print(f"\nseed {SEED}: {ROUNDS} savers")  # noqa: T201  # to run it again
        for number in count():
            folder = tmp_path / str(number)
            folder.mkdir()
            with shared_run(folder) as shared:
                saver = shared.start("first")
                others = [shared.start(name, gated=True) for name in ("second", "third")]
                saver.until(lambda: shared.saving, "to save")
                shared.open_gate()
                saver.process.join(chance.uniform(0, seconds) if seconds else None)
                if saver.ended:  # the first one always does, and tells how long there is to fail
                    seconds = seconds_of_a_save(shared, saver)
                else:
                    ends[chance.choice((killed, stood_still))(shared, saver, others)] += 1
                assert [other.end() for other in others] == [{"version": NEW}] * len(others)
                savers[shared.models.check_one_more()["metadata"]["saver"]] += 1
            shutil.rmtree(folder)
            if ends.total() >= ROUNDS:
                break
        took = time.monotonic() - began
        print(f"{took:.0f} s; savers: {dict(ends)}; whose model it was: {dict(savers)}")  # noqa: T201
    assert len(savers) > 1 or ROUNDS < 20
