"""Keep the jobs of a queue in an SQLite file, for all processes of one host.

Contract
--------
* It is a `Store`.  What a method returns survives the end of the process, a crash of the system and a power cut.  With
  `synchronous` NORMAL a power cut or a crash of the system may lose what was done in the last moments, back to the last
  checkpoint of the log: jobs that were submitted are not there then, and what was claimed, ended or cancelled is as it
  was before; so a job may be done twice.  The file is whole in any case, and the end of a process loses nothing.
* One thread writes, see `sqlite_writer`; another connection reads, and waits for no writer.  What has nothing to write
  opens no transaction that writes: an idle consumer costs no fsync.
* Leases and rests count the host's clock since its boot.  After another boot no lease is left, because no holder is;
  a rest that goes on is measured by the wall clock.
* A fork of the process cannot use the store, and cannot open the same file while its parent had it open.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.config import MIB
from penstock.errors import ConfigError, JobConflict, StoreUnavailable
from penstock.hosting.disk_room import RESERVE_BYTES, DiskRoom, free_bytes
from penstock.hosting.host_clock import HostClock, Reading
from penstock.hosting.mounts import MOUNTINFO
from penstock.hosting.sqlite_file import BUSY_SECONDS, SqliteFile
from penstock.jobs.advice import Advice
from penstock.jobs.job import Job, Stats, StoredResult
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.jobs.store import (
    Answer,
    AttemptEnd,
    ClaimedJob,
    Delivery,
    Hold,
    KeptInput,
    NewJob,
    Renewed,
    Room,
    StoreFull,
)
from penstock.jobs.stores import sqlite_claims, sqlite_endings, sqlite_submitters
from penstock.jobs.stores.sqlite_advice import advise_on_file
from penstock.jobs.stores.sqlite_passing import catch_up, is_due
from penstock.jobs.stores.sqlite_rows import STATES
from penstock.jobs.stores.sqlite_schema import COUNT_WAITING, QUEUE_FILE
from penstock.jobs.stores.sqlite_submitters import purgeable
from penstock.jobs.stores.sqlite_writer import SqliteWriter
from penstock.jobs.stores.urls import DEFAULT_QUEUE, SYNCHRONOUS, StoreUrl

T = TypeVar("T")

KIB: Final = 1024
PURGED_AT_ONCE: Final = 1000
"""The most jobs that one transaction forgets: others write between two."""
SMALL_RESULT: Final = 4 * KIB
"""A result of so many bytes is stored as long as SQLite finds room at all: the job that ends has left some."""
SAME_SPEED: Final = 0.05
"""By what part the seconds for a job must differ from those in the file to be written there."""


def open_sqlite_store(place: StoreUrl) -> SqliteStore:
    """The store that a URL names; see `SqliteStore`."""
    return SqliteStore(
        place.path, place.queue, synchronous=place.synchronous, reserve=place.reserve, bounds=place.bounds
    )


class SqliteStore:
    """One queue in a file; several may share one.

    Args:
        path: the file; it is made where there is none, in a folder that must be there.
        queue: the name of the queue.
        synchronous: FULL, or NORMAL, which is faster; see above for what a power cut may lose then.
        clock: the clocks of this host.
        mountinfo: the file that tells the mounted file systems.
        reserve: how many bytes of the file system new jobs must leave free; with 0 there is no spare file either.
        free: how many bytes the file system of a folder has.
        bounds: how much may wait in the queue when this store submits.

    Raises:
        ConfigError: the file is damaged, somebody else's, of a newer version or on a network file system; the folder is
            not there; an option has a value that it cannot have.
        StoreUnavailable: the file is locked for longer than `BUSY_SECONDS`, or the disk is full or fails.
    """

    def __init__(
        self,
        path: str,
        queue: str = DEFAULT_QUEUE,
        *,
        synchronous: str = SYNCHRONOUS[0],
        clock: HostClock | None = None,
        mountinfo: Path = MOUNTINFO,
        reserve: int = RESERVE_BYTES,
        free: Callable[[str], int] = free_bytes,
        bounds: WaitingBounds = NO_BOUNDS,
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(f"synchronous is {' or '.join(SYNCHRONOUS)}, got {synchronous!r}")
        self.queue = queue
        self._clock = HostClock.of_this_host() if clock is None else clock
        self._process = os.getpid()
        self._file = SqliteFile(path, QUEUE_FILE, synchronous=synchronous, mountinfo=mountinfo)
        self._synchronous = synchronous
        self._bounds = bounds
        self._room = DiskRoom(self._file.path, reserve, free=free)
        self._taken = (0, 0)
        """The number of a transaction, and how many bytes newcomers take in it."""
        self._writer = SqliteWriter(self._file, self._room)
        try:
            self._room.make_spare()
            self._number = self._writer.run(self._enter)
            self._reader = self._file.open_for_reading()
        except BaseException:
            self._writer.close()
            self._file.leave()
            raise
        self._reading = threading.Lock()
        self._closed = False

    # -- submitters -------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Job]:
        """See `Store`."""
        return self._write(
            lambda connection, now: sqlite_submitters.submit_jobs(
                connection, self._number, self.queue, jobs, now, partial(self._admit, connection)
            ),
            takes=True,
        )

    def _admit(self, connection: sqlite3.Connection, new: Sequence[NewJob]) -> None:
        """Raise where more would wait with `new` than may, or where the disk would not keep its reserve.

        Others of this transaction have taken some of it already.
        """
        if self._bounds.any:
            waiting, waiting_bytes = connection.execute(
                "SELECT jobs, bytes FROM waiting_totals WHERE queue = ?", (self._number,)
            ).fetchone()
            new_bytes = sum([len(job.body) for job in new])
            self._bounds.check(
                self.queue, waiting=waiting, waiting_bytes=waiting_bytes, new=len(new), new_bytes=new_bytes
            )
        if not self._room.reserve:
            return
        # A body is written to the log, and then to the file; a row and its indexes take less than a KiB besides texts.
        taken = sum([2 * (len(job.body) + len(job.input_url or "") + len(job.output or "") + KIB) for job in new])
        number, before = self._taken
        taken += before if number == self._writer.transactions else 0
        if not self._room.leaves_reserve(taken + self._file.growth(connection), self._file.inside(connection)):
            raise StoreFull(
                f"{self._file.path}: new jobs are rejected, the disk has {self._room.free() / MIB:.1f} MiB "
                f"free and {self._room.reserve / MIB:g} MiB are reserved (reserve); free disk space, or purge "
                "finished jobs"
            )
        self._taken = self._writer.transactions, taken

    def kept_inputs(self, jobs: Sequence[NewJob]) -> list[KeptInput | None]:
        """See `Store`."""
        return self._read(lambda connection, _: sqlite_submitters.kept_inputs(connection, self._number, jobs))

    def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """See `Store`."""
        self._catch_up()
        return self._read(
            lambda connection, _: sqlite_submitters.get_jobs(connection, self._number, self.queue, job_ids)
        )

    def result(self, job_id: str) -> StoredResult | None:
        """See `Store`."""
        row = self._read(
            lambda connection, _: connection.execute(
                "SELECT body, result_type, output FROM jobs LEFT JOIN bodies USING (seq) "
                "WHERE queue = ? AND id = ? AND state = 3",
                (self._number, job_id),
            ).fetchone()
        )
        return None if row is None else StoredResult(row[0] or b"", row[1] or "", row[2])

    def cancel(self, job_id: str) -> Job:
        """See `Store`."""
        return self._write(
            lambda connection, now: sqlite_submitters.cancel_job(connection, self._number, self.queue, job_id, now)
        )

    def retry(self, job_id: str) -> Job:
        """See `Store`."""
        return self._write(
            lambda connection, now: sqlite_submitters.retry_job(connection, self._number, self.queue, job_id, now)
        )

    def list_jobs(self, state: JobState | None, limit: int, after: str | None) -> list[Job]:
        """See `Store`."""
        self._catch_up()
        return self._read(
            lambda connection, _: sqlite_submitters.list_stored_jobs(
                connection, self._number, self.queue, state, limit, after
            )
        )

    def purge(self, state: JobState | None, older_than: float) -> int:
        """See `Store.purge`; of many jobs, it may have forgotten only a part when it raises."""
        if state is JobState.RUNNING:
            raise JobConflict("running jobs cannot be purged: cancel them first")
        self._catch_up()
        states = [each for each in STATES if each is not JobState.RUNNING] if state is None else [state]
        return sum(self._purge(each, older_than) for each in states)

    def pause(self) -> None:
        """See `Store`."""
        self._set_paused(1)

    def resume(self) -> None:
        """See `Store`."""
        self._set_paused(0)

    def stats(self) -> Stats:
        """See `Store`."""
        self._catch_up()
        return self._read(lambda connection, now: sqlite_submitters.count_jobs(connection, self._number, now))

    # -- holders ----------------------------------------------------------------------------------------------------

    def claim(
        self, holder: str, *, lease: float, rooms: Sequence[Room], given_up: Collection[Hold] = ()
    ) -> list[ClaimedJob]:
        """See `Store`."""
        if not self._read(lambda connection, now: sqlite_claims.may_claim(connection, self._number, rooms, now)):
            return []
        return self._write(
            lambda connection, now: sqlite_claims.claim_jobs(
                connection, self._number, holder, lease=lease, rooms=rooms, given_up=given_up, now=now
            )
        )

    def renew(self, holds: Sequence[Hold], lease: float) -> list[Renewed]:
        """See `Store`."""
        return self._write(
            lambda connection, now: sqlite_claims.renew_leases(connection, self._number, holds, lease, now)
        )

    def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[Answer]:
        """See `Store`."""
        return self._write(lambda connection, now: self._end_attempts(connection, ends, now))

    def _end_attempts(self, connection: sqlite3.Connection, ends: Sequence[AttemptEnd], now: Reading) -> list[Answer]:
        """End those for whose results there is room; the others are told once more, and there may be some then."""
        nbytes = sum([len(end.result) for end in ends])
        if not nbytes or self._room.free() >= self._room.reserve + 2 * nbytes:
            return sqlite_endings.end_held(connection, self._number, ends, now)
        left = self._room.left_for_results(self._file.growth(connection))
        fitting: list[AttemptEnd] = []
        places: list[int] = []
        for place, end in enumerate(ends):
            if 2 * len(end.result) <= left or len(end.result) <= SMALL_RESULT:
                left -= 2 * len(end.result)
                fitting.append(end)
                places.append(place)
        answers = [Answer.UNKNOWN] * len(ends)
        for place, answer in zip(places, sqlite_endings.end_held(connection, self._number, fitting, now), strict=True):
            answers[place] = answer
        return answers

    # -- whoever is there -------------------------------------------------------------------------------------------

    def tend(self, *, keep: float, keep_dead: float, seconds_per_job: float | None) -> None:
        """See `Store`."""
        self._room.make_spare()
        self._catch_up()
        for state in STATES:
            if state in ENDED:
                self._purge(state, keep_dead if state is JobState.DEAD else keep)
        if seconds_per_job is None:
            return
        (known,) = self._read(
            lambda connection, _: connection.execute(
                "SELECT seconds_per_job FROM queues WHERE number = ?", (self._number,)
            ).fetchone()
        )
        if abs(seconds_per_job - known) > SAME_SPEED * known:
            self._write(
                lambda connection, _: (
                    connection.execute(
                        "UPDATE queues SET seconds_per_job = ? WHERE number = ?", (seconds_per_job, self._number)
                    ).rowcount
                )
            )

    def deliveries(self, *, limit: int, lease: float) -> list[Delivery]:
        """See `Store`."""
        there = self._read(
            lambda connection, now: connection.execute(
                "SELECT 1 FROM deliveries WHERE queue = ? AND lease_until <= ? LIMIT 1", (self._number, now.boottime)
            ).fetchone()
        )
        if there is None:
            return []
        return self._write(
            lambda connection, now: sqlite_submitters.lend_deliveries(connection, self._number, limit, lease, now)
        )

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """See `Store`."""
        rows = [(self._number, each.job_id, each.last_fence) for each in deliveries]
        self._write(
            lambda connection, _: (
                connection.executemany(
                    "DELETE FROM deliveries WHERE queue = ? AND job_id = ? AND last_fence = ?", rows
                ).rowcount
            )
        )

    def advice(self) -> list[Advice]:
        """See `penstock.jobs.advice.Advisable`."""
        room = None if not self._room.reserve else (self._room.free(), self._room.reserve, self._room.has_spare())
        return advise_on_file(self._file.path, self._file.file_system(), self._synchronous, room)

    def close(self) -> None:
        """See `Store.close`; in a fork it does nothing."""
        if self._closed or os.getpid() != self._process:
            return
        self._writer.close()
        with self._reading:
            self._closed = True
            self._reader.close()
        self._file.leave()

    # -- the file ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise ConfigError(
                f"the queue in {self._file.path} was opened in process {self._process}; open it after the fork"
            )
        if self._closed:
            raise StoreUnavailable(f"{self._file.path}: the store is closed")

    def _now(self) -> Reading:
        return self._clock.read()

    def _write(self, work: Callable[[sqlite3.Connection, Reading], T], *, takes: bool = False) -> T:
        """What `work` returns, once it is durable; it is told the time at which its turn has come."""
        self._check()
        return self._writer.run(lambda connection: work(connection, self._now()), takes=takes)

    def _read(self, work: Callable[[sqlite3.Connection, Reading], T]) -> T:
        """What `work` returns: all its queries see the same jobs."""
        self._check()
        self._file.check_there()
        if not self._reading.acquire(timeout=BUSY_SECONDS):
            raise StoreUnavailable(f"{self._file.path}: locked by readers for {BUSY_SECONDS:g} s")
        try:
            self._check()
            self._reader.execute("BEGIN")
            try:
                return work(self._reader, self._now())
            finally:
                self._reader.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._file.unavailable(error) or error from error
        finally:
            self._reading.release()

    def _catch_up(self) -> None:
        """Have `catch_up` move what time has moved, if there is any."""
        if self._read(lambda connection, now: is_due(connection, self._number, now)):
            self._write(lambda connection, now: catch_up(connection, self._number, now))

    def _enter(self, connection: sqlite3.Connection) -> int:
        """The number of the queue in the file.  The first to come after another boot voids what counted that one."""
        (boot_id,) = connection.execute("SELECT boot_id FROM host").fetchone()
        if boot_id != self._clock.boot_id:
            connection.execute("UPDATE host SET boot_id = ?", (self._clock.boot_id,))
            connection.execute("UPDATE jobs SET lease_until = -1.0 WHERE state = 2")
            connection.execute("UPDATE jobs SET due = NULL WHERE state = 0")
            connection.execute("UPDATE deliveries SET lease_until = -1.0")
        connection.execute("INSERT OR IGNORE INTO queues (name) VALUES (?)", (self.queue,))
        (number,) = connection.execute("SELECT number FROM queues WHERE name = ?", (self.queue,)).fetchone()
        if self._bounds.any:
            for statement in COUNT_WAITING:
                connection.execute(statement)
            connection.execute(
                "INSERT OR REPLACE INTO waiting_totals SELECT ?1, count(*), ifnull(sum(size), 0) FROM jobs "
                "WHERE queue = ?1 AND state < 2",
                (number,),
            )
        return int(number)

    def _set_paused(self, paused: int) -> None:
        self._write(
            lambda connection, _: (
                connection.execute("UPDATE queues SET paused = ? WHERE number = ?", (paused, self._number)).rowcount
            )
        )

    def _purge(self, state: JobState, older_than: float) -> int:
        """Forget the jobs in `state` that are so old, some at a time; only reads where there are none.

        Where the wall clock was set back since, a job that has just ended is older than no seconds nevertheless.
        """
        before = self._clock.wall() - older_than if older_than > 0 else math.inf
        found = self._read(lambda connection, _: purgeable(connection, self._number, state, before, 1))
        forgotten, more, most = 0, bool(found), PURGED_AT_ONCE
        while more:
            forget = partial(sqlite_submitters.forget_jobs, queue=self._number, state=state, before=before, limit=most)
            try:
                count = self._write(lambda connection, _, forget=forget: forget(connection))  # type: ignore[misc]
            except StoreFull:
                if most == 1:
                    raise
                most = max(1, most // 8)  # to forget takes room, too, and gives it back afterwards
                continue
            forgotten += count
            more = count == most
        return forgotten
