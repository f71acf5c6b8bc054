"""The example of the job queue: killed half-way and started again, it has every result and does nothing twice.

The stage of a copy of the example writes down which jobs it computes.  At its first start it also stops after
`HALF` of them, so that the kill finds some done, some in hand, and some that nobody has begun.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from programs import MarkedProgram
from waiting import until_now

from penstock import jobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "job_queue"
TEXTS = 200
HALF = 100
AT_ONCE = 64
"""More than are ever in hand: two batches of 16 at the worker, one that waits, and the downloads."""
COUNTED = f"""

import functools, os, time
from pathlib import Path

_predict = Embed.predict


@functools.wraps(_predict)
def _counted(self, texts):
    calls = Path(os.environ["CALLS"])
    while "HOLD" in os.environ and calls.read_text().count("\\n") >= {HALF}:
        time.sleep(0.01)
    with calls.open("a") as file:
        file.write("".join(f"{{job_id}}\\n" for job_id in ps.current_requests()))
    return _predict(self, texts)


Embed.predict = _counted
"""


@pytest.fixture
def start(tmp_path):
    """``start(**env)``: the example over the folders `texts` and `results`, in a process group of its own."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "service.py").open("a") as service:
        service.write(COUNTED)
    (tmp_path / "calls").touch()
    (tmp_path / "texts").mkdir()
    started = []

    def begin(**env: str) -> MarkedProgram:
        command = [sys.executable, str(copy / "embed.py"), "texts", "results"]
        environ = {**os.environ, "CALLS": str(tmp_path / "calls"), **env}
        started.append(MarkedProgram(command, tmp_path, environ, start_new_session=True))
        return started[-1]

    yield begin
    for program in started:
        program.destroy()


def text_of(number: int) -> str:
    return f"Text {number}: the gate lets in {number} buckets of water, and then it is shut."


def test_killed_half_way_it_goes_on_and_does_nothing_twice(start, tmp_path):
    for number in range(TEXTS):
        (tmp_path / "texts" / f"{number}.txt").write_text(text_of(number))
    results, calls = tmp_path / "results", tmp_path / "calls"
    first = start(HOLD="1")
    until_now(lambda: calls.read_text().count("\n") >= HALF, "half of the texts", 100, lambda: first.output)
    with jobs.connect(f"sqlite:///{results / 'queue.db'}") as queue:
        # The stage stops after those that it has written down, so what is computed is also acknowledged soon.
        # On a busy machine it may be a while until more are submitted and claimed.
        def stands() -> bool:
            stats, computed = queue.stats(), calls.read_text().count("\n")
            return stats.succeeded >= HALF and stats.succeeded + stats.running > computed

        until_now(stands, "the end of their jobs, and the claim of the next", 40, lambda: first.output)
    os.killpg(first.process.pid, signal.SIGKILL)
    until_now(lambda: not first.survivors(), "the end of all that was killed")
    half_way = set(results.glob("*.npy"))
    assert len(half_way) < TEXTS

    second = start()
    assert second.process.wait(100) == 0, second.output
    second.read_to_end()
    assert f"{TEXTS} of {TEXTS} texts, 0 failed" in second.output
    assert {path.name for path in results.glob("*.npy")} == {f"{number}.txt.npy" for number in range(TEXTS)}
    assert not [path for path in results.iterdir() if path.name.endswith(".part")]

    computed = Counter(calls.read_text().split())
    with jobs.connect(f"sqlite:///{results / 'queue.db'}") as queue:
        listed = queue.list(limit=1000)
    assert len(listed) == len(computed) == TEXTS
    in_hand = {job.id for job in listed if len(job.attempts) > 1}
    assert 0 < len(in_hand) <= AT_ONCE
    assert {job_id for job_id, times in computed.items() if times > 1} <= in_hand
    assert max(computed.values()) <= 2
    for job in listed:
        assert [attempt.cause for attempt in job.attempts] == ["lease_expired"] * (job.id in in_hand) + ["succeeded"]


@pytest.mark.night
def test_ctrl_c_ends_it_in_order_and_the_next_start_does_the_rest(start, tmp_path):
    for number in range(TEXTS):
        (tmp_path / "texts" / f"{number}.txt").write_text(text_of(number))
    results = tmp_path / "results"
    first = start()
    until_now(lambda: list(results.glob("*.npy")), "some results", 40, lambda: first.output)
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.process.wait(20) == 0, first.output
    assert not first.survivors()
    first.read_to_end()
    assert "Traceback" not in first.output
    second = start()
    assert second.process.wait(30) == 0, second.output
    assert len(list(results.glob("*.npy"))) == TEXTS
    assert (tmp_path / "calls").read_text().count("\n") == TEXTS


@pytest.mark.night
def test_the_results_are_those_of_the_model(start, tmp_path):
    (tmp_path / "texts" / "a.txt").write_text("water")
    (tmp_path / "texts" / "b.txt").write_text("waters")
    (tmp_path / "texts" / "c.txt").write_text("fire")
    program = start()
    assert program.process.wait(50) == 0, program.output
    a, b, c = (np.load(tmp_path / "results" / f"{name}.txt.npy") for name in "abc")
    assert a.shape == (256,)
    assert a @ b > 0.5 > a @ c


@pytest.mark.night
def test_a_text_that_cannot_be_read_is_named_and_the_others_are_embedded(start, tmp_path):
    (tmp_path / "texts" / "good.txt").write_text("water")
    (tmp_path / "texts" / "bad.txt").write_bytes(b"\xff\xfe")
    program = start()
    assert program.process.wait(50) == 1, program.output
    program.read_to_end()
    assert "texts/bad.txt: the text is not UTF-8" in program.output
    assert [path.name for path in (tmp_path / "results").glob("*.npy")] == ["good.txt.npy"]
