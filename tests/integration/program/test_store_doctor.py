"""`penstock jobs doctor`: what is wrong with the store of a queue, in words, as JSON, and as an exit status."""

from __future__ import annotations

import json

import pytest
from served import run

from redis_server import private_redis

PASSWORD = "open-sesame"


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def doctor(folder, url, *more, **env):
    status, output = run(folder, "jobs", "doctor", "--queue-url", url, *more, env={"COLUMNS": "200", **env})
    assert "Traceback" not in output
    assert "\x1b" not in output  # no colours: nobody looks at a terminal
    return status, output


def found_in(output):
    return {advice["what"]: advice for advice in map(json.loads, output.splitlines())}


def test_a_redis_as_a_queue_wants_it_is_well(folder):
    with private_redis() as server:
        status, output = doctor(folder, server.url)
    assert status == 0
    assert "0 failed, 5 ok" in output
    assert "everysec" in output
    assert "a power cut may lose the last one or two seconds" in output


def test_a_redis_that_throws_jobs_away_is_wrong_and_the_remedy_is_told(folder):
    settings = ("--maxmemory-policy", "allkeys-lru", "--appendonly", "no", "--requirepass", PASSWORD)
    with private_redis(*settings) as server:
        url = f"unix://:{PASSWORD}@{server.path}"
        status, output = doctor(folder, url)
        as_json, lines = doctor(folder, url, "--json")
    assert (status, as_json) == (1, 1)
    assert "2 failed, 2 ok" in output
    assert "CONFIG SET maxmemory-policy noeviction" in output
    assert PASSWORD not in output
    wrong = {what: advice["found"] for what, advice in found_in(lines).items() if advice["wrong"]}
    assert wrong == {"maxmemory-policy": "allkeys-lru", "appendonly": "no"}


def test_a_server_that_is_not_there_is_a_sentence(folder):
    pytest.importorskip("redis")
    status, output = doctor(folder, f"unix://:{PASSWORD}@{folder}/nothing.sock")
    assert status == 1
    assert output.startswith(f"penstock: cannot connect to Redis at {folder}/nothing.sock: ")
    assert PASSWORD not in output


def test_a_file_is_looked_at_and_the_variable_names_it(folder):
    status, output = doctor(folder, "sqlite:///q.db?synchronous=NORMAL", "--json")
    found = found_in(output)
    assert status == (1 if found["file system"]["wrong"] else 0)
    assert found["file"]["found"] == str(folder / "q.db")
    assert found["synchronous"]["found"] == "NORMAL"
    assert run(folder, "jobs", "doctor", "--json", env={"PENSTOCK_QUEUE_URL": "sqlite:///q.db"})[1] != ""


def test_jobs_in_memory_are_never_safe(folder):
    status, output = doctor(folder, "memory://")
    assert status == 1
    assert "use sqlite:///q.db to keep them" in output


def test_without_a_queue_it_asks_which_one(folder):
    status, output = run(folder, "jobs", "doctor")
    assert status == 2
    assert "no queue is set" in output
