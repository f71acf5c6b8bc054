"""Consumers as their operator runs them, `penstock consume` in processes of their own, on one queue with one history.

When a consumer ends nothing that it started may be left.  `Queue.check` asserts that no job was lost and none done
twice, and that nothing of the attempts lies about.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from served import PATIENCE_SECONDS, Program
from waiting import until_now

from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import NewJob, Store
from penstock.jobs.stores.opening import open_store
from penstock.testing.history import Act, Event, RecordedStore, check_history, log_to, read_events

HERE = Path(__file__).parent
PROGRAM = HERE / "recorded_work.py"
MODELS = HERE / "job_models.py"
LEASE = 6.0
"""Seconds.  It is renewed long before they are over: a machine that stands still for so long breaks tests."""
SHORT_LEASE = 2.5
"""That of a consumer that is to lose it, and that a test waits for: given as `--lease`."""
MOST_JOBS = 100_000


class Working(Program):
    """One `penstock consume`, with its history in the file of its queue."""

    def __init__(self, queue: Queue, *flags: str, url: str = "", service: str = "service", **variables: str) -> None:
        self.queue = queue
        given = {flag: value for flag, value in queue.flags.items() if flag not in flags}
        super().__init__(
            queue.folder,
            *(sys.executable, str(PROGRAM), "work", f"{MODELS}:{service}", "--queue-url", url or queue.url),
            *(word for pair in given.items() for word in pair),
            *flags,
            env={"JOBS_HISTORY": str(queue.history), "TMPDIR": str(queue.temporary), **variables},
        )

    def up(self) -> Working:
        """Wait until it claims."""
        self.wait_for("working on ")
        return self

    def state(self) -> str:
        """The letter of its process's state, T where it was stopped; Z once it has ended."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def kill(self) -> None:
        """End it as a crash does, and wait until all that it started has ended too."""
        self.process.kill()
        self.until_dead()

    def until_dead(self) -> None:
        """Wait until it was killed, and all that it started has ended too."""
        assert self.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, self.output
        until_now(lambda: not self.survivors(), "the end of its workers", context=lambda: str(self.survivors()))

    def _until_stopped(self) -> None:
        until_now(lambda: self.state() in "TZ", "the stop", context=lambda: self.output)
        assert self.state() == "T", self.output

    @contextmanager
    def suspended(self, by: int | None = signal.SIGSTOP) -> Iterator[None]:
        """For the block it stands still; without `by` a fault point has stopped it, or will do so now.

        Another thread may have been stopped in the middle of a write to an SQLite file, which nobody else can write to
        then.  In that case it goes on for a moment.
        """
        if by is not None:
            self.process.send_signal(by)
        self._until_stopped()
        with self.told_as_standing_still():
            while not self.queue.writable():
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(signal.SIGSTOP)
                self._until_stopped()
            try:
                yield
            finally:
                self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def told_as_standing_still(self) -> Iterator[None]:
        """For the block the history tells that it cannot renew."""
        end = log_to(self.queue.history, process=str(self.pid)).begin(Act.SUSPEND)
        try:
            yield
        finally:
            end()

    def end(self) -> str:
        """End it as an operator does; all that it has written."""
        if self.process.poll() is None and not self.signalled:
            self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.output
        return self.output

    def until_empty(self) -> str:
        """Wait until it has ended by itself; all that it has written."""
        assert self.wait(PATIENCE_SECONDS * 2) == 0, self.output
        return self.output


