"""Errors with texts of any length, and in any number: the log stays small, nobody else waits, and none is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time

import httpx
import pytest
from processes import most_resident
from served import Program, request, run, serving, write_module

from night import tight

MIB = 1024 * 1024
SMALL = 16 * MIB
"""More memory than a coordinator needs for any of this, and much less than one copy of a text."""
HUGE = 200 * MIB
SOURCE = """
import time

import penstock as ps


class Touchy(ps.Stage):
    def predict(self, x: str) -> str:
        if x == "good":
            return x
        if x.startswith("invalid of "):
            size = int(x.split()[-1])
            raise ps.InvalidItem("w" * size, path="$." + "p" * size)
        if x.startswith("invalid"):
            raise ps.InvalidItem("why " * 10_000, path="$." + "p" * 100_000)
        if x == "hold":
            time.sleep(60)
        if x.startswith("message of "):
            raise ValueError("m" * int(x.split()[-1]))
        if x.startswith("note of "):
            error = ValueError("see the note")
            error.add_note("n" * int(x.split()[-1]))
            raise error
        raise ValueError(f"bad {x!r}")


def echo(x: int) -> int:
    return x


touchy, beside = ps.Service(Touchy, name="touchy"), ps.Service(echo, name="beside")
"""


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path, source=SOURCE, services=("touchy", "beside")) as server:
        yield server


class Bystander:
    """Asks `/livez` and another service, or `paths`, all the while: every answer must come, and be the right one."""

    def __init__(self, server, paths=("/livez", "/beside/predict")):
        self._paths = paths
        self.asked = 0
        self.troubles = []
        self.slowest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(server.address,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        assert self.troubles == []
        assert self.asked >= len(self._paths)

    def _ask(self, address):
        with httpx.Client(base_url=address, timeout=30, trust_env=False, verify=False) as http:
            while not self._over.is_set():
                for path in self._paths:
                    started = time.monotonic()
                    answer = http.post(path, json=self.asked) if path.endswith("/predict") else http.get(path)
                    self.slowest = max(self.slowest, time.monotonic() - started)
                    self.asked += 1
                    if answer.status_code != 200:
                        self.troubles.append(answer.text)
                self._over.wait(0.005)


BY_NIGHT = [pytest.param(text, status, marks=pytest.mark.night) for text, status in (("note", 500), ("invalid", 422))]


def predict(server, item):
    return server.http.post("/touchy/predict", json=item)


def test_an_item_in_a_message_writes_little_of_it(server):
    before = len(server.output)
    answer = predict(server, "x" * 15_000_000)
    assert answer.status_code == 500
    server.wait_for(f"{answer.json()['id']}: stage 'Touchy' raised builtins.ValueError at .*model.py:")
    server.stop()
    server.signalled = True
    written = server.output[before:]
    assert "[... cut: 15000006 characters in all ...]" in written
    assert written.count("ValueError: bad 'xxx") == 1
    assert len(written) < 16 * 1024


@pytest.mark.parametrize(("text", "status"), [("message", 500), *BY_NIGHT])
def test_a_text_of_a_hundred_megabytes_delays_nobody_else(server, text, status):
    predict(server, "good")
    before = most_resident(server.pid)
    with Bystander(server) as bystander:
        for _ in range(3):
            answer = predict(server, f"{text} of {100 * MIB}")
            assert answer.status_code == status
            assert len(answer.content) < 32 * 1024
        assert predict(server, "good").status_code == 200
    assert bystander.slowest < tight(1.0)
    assert len(server.output) < 64 * 1024
    assert most_resident(server.pid) - before < SMALL


def test_the_reason_of_an_invalid_item_is_cut_for_its_client_too(server):
    problem = predict(server, "invalid").json()
    assert problem["status"] == 422
    assert problem["detail"].startswith("why why ")
    assert "[... cut: 40000 characters in all ...]" in problem["detail"]
    assert "[... cut: 100002 characters in all ...]" in problem["path"]
    assert len(problem["detail"].encode()) <= 8192 >= len(problem["path"].encode())


COUNT = re.compile(
    r"stage 'Touchy': (\d+) more failures of the kind builtins.ValueError at \S+model.py:\d+ in the last"
)


def accounted(server, ids):
    """How many failures the log names, and how many it counts."""
    named = set(re.findall(r"ERROR penstock.server: (\S+): stage 'Touchy' raised", server.output))
    assert named <= ids
    return len(named), sum(map(int, COUNT.findall(server.output)))


@pytest.mark.parametrize(
    "twice",
    [pytest.param(False, id="drained"), pytest.param(True, id="ended at once", marks=pytest.mark.night)],
)
def test_a_thousand_failures_are_a_few_lines_and_each_is_named_or_counted(server, twice):
    items = [text for n in range(1000) for text in (f"bad {n}", "good")]  # with good ones, so that nothing is recycled
    sent = b"".join(request("POST", "/touchy/predict", x) for x in (*items, *(["hold"] if twice else [])))
    wire = server.wire()
    sender = threading.Thread(target=wire.send, args=(sent,))
    started = time.monotonic()
    sender.start()
    answers = [wire.answer() for _ in items]
    sender.join()
    ids = {answer.json()["id"] for answer in answers if answer.status == 500}
    assert len(ids) == 1000
    if twice:
        server.until(lambda: server.metric("penstock_items_in_flight", service="touchy") == 1)
    server.signal(signal.SIGTERM)
    if twice:
        server.wait_for("SIGTERM: shutting down, waiting")
        server.signal(signal.SIGTERM)
    server.wait()
    seconds = time.monotonic() - started
    named, counted = accounted(server, ids)
    assert named + counted == 1000
    assert named <= 10 * (seconds + 1) + 1
    assert server.output.count("Traceback") <= seconds / 10 + 1
    assert len(COUNT.findall(server.output)) <= seconds + 1


@pytest.mark.night
def test_a_client_batch_of_failures_is_a_few_lines_and_each_is_counted(server):
    items = [text for n in range(3000) for text in (f"bad {n}", "good")]
    answer = server.wire().post("/touchy/batch", items).answer()
    outcomes = answer.json()["outcomes"]
    ids = {outcome["error"]["id"] for outcome in outcomes if "error" in outcome}
    assert (answer.status, len(ids)) == (207, 3000)
    server.stop()
    server.signalled = True
    assert accounted(server, ids) == (11, 2989)
    assert server.output.count("Traceback") == 1


# -- a setup that raises ----------------------------------------------------------------------------------------------

WORDY = f"""
import os

