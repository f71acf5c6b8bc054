"""Results that cannot be stored yet, on disk instead of in memory.

Files here are of one process and live no longer than it: they keep a result from being computed twice while a store or
a bucket is gone, and they are read as plain bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec

from penstock.hosting.guarded_log import guarded_logger
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.held_work import HeldWork, Holding
from penstock.jobs.own_folder import OwnFolder
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd

log = guarded_logger("penstock.jobs")


class Spool:
    """The spool of one consumer; without a folder it does nothing.

    `max_bytes` is for each service, so that results of one that cannot be stored leave room for those of the others.
    `threads` read and write the files.
    """

    def __init__(
        self,
        common: Path | None,
        max_bytes: int,
        holding: Holding,
        threads: CallThreads,
    ) -> None:
        self._common = common
        self._own: OwnFolder | None = None
        self._max_bytes = max_bytes
        self._holding = holding
        self._threads = threads
        self._files: dict[HeldWork, tuple[Path, int]] = {}
        self._numbers = 0
        self._nbytes: Counter[str] = Counter()
        """Bytes on disk for each service."""

    def full(self, service: str) -> bool:
        """Whether it takes no more of a service."""
        return self._common is not None and self._nbytes[service] >= self._max_bytes

    def open(self) -> None:
        """Make the folder; raises ConfigError where that cannot be."""
        if self._common is not None:
            self._own = OwnFolder(self._common, "spool")

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        if self._own is not None:
            self._own.remove()
            self._own = None

    async def spill(self, job: HeldWork) -> None:
        """Move the result of `job` to disk, if there is room; where the disk refuses it, it stays in memory."""
        end = job.end
        if self._own is None or end is None or not end.result:
            return
        size = len(end.result)
        if self._nbytes[job.service] + size > self._max_bytes:
            return
        self._numbers += 1
        path = self._own.path / f"{self._numbers}.result"
        self._nbytes[job.service] += size
        try:
            await self._threads.run(partial(_write, path, end.result))
        except OSError as error:
            self._nbytes[job.service] -= size
            log.warning("cannot write to the spool: %s; the result stays in memory", error)
            return
        self._files[job] = (path, size)
        job.end = msgspec.structs.replace(end, result=b"")
        self._holding.resize(job, 0)

    async def load(self, job: HeldWork) -> AttemptEnd:
        """The end of `job` with its result, wherever that lies; a release where somebody has removed the file."""
        end = job.end
        assert end is not None
        found = self._files.get(job)
        if found is None:
            return end
        try:
            result = await self._threads.run(found[0].read_bytes)
        except OSError as error:
            log.error("the result of job %s in the spool is lost, computing it again: %s", job.claimed.id, error)  # noqa: TRY400
            self.forget(job)
            job.end = AttemptEnd(job.hold, JobState.QUEUED, cause=FailureCause.RELEASED, transfers=end.transfers)
            return job.end
        return msgspec.structs.replace(end, result=result)

    def forget(self, job: HeldWork) -> None:
        """Remove what lies here for `job`."""
        found = self._files.pop(job, None)
        if found is not None:
            path, size = found
            self._nbytes[job.service] -= size
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(file, "wb") as spooled:  # noqa: PTH123  # a descriptor, and no path
            spooled.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise
