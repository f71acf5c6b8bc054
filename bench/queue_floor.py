"""The floor of a job queue: claim jobs and commit them, 64 at a time, and nothing else.

    python bench/queue_floor.py sqlite:////tmp/floor/q.db --jobs 20000
    python bench/queue_floor.py redis://127.0.0.1:6379 --jobs 20000

A claim sets a lease and a new fence, and reads the input; a commit writes the result, and only where the fence is still
the same.  So much any queue does that survives its holders.  There is no model, no second process, no renewal, no
history, no index but the one of what waits, and in Redis no key but a job's and those of the two lines.  The store and
its durability are those that a consumer has: SQLite with WAL and `synchronous=FULL`; Redis by one script for each claim
and one for each commit.

Where the queue was is emptied first.  It prints one object of JSON, a `FloorSeen`; making the jobs is not in it.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

AT_ONCE = 64
LEASE_SECONDS = 30.0

TABLES = (
    """CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 1, fence INTEGER NOT NULL DEFAULT 0, lease_until REAL,
        body BLOB NOT NULL)""",
    "CREATE INDEX waiting ON jobs (seq) WHERE state = 1",
)
CLAIM = (
    "UPDATE jobs SET state = 2, fence = fence + 1, lease_until = ? "
    "WHERE seq IN (SELECT seq FROM jobs WHERE state = 1 ORDER BY seq LIMIT ?) RETURNING seq, fence, body"
)
COMMIT = "UPDATE jobs SET state = 3, lease_until = NULL, body = ? WHERE seq = ? AND fence = ?"

CLAIM_SCRIPT = """
local time = redis.call('TIME')
local lease_end = time[1] + time[2] / 1e6 + ARGV[2]
local answer, leases = {}, {}
local found = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
for number = 1, #found, 2 do
  local id = found[number]
  local key = '{floor}:job:' .. id
  local fence = redis.call('HINCRBY', key, 'fence', 1)
  leases[#leases + 1] = lease_end
  leases[#leases + 1] = id
  answer[#answer + 1] = {id, fence, redis.call('HGET', key, 'body')}
end
if #leases > 0 then redis.call('ZADD', KEYS[2], unpack(leases)) end
return answer
"""
COMMIT_SCRIPT = """
local ended = {}
for number = 1, #ARGV, 3 do
  local id = ARGV[number]
  local key = '{floor}:job:' .. id
  if redis.call('HGET', key, 'fence') == ARGV[number + 1] then
    redis.call('HSET', key, 'result', ARGV[number + 2])
    ended[#ended + 1] = id
  end
end
if #ended > 0 then redis.call('ZREM', KEYS[1], unpack(ended)) end
return #ended
"""


class FloorSeen(msgspec.Struct, frozen=True):
    """What it took to claim and commit all jobs."""

    jobs: int
    seconds: float
    cpu_seconds: float
    """Of this process; a server's is not in it."""


def on_sqlite(path: Path, jobs: int, body: bytes) -> FloorSeen:
    """Drain a queue in an SQLite file, which is made anew."""
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO jobs (body) VALUES (?)", [(body,)] * jobs)
    connection.execute("COMMIT")

    def turn() -> int:
        claimed = connection.execute(CLAIM, (time.time() + LEASE_SECONDS, AT_ONCE)).fetchall()
        connection.execute("BEGIN")
        connection.executemany(COMMIT, [(body, seq, fence) for seq, fence, body in claimed])
        connection.execute("COMMIT")
        return len(claimed)

    try:
        return drained(turn, jobs)
    finally:
        connection.close()


def on_redis(url: str, jobs: int, body: bytes) -> FloorSeen:
    """Drain a queue in Redis, whose keys are removed first and afterwards."""
    import redis

    client = redis.Redis.from_url(url)
    waiting, leased = "{floor}:waiting", "{floor}:leased"

    def empty() -> None:
        for key in client.scan_iter("{floor}:*", count=1000):
            client.delete(key)

    empty()
    for first in range(0, jobs, 1000):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, min(first + 1000, jobs)):
            pipeline.hset(f"{{floor}}:job:{number}", "body", body)
            pipeline.zadd(waiting, {str(number): number})
        pipeline.execute()
    claim, commit = client.register_script(CLAIM_SCRIPT), client.register_script(COMMIT_SCRIPT)

    def turn() -> int:
        claimed = claim(keys=[waiting, leased], args=[AT_ONCE, LEASE_SECONDS])
        return commit(keys=[leased], args=[word for job in claimed for word in job]) if claimed else 0

    try:
        return drained(turn, jobs)
    finally:
        empty()
        client.close()


def drained(turn: Callable[[], int], jobs: int) -> FloorSeen:
    """What it took until a `turn`, which tells how many jobs it has ended, finds none; raises if it were not `jobs`."""
    begin, cpu_before = time.perf_counter(), time.process_time()
    done = 0
    while found := turn():
        done += found
    seen = FloorSeen(done, time.perf_counter() - begin, time.process_time() - cpu_before)
    if done != jobs:
        raise SystemExit(f"of {jobs} jobs the floor has ended {done}")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description="Claim jobs and commit them, 64 at a time, and nothing else.")
    parser.add_argument("url", help="sqlite:////PATH or redis://HOST:PORT; a queue that is there is emptied")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--body", default="1", help="the input of each job, which is its result too (default: 1)")
    chosen = parser.parse_args()
    scheme, _, rest = chosen.url.partition(":///")
    body = chosen.body.encode()
    seen = on_sqlite(Path(rest), chosen.jobs, body) if scheme == "sqlite" else on_redis(chosen.url, chosen.jobs, body)
    print(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    main()
