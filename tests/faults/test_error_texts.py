"""Errors with texts of any length, and in any number: the log stays small, nobody else waits, and none is lost."""

from __future__ import annotations

import re
import signal
import threading
import time

import httpx
import pytest
from served import request, serving

MIB = 1024 * 1024
SOURCE = """
import time

import penstock as ps


class Touchy(ps.Stage):
    def predict(self, x: str) -> str:
        if x == "good":
            return x
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
    """Asks `/livez` and another service all the while: every answer must come, and be the right one."""

    def __init__(self, server):
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
        assert self.asked > 10

    def _ask(self, address):
        with httpx.Client(base_url=address, timeout=30, trust_env=False) as http:
            while not self._over.is_set():
                for path, ask in (("/livez", http.get), ("/beside/predict", http.post)):
                    started = time.monotonic()
                    answer = ask(path, **({"json": self.asked} if ask == http.post else {}))
                    self.slowest = max(self.slowest, time.monotonic() - started)
                    self.asked += 1
                    if answer.status_code != 200:
                        self.troubles.append(answer.text)
                self._over.wait(0.005)


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


@pytest.mark.parametrize("text", ["message", "note"])
def test_a_text_of_a_hundred_megabytes_delays_nobody_else(server, text):
    predict(server, "good")
    with Bystander(server) as bystander:
        for _ in range(3):
            assert predict(server, f"{text} of {100 * MIB}").status_code == 500
        assert predict(server, "good").status_code == 200
    assert bystander.slowest < 1.0
    assert len(server.output) < 64 * 1024


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


@pytest.mark.parametrize("twice", [False, True], ids=["drained", "ended at once"])
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
        server.until(lambda: server.metric("penstock_items_in_hand", service="touchy") == 1)
    server.signal(signal.SIGTERM)
    if twice:
        server.wait_for("SIGTERM: draining")
        server.signal(signal.SIGTERM)
    server.wait()
    seconds = time.monotonic() - started
    named, counted = accounted(server, ids)
    assert named + counted == 1000
    assert named <= 10 * (seconds + 1) + 1
    assert server.output.count("Traceback") <= seconds / 10 + 1
    assert len(COUNT.findall(server.output)) <= seconds + 1


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
