"""Every way in which an item of a waiting stage can end, seen by its caller over HTTP and as a job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from notes_and_gates import notes
from served import NOTES_AND_GATES, PENSTOCK, Program, serving
from waiting import until_now

from penstock import jobs

STAGES = Path(__file__).parents[1] / "waiting_stages.py"
SERVICES = """

setup = {"folder": "."}
item = ps.Service(ps.stage(AsyncItem, setup=setup), name="item")
together = ps.Service(ps.stage(AsyncBatch, setup=setup), name="together")
hooks = ps.Service(ps.stage(AsyncHooks, setup=setup), name="hooks")
late = ps.Service(ps.stage(AsyncItem, setup=setup, timeout=1.0), name="late")
"""
SOURCE = STAGES.read_text() + SERVICES
KINDS = ("item", "together", "hooks")
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("waiting"), source=SOURCE, services=(*KINDS, "late")) as server:
        yield server


def post(server, kind, *item, **headers):
    return server.wire().post(f"/{kind}/predict", list(item), **headers)


def problem(wire, status, kind):
    answer = wire.answer()
    assert answer.status == status, answer
    found = answer.json()
    assert found["type"] == f"urn:penstock:problem:{kind}"
    return found


def begun(server, *item):
    """Wait until a stage has begun with this item; its words are of one test."""
    server.until(lambda: list(item) in notes(server.folder / "ran"), f"{item} to begin")


def cancelled(server, *item):
    server.until(lambda: list(item) in notes(server.folder / "cancelled"), f"{item} to be cancelled")


def at_rest(server, kind):
    server.until(lambda: server.health()["services"][kind]["in_flight"] == 0, "nothing to be in progress")


@every_kind
def test_a_slow_item_holds_up_nobody(server, kind):
    slow = post(server, kind, "hold", f"{kind} open", "slow")
    begun(server, "hold", f"{kind} open", "slow")
    assert [post(server, kind, "answer", i).answer().json() for i in range(10)] == list(range(10))
    (server.folder / f"{kind} open").touch()
    assert slow.answer().json() == "slow"


@every_kind
@pytest.mark.parametrize("how", ["close", "drop"])
def test_the_task_of_a_caller_who_leaves_is_cancelled(server, kind, how):
    item = ("hold", "never", f"{kind} {how}")
    leaver = post(server, kind, *item)
    begun(server, *item)
    getattr(leaver, how)()
    cancelled(server, *item)
    at_rest(server, kind)
    assert post(server, kind, "answer", 1).answer().json() == 1


@every_kind
def test_the_task_of_an_item_whose_deadline_passes_is_cancelled_and_its_caller_told_at_that_moment(server, kind):
    item = ("hold", "never", f"{kind} late")
    problem(post(server, kind, *item, X_Request_Timeout="1.0"), 504, "deadline-exceeded")
    cancelled(server, *item)
    at_rest(server, kind)


@every_kind
def test_what_is_raised_is_500_and_what_is_refused_422(server, kind):
    found = problem(post(server, kind, "raise", f"{kind} weights"), 500, "stage-failed")
    assert "weights" not in str(found)
    server.wait_for(rf"RuntimeError: no {kind} weights")
    assert problem(post(server, kind, "refuse"), 422, "invalid-item")["detail"] == "not today"


def test_an_item_that_takes_longer_than_the_stage_s_timeout_fails_and_its_worker_goes_on(server):
    pid = post(server, "late", "pid").answer().json()
    problem(post(server, "late", "hold", "never", "timeout"), 500, "stage-failed")
    server.wait_for("TimeoutError: exceeded the stage's timeout of 1 s")
    assert post(server, "late", "pid").answer().json() == pid


@every_kind
def test_an_item_that_kills_its_worker_twice_is_lost_alone(server, kind):
    mate = post(server, kind, "hold", f"{kind} mate", "mate")
    begun(server, "hold", f"{kind} mate", "mate")
    (server.folder / f"{kind} mate").touch()
    found = problem(post(server, kind, "die"), 500, "worker-lost")
    server.wait_for(rf"ERROR .*{found['id']}")
    assert mate.answer().json() == "mate"


@every_kind
def test_each_item_has_its_own_request_id_and_so_have_tasks_that_it_starts(server, kind):
    answer = post(server, kind, "requests", X_Request_ID="mine").answer()
    assert answer.json() == [["mine"]] * 3


@pytest.mark.parametrize("kind", ["item", "hooks"])
def test_what_64_tasks_log_and_print_at_once_is_marked_with_the_request_of_each(tmp_path, kind, log_lines):
    with serving(tmp_path, "--log-format", "json", source=SOURCE, services=(kind,)) as server:
        wires = [server.wire().post("/predict", ["say", f"word{i}"], X_Request_ID=f"id{i}") for i in range(64)]
        assert [wire.answer().status for wire in wires] == [200] * 64
        server.until(lambda: server.output.count('"message":"word') == 128)
        said = [line for line in log_lines(server) if line["message"].startswith("word")]
    assert {(line["level"], line["stage"]) for line in said} == {
        (level, said[0]["stage"]) for level in ("stdout", "warning")
    }
    for line in said:
        assert line["request_ids"] == [line["message"].replace("word", "id")]


def test_a_client_batch_that_is_left_is_cancelled_whole(server):
    items = [["hold", "never", f"left {i}"] for i in range(20)]
    leaver = server.wire().post("/item/batch", items)
    begun(server, *items[-1])
    leaver.close()
    for item in items:
        cancelled(server, *item)
    at_rest(server, "item")


def test_a_drain_waits_for_tasks_and_cancels_those_that_take_longer(tmp_path):
    with serving(tmp_path, "--drain-timeout", "3", source=SOURCE, services=("item",)) as server:
        fast = server.wire().post("/predict", ["hold", "open", "fast"])
        slow = server.wire().post("/predict", ["hold", "never", "slow"])
        begun(server, "hold", "open", "fast")
        begun(server, "hold", "never", "slow")
        server.signal(signal.SIGTERM)
        server.wait_for("shutting down, waiting up to ")
        server.open_gate()
        assert fast.answer().json() == "fast"
        problem(slow, 500, "not-ready")
        assert server.wait() == 0, server.output
        assert ["hold", "never", "slow"] in notes(tmp_path / "cancelled")


@every_kind
def test_jobs_of_a_waiting_stage_run_beside_each_other_and_end_as_items_do(tmp_path, kind):
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "notes_and_gates.py").write_text(NOTES_AND_GATES.read_text())
    url = f"sqlite:///{tmp_path}/q.db"
    program = Program(tmp_path, *PENSTOCK, "consume", f"model:{kind}", "--until-empty", env={"PENSTOCK_QUEUE_URL": url})
    try:
        with jobs.connect(url) as q:
            held = q.submit_many([{"input": ["hold", "open", i]} for i in range(20)])
            bad, deadly, refused = q.submit(["raise", "x"]), q.submit(["die"]), q.submit(["refuse"])
            if kind != "hooks":  # whose concurrency is 2
                until_now(lambda: len(notes(tmp_path / "ran")) >= 20, "all jobs to be in progress")
            (tmp_path / "open").touch()
            assert program.wait() == 0, program.output
            assert [q.result(job) for job in held] == list(range(20))
            for job, words in ((bad, "no x"), (deadly, "worker"), (refused, "not today")):
                with pytest.raises(jobs.JobFailed, match=words):
                    q.result(job)
    finally:
        program.destroy()
