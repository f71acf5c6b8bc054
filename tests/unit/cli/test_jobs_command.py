"""`penstock jobs` in this process, on a queue in memory."""

from __future__ import annotations

import io
import json
import sys
import uuid

import pytest

from penstock.cli import main
from penstock.cli.jobs_submit import LINES_IN_BATCH
from penstock.jobs.job import AttemptError
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, Room
from penstock.jobs.stores.memory_store import MemoryStore


@pytest.fixture
def name():
    return f"cli-{uuid.uuid4().hex}"


@pytest.fixture
def store(name):
    return MemoryStore.named(name)


@pytest.fixture
def jobs(name, store, capsys, monkeypatch):
    """Run `penstock jobs …`; its exit status and what it wrote to both streams."""
    monkeypatch.setenv("PENSTOCK_QUEUE_URL", f"memory://{name}")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        capsys.readouterr()
        try:
            arguments = main.command_arguments(["jobs", *words])
        except SystemExit as end:
            status = end.code
        else:
            status = main.run_command(lambda: arguments.run(arguments))
        written = capsys.readouterr()
        return status, written.out, written.err

    return run


def end(store, to=JobState.SUCCEEDED, **fields):
    (claimed,) = store.claim("holder", lease=30, rooms=[Room(("", "s"), 1, 1 << 20)])
    store.end_attempts([AttemptEnd(claimed.hold, to, **fields)])


def die(store, message="too long"):
    problem = AttemptError("builtins.ValueError", message, "Traceback (most recent call last): …")
    end(store, JobState.DEAD, cause=FailureCause.INVALID_INPUT, counts=True, problem=problem)


# -- submit -----------------------------------------------------------------------------------------------------------


def test_an_input_is_submitted_with_its_options(jobs, store):
    status, out, _ = jobs("submit", '{"x": 1}', "--priority", "5", "--key", "k", "--service", "s", "--id", "a")
    assert (status, out) == (0, "a\n")
    (job,) = store.list_jobs(None, 10, None)
    assert (job.id, job.priority, job.service) == ("a", 5, "s")
    (claimed,) = store.claim("holder", lease=30, rooms=[Room(("", "s"), 1, 1 << 20)])
    assert (claimed.body, claimed.content_type) == (b'{"x": 1}', "application/json")


def test_a_job_is_written_as_an_object_with_its_fields(jobs):
    _, out, _ = jobs("submit", "3", "--json", "--output-url", "s3://out/a")
    told = json.loads(out)
    assert set(told) == {
        "id", "queue", "service", "state", "generation", "failures", "attempts", "created_at", "finished_at",
        "priority", "scheduled_at", "expires_at", "error", "input_url", "output_url",
    }  # fmt: skip
    assert (told["state"], told["output_url"]) == ("queued", "s3://out/a")


@pytest.mark.parametrize(
    ("file", "words", "content_type"),
    [
        ("a.json", (), "application/json"),
        ("a.wav", (), "application/octet-stream"),
        ("a.txt", ("--content-type", "application/json"), "application/json"),
    ],
)
def test_a_file_is_an_input_of_the_type_that_its_name_or_a_flag_says(jobs, store, tmp_path, file, words, content_type):
    (tmp_path / file).write_bytes(b"[1]")
    assert jobs("submit", "--file", str(tmp_path / file), *words)[0] == 0
    (claimed,) = store.claim("holder", lease=30, rooms=[Room(("", "s"), 1, 1 << 20)])
    assert (claimed.body, claimed.content_type) == (b"[1]", content_type)


def test_an_input_may_lie_elsewhere(jobs, store):
    assert jobs("submit", "--input-url", "s3://in/a.wav")[0] == 0
    assert store.list_jobs(None, 10, None)[0].input_url == "s3://in/a.wav"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no input; write one: JSON, --file PATH, --jsonl PATH, or --input-url URL"),
        (("1", "--input-url", "s3://in/a"), "no input; write one"),
        (("hello",), "a string needs quotes: '\"hello\"'"),
        (("1", "--priority", "high"), "--priority: expected an integer, got 'high'"),
        (("1", "--deadline", "60"), "60 has passed: write time.time() + 60"),
        (("1", "--deadline", "1e15"), "more than ten years ahead: is it in milliseconds?"),
        (("1", "--max-inline-bytes", "0"), "the input has 1 bytes, more than max_inline_bytes (0)"),
        (("1", "--max-inline-bytes", "x"), "--max-inline-bytes: expected a number, got 'x'"),
        (("1", "--prioritty", "3"), "did you mean --priority?"),
        (("1", "--queue-url", "sqlite://q.db"), "two slashes"),
        (("1", "--queue-url", "amqp://me:geheim@host"), "amqp://me:***@host: scheme amqp:// is not supported"),
        (("--jsonl", "in.jsonl", "--key", "k"), "--key is for a single job, but --jsonl submits several"),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_why(jobs, store, words, told):
    status, out, err = jobs("submit", *words)
    assert (status, out) == (2, "")
    assert told in err
    assert "geheim" not in err
    assert store.list_jobs(None, 10, None) == []