import penstock as ps


class Wordy(ps.Stage):
    def setup(self) -> None:
        if not os.path.exists("well"):
            raise ValueError("m" * {HUGE})

    def predict(self, x: int) -> int:
        return x


service = ps.Service(Wordy, name="wordy")
"""
START = """
import asyncio
import json
import os

import penstock as ps
from model import service
from processes import most_resident


async def main() -> None:
    before = most_resident(os.getpid())
    try:
        await service.start()
    except ps.StartFailed as error:
        told = {"message": error.args[0], "whole": str(error), "traceback": error.traceback}
        print(json.dumps({**told, "grown": most_resident(os.getpid()) - before}))


if __name__ == "__main__":
    asyncio.run(main())
"""
CUT = f"[... cut: {HUGE} characters in all ...]"


def test_a_setup_that_raises_a_huge_text_ends_the_start_with_little_of_it(tmp_path):
    write_module(tmp_path, WORDY)
    write_module(tmp_path, START, "start")
    program = Program(tmp_path, sys.executable, "start.py", env={"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        assert program.wait(60.0) == 0, program.output
    finally:
        program.destroy()
    told = json.loads(program.output.splitlines()[-1])
    assert told["message"].startswith("worker 0 of stage 'Wordy' could not be set up: ValueError: mmm")
    assert CUT in told["message"]
    assert len(told["message"]) <= 8 * 1024 + 100
    assert CUT in told["traceback"]
    assert len(told["traceback"]) <= 64 * 1024
    assert len(told["whole"]) <= len(told["message"]) + len(told["traceback"]) + 100
    assert told["grown"] < SMALL
    assert CUT not in program.output.replace(program.output.splitlines()[-1], ""), "who starts it has it, not the log"


@pytest.mark.night
def test_a_server_whose_setup_raises_a_huge_text_writes_it_once_and_little_of_it(tmp_path):
    write_module(tmp_path, WORDY)
    status, output = run(tmp_path, "serve", "model:service", "--port", "0", limit=60.0)
    assert status == 1
    assert output.count("could not be set up: ValueError: mmm") == 1
    assert output.count("Traceback") == 1
    assert output.count(CUT) == 2, "in the message, and in the traceback"
    assert len(output) < 32 * 1024


@pytest.mark.night
def test_a_setup_that_raises_a_huge_text_again_and_again_costs_the_coordinator_nothing(tmp_path):
    (tmp_path / "well").touch()
    with serving(tmp_path, source=WORDY) as server:
        before = most_resident(server.pid)
        (tmp_path / "well").unlink()
        os.kill(server.workers()[0], signal.SIGKILL)
        with Bystander(server, paths=("/livez",)) as bystander:
            server.until(lambda: server.health()["services"]["wordy"]["state"] == "failed", limit=60.0)
        assert bystander.slowest < tight(1.0)
        health = server.health()["services"]["wordy"]
        assert len(health["reason"]) <= 8 * 1024 + 100
        assert CUT in health["reason"]
        assert most_resident(server.pid) - before < SMALL
        server.until(lambda: server.output.count("could not be set up: ") >= 5, "the last line")
        server.stop()
        server.signalled = True
        assert server.output.count("could not be set up: builtins.ValueError at ") == 1, "with its traceback"
        assert server.output.count("Traceback") == 1
        assert server.output.count("could not be set up: ValueError: mmm") == 4, "each start that failed, once"
        assert len(server.output) < 128 * 1024
