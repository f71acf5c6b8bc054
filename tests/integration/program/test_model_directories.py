"""A model directory as its user serves it: what was current at the start is served, whatever becomes of `CURRENT`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from contextlib import contextmanager

import pytest
from served import run, serving
from spoken import spoken

from penstock.artifact.publishing import prune_versions, publish_artifact, roll_back
from tiny_artifacts import ROWS, features, model, write_artifact

FIRST, SECOND = (0.5, -1.25), (0.9, -1.25)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a model directory that has two versions, whose answers differ, and both artifacts."""
    folder = tmp_path_factory.mktemp("made")
    for name, slope in (("first", FIRST), ("second", SECOND)):
        write_artifact(folder / name, slope=slope)
        publish_artifact(folder / name, folder / "models")
    return folder


@pytest.fixture
def models(made, tmp_path):
    """A model directory like it for one test, which may change it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    return tmp_path / "models"


def expected(slope):
    answers = model(**features().encode(ROWS), slope=slope)
    return [{"probability": pytest.approx(float(answer), abs=1e-6)} for answer in answers]


def answers(server):
    return [server.http.post("/predict", json=row).json() for row in ROWS]


def current(models):
    return json.loads((models / "CURRENT").read_bytes())


def kill_worker(server, index=0):
    """Kill a worker, and wait until another has taken its place."""
    killed = server.workers()[index]
    os.kill(killed, signal.SIGKILL)
    server.until(lambda: killed not in (now := server.workers()) and None not in now)
    server.until(lambda: server.http.get("/readyz").is_success)


@contextmanager
def asked_all_the_time(server):
    """Everything that a server answers meanwhile, as status and body, to one row after the other, again and again."""
    ended, found = threading.Event(), {row: set() for row in range(len(ROWS))}
    counted = [0]

    def ask(client):
        while not ended.is_set():
            for number, row in enumerate(ROWS):
                answer = client.post("/predict", json=row)
                found[number].add((answer.status_code, answer.content))
                counted[0] += 1

    threads = [threading.Thread(target=ask, args=(server.client(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield found, counted
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.smoke
def test_what_was_current_at_the_start_is_served_told_and_taken_by_a_worker_that_comes_back(models, tmp_path):
    history = current(models)["history"]
    digest = history[1]["digest"]
    with serving(tmp_path, "models", "--model-digest", digest, services=()) as server:
        assert answers(server) == expected(SECOND)
        told = server.health()["services"]["affairs"]
        assert (told["model_version"], told["version"]) == (2, digest)
        assert server.metric("penstock_service_info", version=digest, model_version="2") == 1
        assert "starting affairs version 2 (affairs x1)" in server.output
        roll_back(models)
        kill_worker(server)
        assert answers(server) == expected(SECOND)
        assert server.health()["services"]["affairs"]["model_version"] == 2
    found = spoken(tmp_path, "serve", "models", "--model-digest", digest)
    assert found.status == 1
    assert "the current version of models is 1" in found.refusal
    assert digest in found.refusal


@pytest.mark.night
def test_fifty_publishes_under_load_and_workers_killed_among_them_change_no_answer(models, tmp_path):
    with serving(tmp_path, "--workers", "2", "models", services=()) as server:
        before = set(server.workers())
        with asked_all_the_time(server) as (found, counted):
            server.until(lambda: counted[0] > 20)
            for number in range(3, 53):
                new = tmp_path / "new" / str(number)
                write_artifact(new, slope=(0.5, number / 10))
                assert publish_artifact(new, models).version == number
                if number % 10 == 0:
                    assert roll_back(models).version == number - 1
                if number in (20, 30):  # both, one after the other: whoever answers at the end was started again
                    kill_worker(server, index=number // 10 - 2)
            least = counted[0] + 20
            server.until(lambda: counted[0] > least)
        assert set(server.workers()).isdisjoint(before)
        assert {row: len(said) for row, said in found.items()} == dict.fromkeys(found, 1), found
        said = [next(iter(each)) for each in found.values()]
        assert [(status, json.loads(body)) for status, body in said] == [(200, answer) for answer in expected(SECOND)]
        assert server.health()["services"]["affairs"]["model_version"] == 2
    with serving(tmp_path, "models", services=()) as server:
        assert answers(server) == expected((0.5, 5.2))
        assert server.health()["services"]["affairs"]["model_version"] == 52


def test_a_worker_whose_version_was_pruned_says_which_folder_is_gone(models, tmp_path):
    roll_back(models)
    with serving(tmp_path, f"{models}/", services=()) as server:
        assert server.health()["services"]["affairs"]["model_version"] == 1
        for number in (3, 4):
            write_artifact(tmp_path / str(number), slope=(0.5, number))
            publish_artifact(tmp_path / str(number), models)
        roll_back(models, to=2)
        assert 1 in prune_versions(models, 1)
        assert answers(server) == expected(FIRST)  # what is open stays open
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for(r"versions/1 is not an artifact: the directory does not exist")


@pytest.mark.smoke
def test_check_takes_a_model_directory(models, tmp_path):
    status, output = run(tmp_path, "check", "models", env={"COLUMNS": "300"})
    assert status == 0, output
    assert "0 failed" in output


def cut_current(models):
    (models / "CURRENT").write_bytes((models / "CURRENT").read_bytes()[:-20])


def name_another_version(models):
    told = current(models)
    (models / "CURRENT").write_text(json.dumps({**told, "version": 1}))


def alter_the_version(models):
    shutil.rmtree(models / "versions" / "2")
    write_artifact(models / "versions" / "2", slope=(3, 3))


def alter_a_file(models):
    with (models / "versions" / "2" / "model.onnx").open("ab") as file:
        file.write(b"more")


def remove_the_version(models):
    shutil.rmtree(models / "versions" / "2")


def remove_current(models):
    (models / "CURRENT").unlink()


DAMAGES = {
    cut_current: "models is not a valid model directory: CURRENT: ",
    name_another_version: "version 1 is named as current, but the history ends with 2",
    alter_the_version: "is expected",
    alter_a_file: "model.onnx has",
    remove_the_version: "versions/2 is not an artifact: the directory does not exist",
    remove_current: "models is not a model directory: it has no file CURRENT",
}
EVERY_DAMAGE = [("serve", damage) for damage in DAMAGES]
EVERY_COMMAND = [
    (c, d) for c in ("consume", "check", "inspect", "verify", "diff") for d in (cut_current, alter_the_version)
]


@pytest.mark.parametrize(("command", "damage"), EVERY_DAMAGE + EVERY_COMMAND)
def test_a_model_directory_that_is_damaged_is_a_sentence_and_exit_1(models, tmp_path, command, damage):
    damage(models)
    words = DAMAGES[damage]
    queue = ("--queue-url", f"sqlite:///{tmp_path}/q.db") if command == "consume" else ()
    artifact = ("model",) if command in ("inspect", "verify", "diff") else ()
    other = ("second",) if command == "diff" else ()
    found = spoken(tmp_path, *artifact, command, "./models", *other, *queue, env={"COLUMNS": "3000"})
    assert found.status == 1
    assert words in found.refusal
    assert found.refusal.count("penstock: ") == 1
