"""Tables larger than a process: workers that map the files of the rows, die under load, and take little memory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from served import Server, serving

from tiny_artifacts import wide_rows, write_wide

SMALL = 1_000
MIB = 2**20
MOST_MORE = 200 * MIB
"""Bytes of its own that a process may have more than with a table of `SMALL` rows."""
LATER = 5.0
"""Seconds that a start may take more."""


def anonymous_bytes(pid: int) -> int:
    """What a process has of its own: not the pages of files that it maps."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def taken(server: Server) -> list[int]:
    return [anonymous_bytes(pid) for pid in (server.pid, *server.workers())]


def asked_of(size: int, count: int) -> list[int]:
    """Ids from all of a table: the first and the last of it, and others evenly spread."""
    return np.linspace(0, size - 1, count).astype(np.int64).tolist()


def check_answers(server: Server, ids: list[int], client=None) -> None:
    for user, row in zip(ids, wide_rows(np.array(ids)), strict=True):
        answer = (client or server.http).post("/predict", json={"user": user})
        assert (answer.status_code, answer.json()) == (200, {"row": row.tolist()})


def check_table(folder: Path, size: int, *, asked: int) -> None:
    """Serve a table of so many rows by two workers, kill them under load, and remove the files that they map."""
    with serving(folder, "large", "--workers", "2", services=()) as server:
        check_answers(server, asked_of(size, asked))
        wrong = server.http.post("/predict", json={"user": size})
        assert wrong.status_code == 422
        assert f"table 'user' has the ids from 0 to {size - 1}, but id {size} was requested" in wrong.text
        ended, failed, answered = threading.Event(), list[BaseException](), [0]

        def ask() -> None:
            try:
                client = server.client()
                while not ended.is_set():
                    check_answers(server, asked_of(size, 50), client)
                    answered[0] += 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            before = answered[0]
            server.until(lambda before=before: answered[0] > before + 4 or failed, "answers")
            killed = server.workers()[0]
            os.kill(killed, signal.SIGKILL)
            server.until(lambda killed=killed: killed not in (now := server.workers()) and None not in now)
        ended.set()
        for thread in threads:
            thread.join()
        assert failed == []
        (folder / "large").rename(folder / "pruned")
        shutil.rmtree(folder / "pruned")
        check_answers(server, asked_of(size, 100))


def test_a_million_rows_are_served_from_their_files_by_workers_that_die(tmp_path):
    write_wide(tmp_path / "large", 1_000_000)
    assert len(list((tmp_path / "large" / "tables" / "user").iterdir())) == 4
    check_table(tmp_path, 1_000_000, asked=400)


def test_a_shard_that_is_cut_while_it_is_mapped_ends_two_workers_and_is_told_by_the_next(tmp_path):
    write_wide(tmp_path / "large", 100_000, shard_bytes=2**23)
    shards = sorted((tmp_path / "large" / "tables" / "user").iterdir())
    with serving(tmp_path, "large", "--workers", "2", services=()) as server:
        check_answers(server, [0, 99_999])
        os.truncate(shards[-1], 8192)
        lost = server.http.post("/predict", json={"user": 99_999})
        assert (lost.status_code, lost.json()["type"]) == (500, "urn:penstock:problem:worker-lost")
        assert server.metric("penstock_stage_worker_restarts_total") >= 2
        server.until(lambda: f"{shards[-1].name} has 8192 bytes" in server.output, "a new worker to look at the file")
        assert "SIGBUS" in server.output


@pytest.mark.soak
def test_twenty_million_rows_take_the_memory_and_the_start_of_a_thousand(tmp_path, capsys):
    size = 20_000_000
    write_wide(tmp_path / "small", SMALL)
    write_wide(tmp_path / "large", size, shard_bytes=2**29)
    shards = sorted((tmp_path / "large" / "tables" / "user").iterdir())
    assert sum(shard.stat().st_size for shard in shards) > size * 64 * 4
    memory, seconds = {}, {}
    for name, rows in (("small", SMALL), ("large", size)):
        for shard in shards:  # as after a start of the machine
            with shard.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.monotonic()
        with serving(tmp_path, name, "--workers", "2", services=()) as server:
            seconds[name] = time.monotonic() - began
            check_answers(server, asked_of(rows, 1_000))
            memory[name] = taken(server)
    own = {name: [each // MIB for each in found] for name, found in memory.items()}
    with capsys.disabled():
        sys.stdout.write(f"\nseconds to ready {seconds}; MiB of each process's own {own}\n")
    assert max(memory["large"]) - max(memory["small"]) < MOST_MORE
    assert seconds["large"] - seconds["small"] < LATER
    with serving(tmp_path, "large", "--verify-rows", services=()) as server:
        check_answers(server, asked_of(size, 100))
    check_table(tmp_path, size, asked=2_000)
