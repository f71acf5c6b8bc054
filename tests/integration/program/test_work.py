"""`penstock consume` as its user runs it, on a queue in a file."""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path

import httpx
import pytest
from served import PENSTOCK, Program
from waiting import until_now

from penstock import jobs

SERVICE = """
import os
import time
from pathlib import Path

import penstock as ps


class Double(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int]:
        return [2 * x for x in xs]


class Count(ps.Stage):
    def predict(self, path: Path) -> int:
        return len(path.read_text().split())


class Gate(ps.Stage):
    def predict(self, name: str) -> str:
        if name == "bad":
            raise ValueError(name)
        Path(f"{name}.begun").touch()
        while not Path(f"{name}.go").exists():
            time.sleep(0.01)
        return name


class Broken(ps.Stage):
    def setup(self):
        raise OSError("no model here")

    def predict(self, x: int) -> int:
        return x


class WhoAmI(ps.Stage):
    def predict(self, x: int) -> list[str]:
        return [ps.current_requests()[0], str(os.getpid())]


double = ps.Service(Double, name="double")
whoami = ps.Service(WhoAmI, name="whoami", inline=True)
count = ps.Service(Count, name="count")
gate = ps.Service(Gate, name="gate")
broken = ps.Service(Broken, name="broken")
"""


class Queue:
    def __init__(self, folder):
        self.folder = folder
        self.url = f"sqlite:///{folder}/q.db"
        self.programs = []
        (folder / "models.py").write_text(SERVICE)

    def work(self, *words, env=None, command=PENSTOCK):
        program = Program(self.folder, *command, "consume", *words, env={"PENSTOCK_QUEUE_URL": self.url, **(env or {})})
        self.programs.append(program)
        return program


@pytest.fixture
def queue(tmp_path):
    made = Queue(tmp_path)
    yield made
    for program in made.programs:
        program.destroy()


@pytest.mark.smoke
def test_a_queue_is_worked_off_and_the_command_ends_when_it_is_empty(queue):
    with jobs.connect(queue.url) as q:
        submitted = q.submit_many([{"input": n} for n in range(50)])
        program = queue.work("models:double", "--until-empty")
        assert program.wait() == 0, program.output
        assert [q.result(job) for job in submitted] == [2 * n for n in range(50)]
    assert "working on sqlite:///" in program.output
    assert program.output.rstrip().endswith("penstock: stopped")


@pytest.mark.parametrize("name", ["models.py:double", "models:double"])
def test_a_service_is_named_in_every_form_that_serve_takes(queue, name):
    program = queue.work(name, "--until-empty")
    assert program.wait() == 0, program.output


NEVER_LOOKS_AGAIN = """
import sys
from penstock.cli.main import main
from penstock.jobs import claiming

claiming.TICK_SECONDS = 3600.0
sys.exit(main())
"""


def test_the_first_claim_follows_the_start_of_the_model(queue):
    with jobs.connect(queue.url) as q:
        job = q.submit(3)
        program = queue.work("models:double", "--until-empty", command=(sys.executable, "-P", "-c", NEVER_LOOKS_AGAIN))
        assert program.wait() == 0, program.output
        assert q.result(job) == 6


def test_an_input_from_a_file_and_an_output_to_one(queue):
    inside, outside = queue.folder / "in", queue.folder / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.txt").write_text("one two three")
    with jobs.connect(queue.url) as q:
        job = q.submit(input_url=f"file://{inside}/a.txt", output_url=f"file://{outside}/a.json")
        forbidden = q.submit(input_url=f"file://{queue.folder}/models.py")
        flags = ("--allow-input", f"file://{inside}", "--allow-output", f"file://{outside}")
        program = queue.work("models:count", "--until-empty", *flags)
        assert program.wait() == 0, program.output
        assert q.result(job) == f"file://{outside}/a.json"
        with pytest.raises(jobs.JobFailed, match="allow-input"):
            q.result(forbidden)
    assert (outside / "a.json").read_text() == "3"
    assert [path.name for path in outside.iterdir()] == ["a.json"]


