"""Jobs over HTTP: `penstock serve --queue-url` beside `penstock consume`, on a queue in a file."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import signal
import time
from contextlib import ExitStack

import httpx
import pytest
from served import PENSTOCK, Program, request, serving, write_module
from spoken import spoken
from waiting import until_now

TYPE = {"content-type": "application/json"}


class Farm:
    """A folder with a queue, servers that let jobs in, and consumers that work on them."""

    def __init__(self, folder, stack):
        self.folder = folder
        self.url = f"sqlite:///{folder}/q.db"
        self._stack = stack

    def serve(self, *options, **more):
        return self._stack.enter_context(serving(self.folder, "--queue-url", self.url, *options, **more))

    def work(self, name="orders:service", *options):
        program = Program(self.folder, *PENSTOCK, "consume", name, "--queue-url", self.url, "--poll-interval", "0.02",
                          "--retry-backoff", "0.01", "--lease", "2", *options)  # fmt: skip
        self._stack.callback(program.destroy)
        program.wait_for("working on")
        return program


@pytest.fixture
def farm(tmp_path):
    with ExitStack() as stack:
        yield Farm(tmp_path, stack)


@pytest.fixture(scope="module")
def working(tmp_path_factory):
    """One server with a consumer, which take files as well, for the tests that ask nothing special of them."""
    with ExitStack() as stack:
        farm = Farm(tmp_path_factory.mktemp("working"), stack)
        places = ("--allow-input", f"file://{farm.folder}/in", "--allow-output", f"file://{farm.folder}/out")
        server = farm.serve(*places, "--allow-file-from-http", "--timeout", "5")
        farm.work("orders:service", *places)
        yield server


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """One server whose jobs nobody works on."""
    with ExitStack() as stack:
        farm = Farm(tmp_path_factory.mktemp("idle"), stack)
        yield farm.serve("--allow-input", "s3://in/", "--max-inline-bytes", "1000")


def jobs(server):
    """All jobs there are."""
    return server.http.get("/jobs").json()["jobs"]


def submit(server, order, query="", **headers):
    answer = server.http.post(
        f"/jobs{query}", json=order, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
    return answer.json()


def result(server, job, wait=20):
    return server.http.get(f"/jobs/{job['id']}/result", params={"wait": wait}, timeout=40)


def test_a_job_is_worked_on_elsewhere_and_outlives_the_server(farm):
    server = farm.serve()
    job = submit(server, {"value": 3.0}, "?priority=2")
    assert (job["state"], job["priority"]) == ("queued", 2)
    assert server.http.get(f"/jobs/{job['id']}").json() == job
    assert result(server, job, wait=0).status_code == 202
    server.hang_up()
    server.stop()
    server.signalled = True
    farm.work()
    again = farm.serve()
    found = result(again, job)
    assert (found.status_code, found.json(), found.headers["content-type"]) == (200, 3.0, "application/json")
    assert [each["state"] for each in again.http.get("/jobs").json()["jobs"]] == ["succeeded"]


@pytest.mark.smoke
def test_each_end_has_its_status(working):
    server = working
    dead = submit(server, {"do": "raise"})
    refused = submit(server, {"do": "refuse"})
    wrong = submit(server, ["no order"])
    for job, status, kind in ((dead, 500, "job-failed"), (refused, 422, "job-failed"), (wrong, 422, "job-failed")):
        found = result(server, job)
        assert (found.status_code, found.json()["type"]) == (status, f"urn:penstock:problem:{kind}"), found.text
        assert found.json()["id"] == job["id"]
    assert "Traceback" not in result(server, dead).text
    shown = server.http.get(f"/jobs/{dead['id']}").json()
    assert (shown["failures"], shown["error"]["type"]) == ({"application": 3}, "builtins.RuntimeError")
    expired = submit(server, {}, f"?delay=1&deadline={time.time() + 0.05}")
    assert result(server, expired).status_code == 410
    assert server.http.get("/jobs/nobody/result").status_code == 404
    again = server.http.post(f"/jobs/{dead['id']}/retry")
    assert (again.status_code, again.json()["generation"]) == (202, 2)
    assert result(server, dead).status_code == 500
    assert server.http.post(f"/jobs/{submit(server, {})['id']}/retry").status_code == 409


def test_a_job_is_cancelled_in_each_state(farm):
    server = farm.serve()
    waiting, scheduled = submit(server, {}), submit(server, {}, "?delay=60")
    for job in (waiting, scheduled):
        cancelled = server.http.delete(f"/jobs/{job['id']}")
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        assert server.http.delete(f"/jobs/{job['id']}").status_code == 200
        assert result(server, job).status_code == 410
    farm.work()
    leased = submit(server, {"do": "hold", "value": 1.0})
    until_now(lambda: (farm.folder / "ran").exists(), "the job to run", context=lambda: server.output)
    answer = server.http.delete(f"/jobs/{leased['id']}")
    assert (answer.status_code, answer.json()["state"]) == (202, "running")
    ended = result(server, leased)
    assert ended.status_code == 410, ended.text
    server.open_gate()
    done = submit(server, {"value": 2.0})
    assert result(server, done).status_code == 200
    assert server.http.delete(f"/jobs/{done['id']}").status_code == 409


@pytest.mark.smoke
def test_pages_of_jobs_follow_each_other(idle):
    server = idle
    before = submit(server, {})["id"]
    ids = [submit(server, {"value": n})["id"] for n in range(5)]
    first = server.http.get(f"/jobs?limit=3&state=queued&after={before}").json()["jobs"]
    rest = server.http.get(f"/jobs?limit=3&after={first[-1]['id']}").json()["jobs"]
    assert [job["id"] for job in first + rest] == ids
    assert server.http.get("/jobs?after=nobody").status_code == 404
    assert server.http.get("/jobs?state=wating").status_code == 400
    head = server.http.head("/jobs?limit=1")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("query", "body", "headers", "status"),
    [
        ("", b"{", TYPE, 422),
        ("?input_url=file:///etc/passwd", b"", {}, 422),
        ("?input_url=http://169.254.169.254/", b"", {}, 422),
        ("?input_url=s3://elsewhere/a", b"", {}, 422),
    ],
)
def test_bad_input_is_refused_at_submit(idle, query, body, headers, status):
    before = jobs(idle)
    answer = idle.http.post(f"/jobs{query}", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert jobs(idle) == before


@pytest.mark.smoke
def test_a_queue_that_is_full_says_when_to_come_again_and_a_disk_that_is_full_stops_only_submissions(farm):
    farm.url += "?max_waiting=1&reserve=0"
    server = farm.serve()
    job = submit(server, {"value": 1.0})
    full = server.http.post("/jobs", json={"value": 2.0})
    assert (full.status_code, full.json()["type"]) == (429, "urn:penstock:problem:queue-full")
    assert int(full.headers["retry-after"]) > 0
    server.http.delete(f"/jobs/{job['id']}")
    submit(server, {"value": 2.0})
    farm.url = f"sqlite:///{farm.folder}/q.db?reserve={1 << 59}"
    server = farm.serve()
    full = server.http.post("/jobs", json={"value": 2.0})
    assert (full.status_code, full.json()["type"]) == (503, "urn:penstock:problem:store-unavailable")
    assert int(full.headers["retry-after"]) > 0
    assert server.http.get(f"/jobs/{job['id']}").json()["state"] == "cancelled"


def test_a_job_with_files_says_where_its_output_is(working):
    server, folder = working, working.folder
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "in" / "a.json").write_text('{"value": 7.0}')
    output = f"file://{folder}/out/a.json"
    answer = server.http.post("/jobs", params={"input_url": f"file://{folder}/in/a.json", "output_url": output})
    assert answer.status_code == 202, answer.text
    found = result(server, answer.json())
    assert (found.status_code, found.json()) == (200, {"output_url": output})
    path = folder / "out" / "a.json"
    until_now(path.exists, "the output", context=lambda: server.output)
    assert json.loads(path.read_text()) == 7.0


def test_of_several_services_a_job_says_which(farm):
    server = farm.serve(services=("service", "two_stages"))
    farm.work("orders:two_stages")
    unnamed = server.http.post("/jobs", json={})
    assert (unnamed.status_code, "orders, chain" in unnamed.json()["detail"]) == (400, True)
    job = submit(server, {"value": 1.0}, "?service=chain")
    assert result(server, job).json() == 101.0


def test_many_wait_at_once_and_each_gets_its_own(working):
    server = working
    sent = [submit(server, {"do": "hold", "value": n}) for n in range(40)]
    with (
        concurrent.futures.ThreadPoolExecutor(40) as clients,
        httpx.Client(base_url=server.address, timeout=40, verify=False) as http,
    ):
        asked = [clients.submit(http.get, f"/jobs/{job['id']}/result?wait=30") for job in sent]
        server.open_gate()
        assert [each.result().json() for each in asked] == [float(n) for n in range(40)]


def test_a_client_that_waits_may_leave_and_a_drain_lets_the_others_go(farm):
    server = farm.serve()
    job = submit(server, {})
    asked = request("GET", f"/jobs/{job['id']}/result?wait=60", b"")
    leaver, waiter = server.wire().send(asked), server.wire().send(asked)
    refused = server.http.get(f"/jobs/{job['id']}/result?wait=61")
    assert refused.status_code == 400
    leaver.drop()
    server.until(lambda: server.metric("penstock_http_requests_total", route="/jobs/{id}/result", status="499") == 1)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    answer = waiter.answer()
    assert (answer.status, answer.json()["id"]) == (202, job["id"])
    assert server.wait() == 0
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("flag", ["--api-key-file", "--tenants-file"])
def test_keys_are_asked_for_at_jobs(farm, flag):
    digest = hashlib.sha256(b"k" * 32).hexdigest()
    text = "k" * 32 if flag == "--api-key-file" else f'[tenants.gold]\nkey_sha256 = ["{digest}"]'
    (farm.folder / "keys").write_text(text)
    server = farm.serve(flag, "keys", where=("--host", "0.0.0.0", "--port", "0"))
    assert server.http.post("/jobs", json={}).status_code == 401
    assert server.http.get("/jobs/a").status_code == 401
    assert server.http.get("/jobs", headers={"x-api-key": "k" * 32}).json() == {"jobs": []}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "orders:service", "--queue-url", "sqlite:///q.db", "--host", "0.0.0.0"), "--api-key-file"),
        (
            ("serve", "orders:service", "--queue-url", "sqlite:///q.db", "--host", "0.0.0.0", "--reload"),
            "--api-key-file",
        ),
        (
            ("serve", "orders:service", "--queue-url", "sqlite:///q.db", "--host", "0.0.0.0", "--tenants-file", "no"),
            "tenants_file 'no'",
        ),
        (("consume", "orders:service", "--queue-url", "sqlite:///q.db", "--bind", "0.0.0.0:0"), "--api-key-file"),
        (("serve", "orders:service", "--queue-url", "memory://"), "penstock consume"),
        (("serve", "orders:service", "--queue-url", "sqlit:///q.db"), "did you mean sqlite"),
        (("serve", "orders:service", "--queue-url", "sqlite:///no/such/q.db", "--port", "0"), "does not exist"),
        (("serve", "orders:service", "--queue-url", "sqlite:///q.db", "--allow-input", "https://a"), "--allow-input"),
    ],
)
def test_what_may_not_be_is_no_start(tmp_path, arguments, words):
    write_module(tmp_path)
    found = spoken(tmp_path, *arguments)
    assert found.status in (1, 2)
    assert words in found.refusal


def test_one_process_does_it_all_with_a_queue_in_memory(tmp_path):
    write_module(tmp_path)
    program = Program(
        tmp_path, *PENSTOCK, "consume", "orders:service", "--queue-url", "memory://", "--bind", "127.0.0.1:0"
    )
    try:
        url = program.wait_for(r"ready on (http\S+)")[1]
        with httpx.Client(base_url=url, timeout=40, verify=False) as http:
            job = http.post("/jobs", json={"value": 5.0}).json()
            assert http.get(f"/jobs/{job['id']}/result?wait=30").json() == 5.0
            assert http.post("/predict", json={"value": 6.0}).json() == 6.0
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    finally:
        program.destroy()


def test_a_server_that_reloads_keeps_the_queue_and_sends_no_waiter_away_late(farm):
    server = farm.serve("--reload")
    job = submit(server, {"value": 1.0})
    wire = server.wire().send(request("GET", f"/jobs/{job['id']}/result?wait=60", b""))
    source = farm.folder / "orders.py"
    source.write_text(source.read_text() + "\nedited = True\n")
    assert wire.answer().status == 202
    server.hang_up()
    server.until(lambda: server.output.count("ready on") == 2)
    assert server.http.get(f"/jobs/{job['id']}").json()["state"] == "queued"
