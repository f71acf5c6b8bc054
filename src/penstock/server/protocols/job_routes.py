"""`/jobs`: submit jobs to a queue over HTTP, ask for them, cancel and retry them.

What can be refused is refused by the head, before the body is sent: a parameter that is not known, a format that the
service does not take, a place that is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from penstock.errors import ConfigError, InputTooLarge, PenstockError
from penstock.server.application import HttpRequest, Response
from penstock.server.auth import has_key
from penstock.server.cors import Cors
from penstock.server.jobs_port import JobsPort, JobView
from penstock.server.pages.jobs_document import (
    LISTING,
    LONGEST_WAIT_SECONDS,
    MOST_LISTED,
    NONE,
    SUBMITTING,
    WAITING,
    operations,
    types,
)
from penstock.server.protocols.later import LaterRoute
from penstock.server.protocols.route import Route
from penstock.server.query import read_query
from penstock.server.status import Problems

JSON: Final = b"application/json"
SUBMIT: Final = ("POST", "/jobs")
CHANGING: Final = ("POST", "DELETE")
"""The methods that change jobs."""
_FRESH: Final = ((b"cache-control", b"no-store"),)
_DEFAULT_LISTED: Final = 100

Answer = Callable[[HttpRequest], Coroutine[Any, Any, Response]]


def job_routes(port: JobsPort, problems: Problems, cors: Cors | None = None) -> list[Route]:
    """The routes of the queue behind `port`; `cors` knows the origins whose pages may change jobs without a key."""
    calls = JobCalls(port, problems, cors)
    routes: list[Route] = []
    for (method, path), told in operations(port.max_inline).items():
        bound: dict[str, Any] = {"max_body_bytes": port.max_inline, "too_large": calls.too_large}
        route = LaterRoute(
            method,
            path,
            calls.answer(method, path),
            problems,
            judge=calls.judge(method, path),
            **(bound if (method, path) == SUBMIT else {}),
        )
        route.operation = told
        routes.append(route)
    return routes


class JobCalls:
    """What each route does."""

    def __init__(self, port: JobsPort, problems: Problems, cors: Cors | None) -> None:
        self._port = port
        self._cors = cors
        self._problems = problems
        self._calls = {
            SUBMIT: (self._submit, SUBMITTING),
            ("GET", "/jobs"): (self._list, LISTING),
            ("GET", "/jobs/{id}"): (self._get, NONE),
            ("DELETE", "/jobs/{id}"): (self._cancel, NONE),
            ("GET", "/jobs/{id}/result"): (self._result, WAITING),
            ("POST", "/jobs/{id}/retry"): (self._retry, NONE),
        }

    def answer(self, method: str, path: str) -> Answer:
        """What answers this route."""
        return partial(self._guarded, self._calls[method, path][0])

    def judge(self, method: str, path: str) -> Callable[[HttpRequest], Response | None]:
        """The check of this route's heads, which puts the options of the query into `HttpRequest.job_options`."""
        return partial(self._judge, types(self._calls[method, path][1]), submits=(method, path) == SUBMIT)

    def too_large(self, request: HttpRequest) -> Response:
        """The refusal of an input that is too large."""
        detail = (
            f"The input is larger than {self._port.max_inline} bytes (max_inline_bytes): write it to a file "
            "or a bucket, and submit its input_url."
        )
        return self._problems.job_answer(InputTooLarge(detail), request)

    # -- heads --------------------------------------------------------------------------------------------------------

    def _judge(self, known: Mapping[str, type], request: HttpRequest, *, submits: bool) -> Response | None:
        if request.method in CHANGING and self._is_from_elsewhere(request.headers):
            detail = "cross-site requests cannot change jobs without an API key"
            return self._problems.refuse(403, detail, request.id)
        try:
            given = read_query(request.query, known)
            if submits:
                self._add_headers(given, request.headers)
                self._port.check(given)
            else:
                _check_bounds(given)
        except PenstockError as error:
            return self._problems.job_answer(error, request)
        request.job_options = given
        return None

    def _add_headers(self, given: dict[str, Any], headers: Mapping[bytes, bytes]) -> None:
        """Add what the headers say of a job to what the query says."""
        content_type = headers.get(b"content-type")
        if content_type:
            given["content_type"] = content_type.decode("latin-1")
        key = headers.get(b"idempotency-key")
        if key is not None:
            text = key.decode("latin-1")
            if given.setdefault("key", text) != text:
                raise ConfigError("the parameter 'key' and the header Idempotency-Key differ; send one of them")

    def _is_from_elsewhere(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a browser sends this for a page of another site, which its user need not know of.

        It asks for no leave before it sends a POST without a body, and gets it for the rest where `cors_allow_origin`
        is ``*``.  A page that names a key was given one, and one whose origin is named is known.
        """
        if headers.get(b"sec-fetch-site") != b"cross-site" or has_key(headers):
            return False
        return self._cors is None or not self._cors.names(headers)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _guarded(self, call: Answer, request: HttpRequest) -> Response:
        try:
            return await call(request)
        except PenstockError as error:
            return self._problems.job_answer(error, request)

    async def _submit(self, request: HttpRequest) -> Response:
        job = await self._port.submit(bytes(request.body), request.job_options)
        return _shown(202, job, ((b"location", f"/jobs/{job.id}".encode()),))

    async def _list(self, request: HttpRequest) -> Response:
        given = request.job_options
        limit = given.get("limit", _DEFAULT_LISTED)
        jobs = await self._port.list_jobs(given.get("state"), limit, given.get("after"))
        return Response(200, JSON, b'{"jobs":' + jobs + b"}", _FRESH)

    async def _get(self, request: HttpRequest) -> Response:
        return _shown(200, await self._port.get(_id(request)))

    async def _result(self, request: HttpRequest) -> Response:
        job = await self._port.get(_id(request), request.job_options.get("wait", 0.0))
        found = await self._port.result(job.id) if job.ended else None
        if found is None:
            return _shown(202, job)
        return Response(200, found.content_type.encode("latin-1"), found.body, _FRESH)

    async def _cancel(self, request: HttpRequest) -> Response:
        job = await self._port.cancel(_id(request))
        return _shown(200 if job.ended else 202, job)

    async def _retry(self, request: HttpRequest) -> Response:
        return _shown(202, await self._port.retry(_id(request)))


def _shown(status: int, job: JobView, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    return Response(status, JSON, job.text, (*_FRESH, *headers))


def _id(request: HttpRequest) -> str:
    route: Route = request.route
    (job_id,) = route.values(request)
    return job_id


def _check_bounds(given: Mapping[str, Any]) -> None:
    if not 0 <= given.get("wait", 0) <= LONGEST_WAIT_SECONDS:
        raise ConfigError(
            f"wait must be 0 to {LONGEST_WAIT_SECONDS:g} seconds, got {given['wait']:g}; send "
            "the request again to wait longer"
        )
    if not 1 <= given.get("limit", 1) <= MOST_LISTED:
        raise ConfigError(f"limit must be from 1 to {MOST_LISTED}, got {given['limit']}")