def test_a_consumer_that_may_open_no_more_files_goes_on_when_it_may(queue):
    text = queue.folder / "a.txt"
    text.write_text("one two three")
    with jobs.connect(queue.url) as q:
        program = queue.work("models:count", "--allow-input", f"file://{queue.folder}/", "--retry-backoff", "0.5")
        assert q.result(q.submit(input_url=f"file://{text}"), timeout=30) == 3  # what is opened once is open
        _, most = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
        opened = len(list(Path(f"/proc/{program.pid}/fd").iterdir()))
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (opened, most))
        job = q.submit(input_url=f"file://{text}")
        until_now(lambda: q.get(job.id).failures.get("transfer"), "an input that was not read")
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (most, most))
        assert q.result(job, timeout=30) == 3
        assert set(q.get(job.id).failures) == {"transfer"}
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.smoke
def test_sigterm_gives_back_what_has_not_begun_and_finishes_the_rest(queue):
    with jobs.connect(queue.url) as q:
        first, second = q.submit("first"), q.submit("second")
        program = queue.work("models:gate")
        until_now((queue.folder / "first.begun").exists, "the first job has begun")
        until_now(lambda: q.get(second.id).state == "running", "the second is held")
        program.signal(signal.SIGTERM)
        program.wait_for("shutting down, waiting up to ")
        (queue.folder / "second.go").touch()  # where the worker begins it all the same
        (queue.folder / "first.go").touch()
        assert program.wait() == 0, program.output
        assert q.result(first) == "first"
        assert (q.get(second.id).state, q.get(second.id).failures) == ("queued", {})
        assert q.get(second.id).attempts[-1].cause == "released"
        assert not (queue.folder / "second.begun").exists()


def test_what_does_not_finish_within_the_drain_is_released_too(queue):
    with jobs.connect(queue.url) as q:
        job = q.submit("first")
        program = queue.work("models:gate", "--drain-timeout", "0.2")
        until_now((queue.folder / "first.begun").exists, "the job has begun")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.output
        assert (q.get(job.id).state, q.get(job.id).failures) == ("queued", {})


def test_a_second_signal_ends_it_at_once(queue):
    with jobs.connect(queue.url) as q:
        q.submit("first")
        program = queue.work("models:gate")
        until_now((queue.folder / "first.begun").exists, "the job has begun")
        program.signal(signal.SIGTERM)
        program.wait_for("shutting down, waiting up to ")
        program.signal(signal.SIGQUIT)
        assert program.wait() == 128 + signal.SIGQUIT  # a drain may take longer than this waits


def test_a_second_signal_loses_no_count_of_failed_requests(queue):
    with jobs.connect(queue.url) as q:
        q.submit("first")
        program = queue.work("models:gate", "--bind", "127.0.0.1:0", "--workers", "2")
        address = program.wait_for(r"ready on (http://\S+)")[1]
        until_now((queue.folder / "first.begun").exists, "the job has begun")
        with httpx.Client(base_url=address, verify=False) as client:
            for _ in range(40):
                assert client.post("/predict", json="bad").status_code == 500
        program.signal(signal.SIGTERM)
        program.wait_for("shutting down, waiting up to ")
        program.signal(signal.SIGQUIT)
        assert program.wait() == 128 + signal.SIGQUIT
        assert "more failures of the kind builtins.ValueError" in program.output


def test_probes_and_metrics_are_answered_where_health_says_and_nothing_else(queue):
    program = queue.work("models:double", "--health-bind", "127.0.0.1:0")
    address = program.wait_for(r"ready on (http://\S+)")[1]
    with httpx.Client(base_url=address, verify=False) as client:
        assert client.get("/readyz").status_code == 200
        assert client.get("/livez").status_code == 200
        told = client.get("/health").json()
        assert told["services"]["double"]["state"] == "ready"
        assert told["jobs"]["store_up"] is True
        until_now(lambda: 'penstock_jobs_state{queue="default"' in client.get("/metrics").text, "it was counted")
        for path in ("/predict", "/docs", "/openapi.json"):
            assert client.post(path, json=1).status_code == 404
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


def test_the_whole_app_is_served_beside_the_jobs_where_http_says(queue):
    program = queue.work("models:double", "--bind", "127.0.0.1:0")
    address = program.wait_for(r"ready on (http://\S+)")[1]
    with httpx.Client(base_url=address, verify=False) as client, jobs.connect(queue.url) as q:
        job = q.submit(4)
        assert client.post("/predict", json=21).json() == 42
        assert q.result(job, timeout=20) == 8
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


def test_with_a_drain_delay_no_job_is_claimed_any_more_and_clients_are_answered(queue):
    program = queue.work("models:double", "--bind", "127.0.0.1:0", "--drain-delay", "600", "--poll-interval", "0.01")
    address = program.wait_for(r"ready on (http://\S+)")[1]
    with jobs.connect(queue.url) as q, httpx.Client(base_url=address, verify=False) as client:
        assert q.result(q.submit(1), timeout=30) == 2
        program.signal(signal.SIGTERM)
        program.wait_for("SIGTERM: shutting down, accepting requests for 600 s more")
        left = q.submit(2)
        for n in range(20):
            answer = client.post("/predict", json=n)
            assert (answer.json(), answer.headers["connection"]) == (2 * n, "close")
        program.signal(signal.SIGQUIT)
        assert program.wait() == 128 + signal.SIGQUIT
        assert (q.get(left).state, q.get(left).failures) == ("queued", {})


def test_a_stage_is_told_the_id_of_its_job_and_never_runs_in_the_consumers_process(queue):
    with jobs.connect(queue.url) as q:
        job = q.submit(1)
        program = queue.work("models:whoami", "--until-empty")
        assert program.wait() == 0, program.output
        name, pid = q.result(job)
    assert name == job.id
    assert int(pid) != program.pid


def test_a_service_that_takes_files_takes_no_bodies_over_http(queue):
    program = queue.work("models:count", "--bind", "127.0.0.1:0")
    address = program.wait_for(r"ready on (http://\S+)")[1]
    with httpx.Client(base_url=address, verify=False) as client:
        for path in ("/predict", "/batch"):
            answer = client.post(path, json="/etc/passwd")
            assert answer.status_code == 415
            assert "input_url" in answer.json()["detail"]
        assert "requestBody" not in client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


def test_under_json_every_line_is_an_object(queue):
    with jobs.connect(queue.url) as q:
        q.submit("not a number")
        program = queue.work("models:double", "--until-empty", "--log-format", "json")
        assert program.wait() == 0
    assert [json.loads(line) for line in program.output.splitlines()]


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["models:double", "--lease", "0.5"], 2, "--lease (or PENSTOCK_LEASE) must be at least 1"),
        (["models:double", "--queue-url", "memory://"], 2, "--bind HOST:PORT"),
        (["models:double", "--queue-url", "nothing://x"], 2, "nothing"),
        (["models:double", "--queue-url", "sqlite:////nowhere/at/all/q.db"], 1, "/nowhere/at/all"),
        (["models:double", "--health-bind", "8000x"], 1, "HOST:PORT"),
        (["models:double", "--allow-input", "/data"], 1, "--allow-input"),
        (["models:double", "--allow-net", "10.0.0.0/99"], 1, "allow_net"),
        (["models:broken"], 1, "no model here"),
        (["models:missing"], 1, "missing"),
    ],
)
def test_what_cannot_work_is_told_at_the_start(queue, words, status, sentence):
    program = queue.work(*words)
    assert program.wait() == status, program.output
    assert sentence in program.output
    assert "Traceback" not in program.output or words == ["models:broken"]


def test_without_a_queue_it_says_how_to_name_one(queue):
    program = queue.work("models:double", env={"PENSTOCK_QUEUE_URL": ""})
    assert program.wait() == 2
    assert "--queue-url URL" in program.output
