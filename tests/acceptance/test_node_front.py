"""The front in Node before a service in Python: each caller is answered, whatever becomes of Python and of itself."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from waiting import until_now

from node_front import SERVICE, ask, assert_told, build_front, send_only
from typescript_package import MISSING, has_node, run_npm

pytestmark = [
    pytest.mark.night,  # it installs packages of npm
    pytest.mark.skipif(not has_node(), reason=MISSING),
    pytest.mark.timeout(300),
]

PENSTOCK = str(Path(sys.executable).parent / "penstock")
START_LIMIT = 50.0
WANTED = "1 rejected, 4 ok, 4 errors; health: 2 busy, 2 ready"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    return build_front(root.parent if "PYTEST_XDIST_WORKER" in os.environ else root)


@pytest.fixture
def short():
    """A folder whose path is short enough for that of a socket in it; the front must leave it empty."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def fronting(built, short, tmp_path, running):
    """``with fronting(command, **options) as (program, client)``: a front that listens, before the gated service."""
    (tmp_path / "gated.py").write_text(SERVICE)
    usual = {"SERVICE": "gated:service", "SERVICE_FOLDER": str(tmp_path), "PENSTOCK": PENSTOCK, "PORT": "0"}

    @contextmanager
    def start(*command, **options):
        command = command or ("node", "dist/src/main.js")
        env = {**usual, "TMPDIR": str(short), **{name: str(value) for name, value in options.items()}}
        with running(str(built), *command, env=env) as program:
            url = program.wait_for(r"listening on (http://\S+)", START_LIMIT)[1]
            with httpx.Client(base_url=url, timeout=START_LIMIT, trust_env=False) as client:
                yield program, client

    return start


def ready(program, client, times=1):
    """Wait until Python is ready for the `times`th time; its pid."""
    found = program.wait_for(rf"(?:Python is ready, pid (\d+)(?:.|\n)*){{{times}}}", START_LIMIT)
    assert health(client) == (200, "ready")
    return int(found[1])


def health(client):
    answer = client.get("/health_check")
    return answer.status_code, answer.json()["status"]


def batches(program):
    return re.findall(r"^batch (\[.*\]) begins$", program.output, re.MULTILINE)


def test_what_decides_passes_its_tests(built):
    run_npm(built, "test")


def test_the_burst_ends_as_it_must_and_leaves_nothing_behind(built, short, running):
    for _ in range(3):
        with running(str(built.parent / "burst"), sys.executable, "in_node.py", env={"TMPDIR": str(short)}) as program:
            status = program.end(limit=START_LIMIT)
        lines = program.output.splitlines()
        if not was_late(program.output):
            break
    assert status == 0, program.output
    assert lines[-1] == WANTED
    told = Counter(found[1] for line in lines if (found := re.search(r"request \d: (\d+),", line)))
    assert told == {"200": 4, "429": 1, "504": 4}
    assert list(short.iterdir()) == []


def was_late(output):
    """Whether the machine stood still for so long that the burst tells nothing."""
    first = re.findall(r"server: ([\d.]+) s to", output)[:1]
    looks = re.findall(r"client: ([\d.]+) s to .*, health:", output)
    times = [(first, (0.0,), 0.4), (looks, (0.5, 1.5, 2.5, 3.5), 0.2)]
    return any(float(at) > due + slack for found, dues, slack in times for at, due in zip(found, dues, strict=False))


def test_each_ending_is_told_plainly(fronting, tmp_path):
    options = {"MAX_QUEUE": 2, "BATCH_SIZE": 2, "MAX_WAIT_MS": 20, "TIMEOUT_MS": 2000, "BODY_LIMIT": 100}
    with fronting("npm", "start", **options) as (program, client):
        ready(program, client)
        good = ask(client, 7)
        assert (good.status_code, good.json(), good.headers.get("connection")) == (200, 49, "keep-alive")
        assert_told(ask(client, 1.5), 422, "expected `int | str`")
        assert ask(client, 1.5).json()["path"] == "$.data"
        assert_told(ask(client, "raise"), 500)
        assert_told(client.post("/predict", json={}), 400, "`data` is missing")
        assert_told(client.post("/predict", json=[1]), 400, 'send {"data": ...}')
        assert_told(client.post("/predict", content='{"data": 1}'), 400, "as application/json")
        json_type = {"content-type": "application/json"}
        assert_told(client.post("/predict", content='{"data": 1', headers=json_type), 400)
        assert_told(client.post("/predict", content='{"data": 1}', headers={**json_type, "content-encoding": "x"}), 415)
        assert_told(ask(client, "x" * 100), 413, "at most 100 bytes")
        assert_told(client.get("/predict"), 405, "use POST")
        assert client.get("/predict").headers["allow"] == "POST"
        assert_told(client.get("/"), 404)
        with ThreadPoolExecutor() as pool:
            held = [pool.submit(ask, client, "hold") for _ in range(2)]
            until_now(lambda: health(client) == (200, "busy"), "two in hand")
            assert_told(ask(client, 1), 429, "as many requests as it may")
            for answer in held:
                assert_told(answer.result(), 504)
        (tmp_path / "gate").touch()
        until_now(lambda: ask(client, 3).status_code == 200, "the end of the batch")
        assert program.end(signal.SIGTERM) == 0, program.output