class Queue:
    """A queue with its history, and the consumers that were started for it."""

    def __init__(self, folder: Path, url: str, temporary: Path) -> None:
        self.folder, self.url, self.temporary = folder, url, temporary
        self.history = folder / "history"
        self.inputs, self.outputs = folder / "in", folder / "out"
        for made in (self.inputs, self.outputs):
            made.mkdir()
        self.flags = {
            "--lease": f"{LEASE:g}",
            "--poll-interval": "0.02",
            "--retry-backoff": "0.01",
            "--allow-input": f"file://{self.inputs}/",
            "--allow-output": f"file://{self.outputs}/",
        }
        self.store: Store = RecordedStore(open_store(url), log_to(self.history))
        self._started: list[Working] = []
        self._results: dict[str, Any] = {}

    # -- consumers ----------------------------------------------------------------------------------------------------

    def work(self, *flags: str, faults: str = "", mutant: str = "", **more: Any) -> Working:
        """Start a consumer; `faults` arms its fault points, `mutant` plants a mistake in it."""
        found = Working(self, *flags, PENSTOCK_FAILPOINTS=faults, JOBS_MUTANT=mutant, **more)
        self._started.append(found)
        return found

    def finish(self) -> str:
        """Have a new consumer do all that is left; all that it has written."""
        return self.work("--until-empty").until_empty()

    def close(self) -> None:
        """Leave nothing running."""
        for each in self._started:
            with contextlib.suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGCONT)
            each.destroy()
        self.store.close()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, job_id: str, result: Any = None, /, *, files: bool = False, **asked: Any) -> str:
        """Submit a job that is to do what is `asked` (see `job_models`); `result` is what it is to become.

        With `files` its input is read from a file, and its output written to one.
        """
        self.store.submit([self._new(job_id, result, files=files, **asked)])
        return job_id

    def _new(self, job_id: str, result: Any, *, files: bool, **asked: Any) -> NewJob:
        more = {name: asked.pop(name) for name in ("priority", "delay", "deadline") if name in asked}
        body = json.dumps(asked).encode()
        if files:
            (self.inputs / job_id).write_bytes(body)
            more |= {"input_url": f"file://{self.inputs}/{job_id}", "output": f"file://{self.outputs}/{job_id}"}
        if result is not None:
            self._results[job_id] = result
        return NewJob(job_id, b"" if files else body, digest=job_id, **more)

    def submit_many(
        self, count: int, *, seconds: float = 0.02, prefix: str = "job", expected: Any = None, **more: Any
    ) -> list[str]:
        """Submit so many jobs at once, each third of them with files.

        At once, because a consumer that is stopped amid a write to an SQLite file lets nobody else write there.
        """
        jobs = [
            self._new(
                f"{prefix}-{n:03}",
                2 * n if expected is None else expected,
                x=n,
                seconds=seconds,
                files=n % 3 == 0,
                **more,
            )
            for n in range(count)
        ]
        self.store.submit(jobs)
        return [job.id for job in jobs]

    def jobs(self) -> list[Job]:
        """All jobs, as they are now."""
        return self.store.list_jobs(None, MOST_JOBS, None)

    def job(self, job_id: str) -> Job:
        """A job, as it is now."""
        (found,) = self.store.get([job_id])
        assert found is not None
        return found

    def states(self) -> Counter[JobState]:
        """How many jobs are in each state."""
        return Counter(job.state for job in self.jobs())

    def until(self, condition: Any, what: str = "", patience: float = PATIENCE_SECONDS) -> Any:
        """What `condition` answers once that is true."""
        return until_now(condition, what, patience, self.tell)

    def until_ended(self, job_ids: Sequence[str] = (), patience: float = PATIENCE_SECONDS) -> None:
        """Wait until these jobs have ended, or all."""

        def ended() -> bool:
            jobs = self.store.get(job_ids) if job_ids else self.jobs()
            return all(job is not None and job.state in ENDED for job in jobs)

        self.until(ended, "all jobs to end", patience)

    def until_done(self) -> None:
        """Wait until all jobs have ended, and no output and no part is left to be moved or removed.

        The store has been told so, too: where it was gone at that moment, a consumer looks again some seconds later.
        """
        self.until_ended()
        named = {Path(job.output_url.removeprefix("file://")) for job in self.jobs() if job.output_url is not None}
        self.until(lambda: set(self.outputs.iterdir()) == named, "the outputs to be in their places")
        self.until(lambda: self.store.stats().pending_outputs == 0, "the store to know that they are")

    def until_called(self, job_id: str) -> None:
        """Wait until the model has begun with a job."""
        self.until(lambda: self.calls(job_id), f"a call for {job_id}")

    def tell(self) -> str:
        """What every consumer has written, and how many jobs are in which state."""
        return "\n".join([str(dict(self.states())), *(each.output for each in self._started)])

    def writable(self) -> bool:
        """Whether nobody keeps a queue in a file locked for longer than a write takes."""
        if not self.url.startswith("sqlite:"):
            return True
        with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=0.2)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
        return True

    # -- what happened ------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """The history so far."""
        return read_events(self.history.read_bytes().splitlines())

    def calls(self, job_id: str) -> int:
        """How often the model was begun for a job."""
        return sum(
            part.job == job_id
            for event in self.events()
            if event.act is Act.CALL and not event.ended
            for part in event.parts
        )

    def check(self, **bounds: Any) -> None:
        """Every job has ended as it should, nothing broke a promise, and nothing lies about."""
        jobs = self.jobs()
        check_history(self.events(), jobs, **bounds)
        for job in jobs:
            if job.id not in self._results:
                continue
            assert job.state is JobState.SUCCEEDED, (job, self.tell())
            stored = self.store.result(job.id)
            assert stored is not None
            body = stored.body if job.output_url is None else Path(job.output_url.removeprefix("file://")).read_bytes()
            assert json.loads(body) == self._results[job.id]
        assert [path.name for path in self.outputs.iterdir() if path.name.startswith(".")] == []
        assert self.store.stats().pending_outputs == 0
        assert not self.states()[JobState.RUNNING]


@contextmanager
def queue_in(folder: Path, url: str) -> Iterator[Queue]:
    """A queue at `url`; its consumers are ended, whatever the test found."""
    with tempfile.TemporaryDirectory(prefix="penstock-jobs-") as temporary:
        queue = Queue(folder, url, Path(temporary))
        try:
            yield queue
        finally:
            queue.close()
