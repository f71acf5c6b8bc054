"""The contract between the server and a queue of jobs.

The server knows no store, and the queue no HTTP: who starts a process hands the one to the other.  Every call is made
on the event loop's thread, and none holds it up.  A call may raise what `errors` has for jobs, `Overloaded` where too
many calls are in hand, and ConfigError where an option has a value that it cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class JobView(Protocol):
    """A job as it was when the queue was asked."""

    @property
    def id(self) -> str:
        """Its id, which may stand in a path as it is."""

    @property
    def ended(self) -> bool:
        """Whether its run has ended."""

    @property
    def text(self) -> bytes:
        """The job as JSON."""


class ResultView(Protocol):
    """What a job has made."""

    @property
    def body(self) -> bytes:
        """The result; where it lies elsewhere, JSON that says where."""

    @property
    def content_type(self) -> str:
        """The media type of `body`."""


class JobsPort(Protocol):
    """One queue of jobs."""

    @property
    def max_inline(self) -> int:
        """The largest input that is taken, in bytes; a larger one is named by a URL."""

    def schemas(self) -> dict[str, Any]:
        """JSON schemas of what `text` has, by name: that of a job is ``Job``."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Do nothing, or raise for a job that is not taken with these options, whatever its input is.

        `options` are those that the caller gave, by name, and the `content_type` of the input.
        """

    async def submit(self, body: bytes, options: Mapping[str, Any]) -> JobView:
        """Keep a job; it is durable then.  `body` is empty where the options name the input's URL."""

    async def get(self, job_id: str, wait: float = 0.0) -> JobView:
        """The job as soon as it has ended, or after `wait` seconds as it is then."""

    async def result(self, job_id: str) -> ResultView | None:
        """The result of a job, None while it has not ended; raises where it ended without one."""

    async def list_jobs(self, state: str | None, limit: int, after: str | None) -> bytes:
        """A JSON array of at most `limit` jobs in `state`, from the one behind the job `after` on."""

    async def cancel(self, job_id: str) -> JobView:
        """End a job that nobody holds; who holds another one ends it."""

    async def retry(self, job_id: str) -> JobView:
        """Begin the next run of a job that ended without a result."""

    async def start(self) -> None:
        """Connect, before the first call."""

    def let_go(self) -> None:
        """Answer every `get` that waits, and let none wait any more."""

    async def close(self) -> None:
        """Give up the connection, behind the last call."""