def test_until_python_is_there_callers_are_told_when_to_come_again(fronting, short):
    with fronting(PENSTOCK="/nowhere/penstock") as (program, client):
        program.wait_for(r"Python ended \(status \d+\); it is started again in 0.25 s")
        assert_told(ask(client, 1), 503, "not ready")
        assert health(client) == (503, "failed")
        program.wait_for(r"it is started again in 0.5 s")
        assert program.end(signal.SIGINT) == 0, program.output
    assert list(short.iterdir()) == []


def test_who_leaves_is_taken_back_and_who_waits_at_the_end_is_answered(fronting, short):
    options = {"MAX_QUEUE": 1, "BATCH_SIZE": 2, "MAX_WAIT_MS": 60_000, "TIMEOUT_MS": 60_000}
    with fronting(**options) as (program, client), ThreadPoolExecutor() as pool:
        ready(program, client)
        with send_only(str(client.base_url), 6):
            until_now(lambda: health(client) == (200, "busy"), "an item in hand")
        until_now(lambda: health(client) == (200, "ready"), "the withdrawal")
        waits = pool.submit(ask, client, 7)
        until_now(lambda: health(client) == (200, "busy"), "an item in hand")
        assert program.end(signal.SIGTERM) == 0, program.output
        answer = waits.result()
        assert (answer.status_code, answer.json(), answer.headers["connection"]) == (200, 49, "close")
        assert batches(program) == ["[7]"]
    assert list(short.iterdir()) == []


def test_a_second_signal_ends_everything_at_once(fronting, short):
    with fronting(TIMEOUT_MS=60_000, BATCH_SIZE=1) as (program, client), ThreadPoolExecutor() as pool:
        ready(program, client)
        held = pool.submit(ask, client, "hold")
        program.wait_for(r"batch \['hold'\] begins")
        program.process.send_signal(signal.SIGTERM)
        program.wait_for("it drains")
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(START_LIMIT) == 128 + signal.SIGINT
        until_now(lambda: not program.survivors(), "the end of all")
        with pytest.raises(httpx.RemoteProtocolError):
            held.result()
    assert list(short.iterdir()) == []


def test_python_ends_with_a_front_that_is_killed(fronting):
    with fronting() as (program, client):
        pid = ready(program, client)
        assert os.getpgid(pid) == pid  # so that Ctrl-C at a terminal reaches the front alone
        program.process.kill()
        until_now(lambda: not program.survivors(), "the end of Python and its worker")
        program.read_to_end()
        assert "SIGTERM" in program.output  # once, or "again": for each thread of Node that had been its parent


def test_python_is_killed_under_load_and_every_caller_is_answered(fronting):
    options = {"MAX_QUEUE": 16, "BATCH_SIZE": 4, "MAX_WAIT_MS": 10, "TIMEOUT_MS": 20_000}
    callers, answers, enough = 20, [], threading.Event()

    def call(number):
        while not enough.is_set():
            answer = ask(client, number)
            answers.append((number, answer))
            if answer.status_code != 200:
                enough.wait(0.1)

    def right_ones():
        return sum(answer.status_code == 200 for _, answer in answers)

    with fronting(**options) as (program, client), ThreadPoolExecutor(callers + 1) as pool:
        pid = ready(program, client)
        calls = [pool.submit(call, number) for number in range(callers)]
        try:
            until_now(lambda: right_ones() >= 40, "answers")
            held = pool.submit(ask_until_let_in, client, "hold")
            program.wait_for(r"batch \[.*'hold'.*\] begins")
            os.kill(pid, signal.SIGKILL)
            assert_told(held.result(), 502, "may have done the work")
            program.wait_for(r"Python ended \(SIGKILL\)")
            program.wait_for(r"(?:Python is ready, pid (\d+)(?:.|\n)*){2}")
            before = right_ones()
            until_now(lambda: right_ones() >= before + 40, "answers of the next one")
        finally:
            enough.set()
        for each in calls:
            each.result()
        assert program.end(signal.SIGTERM) == 0, program.output
    for number, answer in answers:
        if answer.status_code == 200:
            assert answer.json() == number * number
        else:
            assert answer.status_code in (429, 502, 503)
            assert_told(answer, answer.status_code)


def ask_until_let_in(client, data):
    while (answer := ask(client, data)).status_code == 429:
        pass
    return answer
