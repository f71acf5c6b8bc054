"""`penstock jobs` as a command of its own, on a queue in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from programs import MarkedProgram

from penstock import jobs
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, Room
from penstock.jobs.stores.opening import open_store

COMMAND = [sys.executable, "-m", "penstock.cli.main", "jobs"]
PATIENCE_SECONDS = 40
TELLS_LOOKS = """
import sys
from penstock.cli.main import main
from penstock.jobs.waiting_for import Watch

look = Watch.look

def tell(watch):
    found = look(watch)
    print("looked", flush=True)
    return found

Watch.look = tell
sys.exit(main(sys.argv[1:]))
"""
"""`penstock`, which says when it has begun to wait."""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/q.db?queue=tests"


@pytest.fixture
def environment(tmp_path, url, monkeypatch):
    """Where the queue is stands in a file only."""
    (tmp_path / "queue").write_text(f"{url}\n")
    monkeypatch.delenv("PENSTOCK_QUEUE_URL", raising=False)
    return tmp_path


def penstock_jobs(folder, name, *words, given=None):
    command = [*COMMAND, name, *words, "--queue-url-file", "queue"]
    return subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def finish(url, result):
    store = open_store(url)
    (claimed,) = store.claim("test", lease=30, rooms=[Room(("",), 1, 1 << 20)])
    store.end_attempts([AttemptEnd(claimed.hold, JobState.SUCCEEDED, result=result, content_type="application/json")])
    store.close()


def test_what_one_command_submits_another_sees(environment, url):
    submitted = penstock_jobs(environment, "submit", "--jsonl", "-", "--json", given='1\n{"x": 2}\n')
    assert submitted.returncode == 0, submitted.stderr
    first, second = (json.loads(line) for line in submitted.stdout.splitlines())
    assert (first["queue"], second["state"]) == ("tests", "queued")
    finish(url, b"[7]")
    waited = penstock_jobs(environment, "result", first["id"], "--wait", "30")
    assert (waited.returncode, waited.stdout) == (0, "[7]\n")
    with jobs.connect(url) as q:
        q.cancel(second["id"])
    assert penstock_jobs(environment, "status", second["id"]).returncode == 1
    assert json.loads(penstock_jobs(environment, "stats", "--json").stdout)["succeeded"] == 1


def test_ctrl_c_ends_the_wait_and_not_the_job(environment, url):
    with jobs.connect(url) as q:
        job = q.submit(1)
        command = [sys.executable, "-c", TELLS_LOOKS, "jobs", "wait", job.id, "--queue-url", url]
        program = MarkedProgram(command, environment, os.environ)
        try:
            program.wait_for("looked", PATIENCE_SECONDS)
            program.process.send_signal(signal.SIGINT)
            assert program.process.wait(PATIENCE_SECONDS) == 130
            program.wait_for("interrupted; the jobs continue", PATIENCE_SECONDS)
            assert q.get(job).state == "queued"
        finally:
            program.destroy()


def test_a_reader_that_leaves_costs_no_traceback(environment, url):
    with jobs.connect(url) as q:
        q.submit_many([{"input": i} for i in range(3000)])
    listing = f"{' '.join(COMMAND)} list --limit 3000 --queue-url-file queue | head -n 1"
    done = subprocess.run(
        ["bash", "-c", listing], cwd=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "closed", "told"),
    [
        (["status", b"\xff"], "", "there is no job '\\udcff'"),
        (["submit", "--jsonl", "-"], "<&-", "standard input is closed"),
        (["submit", "--file", "-"], "<&-", "standard input is closed"),
        (["submit", "1"], ">&-", "standard output is closed"),
    ],
)
def test_bytes_that_are_no_text_and_streams_that_are_closed_are_told_in_a_line(environment, url, words, closed, told):
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words, "--queue-url-file", "queue"]
    found = subprocess.run(command, cwd=environment, capture_output=True, timeout=PATIENCE_SECONDS)
    lines = found.stderr.decode().splitlines()
    assert (found.returncode, len(lines)) == (1, 1), lines
    assert told in lines[0]
    with jobs.connect(url) as q:
        assert q.list() == []


def test_a_job_whose_id_cannot_be_written_is_said_to_be_submitted(environment, url):
    command = ["sh", "-c", 'exec "$@" >/dev/full', "sh", *COMMAND, "submit", "1", "--id", "a", "--queue-url", url]
    found = subprocess.run(command, cwd=environment, capture_output=True, timeout=PATIENCE_SECONDS, text=True)
    assert (found.returncode, found.stderr.count("\n")) == (1, 1), found.stderr
    assert "job a was submitted, but cannot write to standard output: No space left on device" in found.stderr
    with jobs.connect(url) as q:
        assert [job.id for job in q.list()] == ["a"]
