"""A store that writes down what is asked of it.  See `penstock.testing.history`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.errors import JobError, StoreUnavailable
from penstock.jobs.job import Job, Stats, StoredResult
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, AttemptEnd, ClaimedJob, Delivery, Hold, KeptInput, NewJob, Renewed, Room, Store
from penstock.testing.history_events import Act, EventLog, Part


class RecordedStore:
    """Any store, with what changes jobs written to `log`.

    A call that raises StoreUnavailable has no end in the log: it was done or it was not.  One that is refused has
    ended, and was nothing to any job.
    """

    def __init__(self, store: Store, log: EventLog) -> None:
        self._store = store
        self._log = log

    @property
    def queue(self) -> str:
        """See `Store`."""
        return self._store.queue

    # -- submitters -------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Job]:
        """See `Store`."""
        end = self._log.begin(Act.SUBMIT, [Part(new.id) for new in jobs])
        try:
            kept = self._store.submit(jobs)
        except StoreUnavailable:
            raise
        except JobError:
            end(())
            raise
        end(Part(job.id, run=job.generation, answer=job.state) for job in kept)
        return kept

    def cancel(self, job_id: str) -> Job:
        """See `Store`."""
        return self._change(Act.CANCEL, job_id)

    def retry(self, job_id: str) -> Job:
        """See `Store`."""
        return self._change(Act.RETRY, job_id)

    def _change(self, act: Act, job_id: str) -> Job:
        end = self._log.begin(act, [Part(job_id)])
        try:
            job = self._store.cancel(job_id) if act is Act.CANCEL else self._store.retry(job_id)
        except StoreUnavailable:
            raise
        except JobError:
            end(())
            raise
        end([Part(job_id, run=job.generation, answer=job.state)])
        return job

    def kept_inputs(self, jobs: Sequence[NewJob]) -> list[KeptInput | None]:
        """See `Store`."""
        return self._store.kept_inputs(jobs)

    def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """See `Store`."""
        return self._store.get(job_ids)

    def result(self, job_id: str) -> StoredResult | None:
        """See `Store`."""
        return self._store.result(job_id)

    def list_jobs(self, state: JobState | None, limit: int, after: str | None) -> list[Job]:
        """See `Store`."""
        return self._store.list_jobs(state, limit, after)

    def purge(self, state: JobState | None, older_than: float) -> int:
        """See `Store`."""
        return self._store.purge(state, older_than)

    def pause(self) -> None:
        """See `Store`."""
        end = self._log.begin(Act.PAUSE)
        self._store.pause()
        end()

    def resume(self) -> None:
        """See `Store`."""
        end = self._log.begin(Act.RESUME)
        self._store.resume()
        end()

    def stats(self) -> Stats:
        """See `Store`."""
        return self._store.stats()

    # -- holders ----------------------------------------------------------------------------------------------------

    def claim(
        self, holder: str, *, lease: float, rooms: Sequence[Room], given_up: Collection[Hold] = ()
    ) -> list[ClaimedJob]:
        """See `Store`."""
        if given_up:
            self._log.begin(Act.GIVE_UP, [Part(*hold) for hold in given_up])()
        end = self._log.begin(Act.CLAIM, lease=lease, rooms=rooms)
        claimed = self._store.claim(holder, lease=lease, rooms=rooms, given_up=given_up)
        end(
            Part(job.id, job.fence, job.run, len(job.body), service=job.service, host=job.host, answer="ok")
            for job in claimed
        )
        return claimed

    def renew(self, holds: Sequence[Hold], lease: float) -> list[Renewed]:
        """See `Store`."""
        end = self._log.begin(Act.RENEW, [Part(*hold) for hold in holds], lease=lease)
        renewed = self._store.renew(holds, lease)
        end(Part(*hold, answer=told.answer) for hold, told in zip(holds, renewed, strict=True))
        return renewed

    def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[Answer]:
        """See `Store`."""
        end_act = self._log.begin(Act.END, [_part(end) for end in ends])
        answers = self._store.end_attempts(ends)
        end_act(_part(end, answer) for end, answer in zip(ends, answers, strict=True))
        return answers

    # -- whoever is there -------------------------------------------------------------------------------------------

    def tend(self, *, keep: float, keep_dead: float, seconds_per_job: float | None) -> None:
        """See `Store`."""
        self._store.tend(keep=keep, keep_dead=keep_dead, seconds_per_job=seconds_per_job)

    def deliveries(self, *, limit: int, lease: float) -> list[Delivery]:
        """See `Store`."""
        return self._store.deliveries(limit=limit, lease=lease)

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """See `Store`."""
        self._store.delivered(deliveries)

    def close(self) -> None:
        """See `Store`."""
        self._store.close()


def _part(end: AttemptEnd, answer: str = "") -> Part:
    cause = end.cause or ""
    return Part(*end.hold, to=end.to, cause=cause, counts=end.counts, transfers=end.transfers, answer=answer)