def test_without_a_queue_it_says_how_to_name_one(jobs, monkeypatch):
    monkeypatch.delenv("PENSTOCK_QUEUE_URL")
    status, _, err = jobs("stats")
    assert status == 2
    assert "no queue is set: write --queue-url URL" in err


def test_another_input_under_the_same_key_is_a_failure(jobs):
    assert jobs("submit", "1", "--key", "k")[:2] == jobs("submit", "1", "--key", "k")[:2]
    assert jobs("submit", "2", "--key", "k")[0] == 1


def test_a_file_that_is_not_there_is_told(jobs, tmp_path):
    for flag in ("--file", "--jsonl"):
        status, _, err = jobs("submit", flag, str(tmp_path / "nothing"))
        assert status == 1
        assert "nothing: No such file or directory" in err


# -- many -------------------------------------------------------------------------------------------------------------


def test_each_line_is_a_job_and_blank_lines_are_none(jobs, store, tmp_path):
    lines = [str(number) for number in range(LINES_IN_BATCH + 3)]
    (tmp_path / "in.jsonl").write_text("\n" + "\n\n".join(lines))
    status, out, err = jobs("submit", "--jsonl", str(tmp_path / "in.jsonl"), "--priority", "4")
    found = store.list_jobs(None, 10_000, None)
    assert (status, out.split(), err) == (0, [job.id for job in found], f"penstock: {len(lines)} jobs submitted\n")
    assert {job.priority for job in found} == {4}


def test_lines_may_begin_with_a_byte_order_mark_and_have_any_line_end(jobs, store, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf[1]\r\n12345\r\n")
    status, *_ = jobs("submit", "--jsonl", str(tmp_path / "in.jsonl"), "--max-inline-bytes", "5")
    claimed = store.claim("holder", lease=30, rooms=[Room(("", "s"), 9, 1 << 20)])
    assert (status, [job.body for job in claimed]) == (0, [b"[1]", b"12345"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("{x}", "the input is not valid application/json"),
        ("1" * 300_000, "the input is larger than 262144 bytes (--max-inline-bytes)"),
    ],
)
def test_a_wrong_line_is_told_with_its_number_and_nothing_of_its_batch_is_kept(jobs, store, monkeypatch, wrong, words):
    lines = [*map(str, range(LINES_IN_BATCH + 7)), wrong, "1"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    status, _, err = jobs("submit", "--jsonl", "-", "--json")
    assert status == 1
    assert f"standard input, line {LINES_IN_BATCH + 8}: the input" in err
    assert words in err
    assert f"; {LINES_IN_BATCH} jobs were submitted before this line, and none after it" in err
    assert store.stats().queued == LINES_IN_BATCH


# -- ask --------------------------------------------------------------------------------------------------------------


def test_jobs_are_shown_in_lines_with_tabs(jobs, store):
    job_id = jobs("submit", "1")[1].strip()
    assert jobs("status", job_id)[1].split("\t")[:3] == [job_id, "queued", "1"]
    assert jobs("list", "--state", "queued", "--limit", "1")[1].startswith(job_id)
    assert jobs("list", "--after", job_id)[1] == ""
    assert "queued\t1\n" in jobs("stats")[1]
    assert json.loads(jobs("stats", "--json")[1])["queued"] == 1


def test_on_a_terminal_jobs_stand_in_a_table_and_what_it_might_obey_is_escaped(jobs, store, monkeypatch):
    job_id = jobs("submit", "1")[1].strip()
    die(store, "[red]too\x1b[2J long")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LINES", "50")  # rich takes a width for a dumb terminal only together with a height
    _, out, _ = jobs("dead")
    assert "failures" in out
    assert job_id in out
    assert "ValueError: [red]too\\x1b[2J long" in out
    assert "oldest_queued_seconds" in jobs("stats")[1]


def test_dead_jobs_are_listed_with_their_errors(jobs, store):
    jobs("submit", "1", "--id", "a")
    jobs("submit", "2", "--id", "b")
    die(store)
    status, out, _ = jobs("dead")
    assert status == 0
    assert out.startswith("a\t1\tinvalid_input 1\t")
    assert out.endswith("\tbuiltins.ValueError: too long\n")


@pytest.mark.parametrize("command", [("status", "a"), ("wait", "a"), ("result", "a")])
def test_a_job_that_failed_is_a_failure(jobs, store, command):
    jobs("submit", "1", "--id", "a")
    die(store)
    assert jobs(*command)[0] == 1


@pytest.mark.parametrize("command", ["status", "wait", "result", "cancel", "retry"])
def test_a_job_that_is_not_there_is_a_failure(jobs, command):
    status, out, err = jobs(command, "nobody")
    assert (status, out) == (1, "")
    assert "nobody" in err


def test_the_others_are_shown_although_one_is_not_there(jobs):
    job_id = jobs("submit", "1")[1].strip()
    status, out, _ = jobs("status", "nobody", job_id)
    assert (status, out.partition("\t")[0]) == (1, job_id)


def test_a_result_in_json_is_a_line_and_any_other_is_its_bytes(jobs, store, tmp_path):
    for name, body, content_type in (("a", b'{"y":1}', "application/json"), ("b", b"\0\1", "application/octet-stream")):
        jobs("submit", "1", "--id", name)
        end(store, result=body, content_type=content_type)
    assert jobs("result", "a")[:2] == (0, '{"y":1}\n')
    assert jobs("result", "b", "--wait", "inf")[:2] == (0, "\0\1")
    assert jobs("result", "b", "--file", str(tmp_path / "out"))[0] == 0
    assert (tmp_path / "out").read_bytes() == b"\0\1"
    assert jobs("result", "b", "--file", str(tmp_path))[0] == 1


def test_a_terminal_is_not_shown_bytes(jobs, store, monkeypatch):
    jobs("submit", "1", "--id", "a")
    end(store, result=b"\x1b", content_type="application/octet-stream")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    status, out, err = jobs("result", "a")
    assert (status, out) == (1, "")
    assert "use --file PATH" in err


def test_a_result_that_lies_elsewhere_is_its_url(jobs, store):
    jobs("submit", "1", "--id", "a", "--output-url", "s3://out/a")
    end(store, content_type="application/json")
    assert jobs("result", "a")[:2] == (0, "s3://out/a\n")
    status, out, err = jobs("result", "a", "--file", "here")
    assert (status, out) == (1, "")
    assert "it is at s3://out/a" in err


def test_what_has_not_ended_in_time_is_a_failure(jobs):
    jobs("submit", "1", "--id", "a")
    for command in (("result", "a"), ("wait", "a", "--timeout", "0")):
        status, out, err = jobs(*command)
        assert (status, out, err) == (1, "", "penstock: job a is still queued after 0 s\n")
    assert jobs("wait", "a", "--timeout", "soon")[0] == 2
    assert jobs("wait", "a", "--timeout", "-1")[0] == 2


@pytest.mark.parametrize("command", [("result", "a", "--wait", "9"), ("wait", "a")])
def test_an_interrupted_wait_says_that_the_jobs_go_on(jobs, store, monkeypatch, command):
    def interrupt(job_ids):
        raise KeyboardInterrupt

    jobs("submit", "1", "--id", "a")
    monkeypatch.setattr(store, "get", interrupt)
    assert jobs(*command) == (130, "", "penstock: interrupted; the jobs continue\n")


# -- change -----------------------------------------------------------------------------------------------------------


def test_jobs_are_cancelled_and_retried(jobs, store):
    jobs("submit", "1", "--id", "a")
    status, out, _ = jobs("cancel", "a", "nobody")
    assert (status, out.split("\t")[:2]) == (1, ["a", "cancelled"])
    assert jobs("cancel", "a")[0] == 0
    status, out, _ = jobs("retry", "a", "--json")
    assert (status, json.loads(out)["generation"]) == (0, 2)
    status, _, err = jobs("retry", "a")
    assert status == 1
    assert "a" in err


def test_jobs_are_purged_only_where_it_is_said_which(jobs, store):
    jobs("submit", "1")
    assert jobs("purge")[0] == 2
    assert jobs("purge", "--state", "wating")[0] == 2
    assert jobs("purge", "--state", "running")[0] == 1
    assert jobs("purge", "--state", "all", "--older-than", "3600")[1] == "0 jobs purged\n"
    assert jobs("purge", "--state", "all", "--json")[1] == '{"purged":1}\n'


def test_a_queue_is_paused_and_resumed(jobs, store):
    assert jobs("pause")[:2] == (0, "")
    assert store.stats().paused
    assert json.loads(jobs("resume", "--json")[1])["paused"] is False
