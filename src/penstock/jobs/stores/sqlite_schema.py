"""The tables of a queue's file, and how older ones become these.

What a column means is said where it is not plain.  States are numbers in the order of `JobState`, so that `state < 2`
is what may still be claimed or expire, and `state > 2` is what has ended.  `due` and `lease_until` are readings of the
host's clock since its boot; all other times are Unix seconds.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import StoreUnavailable
from penstock.hosting.file_kind import FileKind

FIRST: Final = (
    # The one row: the boot whose readings `due` and `lease_until` are.
    "CREATE TABLE host (boot_id TEXT NOT NULL)",
    "INSERT INTO host VALUES ('')",
    # first_fence: new jobs count their fences from here: no fence of a forgotten job comes again.
    """CREATE TABLE queues (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, paused INTEGER NOT NULL DEFAULT 0,
        seconds_per_job REAL NOT NULL DEFAULT 0, first_fence INTEGER NOT NULL DEFAULT 0)""",
    # seq: the order of submission.  rank: the priority with its sign turned, so that the smallest comes first.
    # size: of the input.  since: the moment of submission, or of falling due.  due: NULL in a job that was scheduled
    # in another boot; its not_before counts then.
    # first_fence: of the run's first claim; NULL before it.  fence, claim_run, holder, claimed, claim_ended and cause
    # are those of the newest claim, and `history` has the older ones.
    """CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL, service TEXT NOT NULL,
        rank INTEGER NOT NULL, since REAL NOT NULL, lease_until REAL, fence INTEGER NOT NULL, first_fence INTEGER,
        claim_run INTEGER, holder TEXT, claimed REAL, claim_ended REAL, cause TEXT,
        run INTEGER NOT NULL DEFAULT 1, alone INTEGER NOT NULL DEFAULT 0, cancelling INTEGER NOT NULL DEFAULT 0,
        size INTEGER NOT NULL, due REAL, not_before REAL, deadline REAL, created REAL NOT NULL, ended REAL,
        id TEXT NOT NULL, job_key TEXT, digest TEXT NOT NULL, content_type TEXT NOT NULL, accept TEXT NOT NULL,
        input_url TEXT, output TEXT, attempts TEXT NOT NULL DEFAULT '{}', history TEXT, problem TEXT,
        result_type TEXT)""",
    # The input, and from success on the result; no row where that is empty.  Apart, because SQLite writes a whole row
    # when a part of it changes.
    "CREATE TABLE bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE UNIQUE INDEX ids ON jobs (queue, id)",
    "CREATE UNIQUE INDEX job_keys ON jobs (queue, job_key) WHERE job_key IS NOT NULL",
    "CREATE INDEX scheduled ON jobs (queue, due, not_before) WHERE state = 0",
    "CREATE INDEX waiting ON jobs (queue, service, rank, seq, since) WHERE state = 1",
    "CREATE INDEX leased ON jobs (queue, lease_until) WHERE state = 2",
    "CREATE INDEX ended ON jobs (queue, state, ended) WHERE state > 2",
    "CREATE INDEX deadlines ON jobs (queue, deadline) WHERE state < 2 AND deadline IS NOT NULL",
    """CREATE TABLE deliveries (
        queue INTEGER NOT NULL, job_id TEXT NOT NULL, last_fence INTEGER NOT NULL, first_fence INTEGER NOT NULL,
        fence INTEGER NOT NULL, output TEXT NOT NULL, lease_until REAL NOT NULL,
        PRIMARY KEY (queue, job_id, last_fence)) WITHOUT ROWID""",
    "CREATE INDEX undelivered ON deliveries (queue, lease_until)",
)
SECOND: Final = (
    # last_turn: the highest `turn` of a job that had to rest; newer jobs have a higher `seq`.
    "ALTER TABLE queues ADD COLUMN last_turn INTEGER NOT NULL DEFAULT 0",
    # turn: the order of claims among jobs of one rank; it is `seq` until a job has to rest.  elsewhere: whether the
    # input is at `host`, which is as `host_of` says.
    "ALTER TABLE jobs ADD COLUMN turn INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN elsewhere INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN host TEXT NOT NULL DEFAULT ''",
    "UPDATE jobs SET turn = seq",
    """UPDATE jobs SET elsewhere = 1, host = lower(substr(input_url, 1, instr(input_url, '://') + 1
        + instr(substr(input_url, instr(input_url, '://') + 3) || '/', '/'))) WHERE input_url IS NOT NULL""",
    "DROP INDEX waiting",
    "CREATE INDEX waiting ON jobs (queue, service, elsewhere, rank, turn, since) WHERE state = 1",
    "CREATE INDEX waiting_at ON jobs (queue, service, host, rank, turn) WHERE state = 1 AND elsewhere = 1",
)
COUNT_WAITING: Final = (
    # For a queue in which only so much may wait: how many jobs are scheduled or waiting, and the bytes of their inputs.
    # Who bounds a queue makes these for the file; triggers cost each write a little, so nobody else does.
    """CREATE TABLE IF NOT EXISTS waiting_totals (
        queue INTEGER PRIMARY KEY, jobs INTEGER NOT NULL, bytes INTEGER NOT NULL)""",
    """CREATE TRIGGER IF NOT EXISTS waits AFTER INSERT ON jobs WHEN new.state < 2 BEGIN
        UPDATE waiting_totals SET jobs = jobs + 1, bytes = bytes + new.size WHERE queue = new.queue; END""",
    """CREATE TRIGGER IF NOT EXISTS waits_again AFTER UPDATE OF state ON jobs WHEN new.state < 2 AND old.state > 1 BEGIN
        UPDATE waiting_totals SET jobs = jobs + 1, bytes = bytes + new.size WHERE queue = new.queue; END""",
    """CREATE TRIGGER IF NOT EXISTS waits_no_more AFTER UPDATE OF state ON jobs
        WHEN new.state > 1 AND old.state < 2 BEGIN
        UPDATE waiting_totals SET jobs = jobs - 1, bytes = bytes - old.size WHERE queue = old.queue; END""",
    """CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON jobs WHEN old.state < 2 BEGIN
        UPDATE waiting_totals SET jobs = jobs - 1, bytes = bytes - old.size WHERE queue = old.queue; END""",
)
QUEUE_FILE: Final = FileKind(
    what="queue",
    contents="jobs",
    elsewhere="put the queue on a disk of this host, or use redis://",
    application_id=0x506E7374,  # the letters "Pnst"
    steps=(FIRST, SECOND),
    unavailable=StoreUnavailable,
)
