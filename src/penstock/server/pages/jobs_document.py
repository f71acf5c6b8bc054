"""What the OpenAPI document says of `/jobs`: its parameters, which are those that are read, and its statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.server.status import PROBLEM_JSON

Json = dict[str, Any]
Parameters = Mapping[str, Json]
"""The parameters of a query, by name, as the document has them."""

LONGEST_WAIT_SECONDS: Final = 60.0
"""The longest that a client is kept waiting for a result.  Many clients and proxies give up after that."""
MOST_LISTED: Final = 1000

_TYPES: Final[Mapping[str, type]] = {"string": str, "integer": int, "number": float}
_STATES: Final = ("scheduled", "queued", "running", "succeeded", "dead", "cancelled", "expired")


def _text(words: str, **more: Any) -> Json:
    return {"description": words, "schema": {"type": "string", **more}}


NONE: Final[Parameters] = {}
SUBMITTING: Final[Parameters] = {
    "priority": {
        "description": "Jobs with a higher priority are claimed first.",
        "schema": {"type": "integer", "default": 0},
    },
    "delay": {
        "description": "The job is not claimed before this many seconds have passed.",
        "schema": {"type": "number", "minimum": 0, "default": 0},
    },
    "deadline": {
        "description": "The job is not started after this time, in Unix seconds.",
        "schema": {"type": "number"},
    },
    "key": _text(
        "Idempotency key: a second job with this key and the same input returns the first one.", maxLength=256
    ),
    "id": _text("The job's id (default: a new one).", pattern="^[A-Za-z0-9._-]{1,128}$"),
    "service": _text("The service that runs the job; required if the server has several."),
    "input_url": _text("The URL of the input, instead of the body."),
    "output_url": _text("The URL that the result is written to (default: the result stays in the queue)."),
    "accept": _text("The media types that are accepted for the result."),
}
LISTING: Final[Parameters] = {
    "state": _text("List only jobs in this state.", enum=list(_STATES)),
    "limit": {
        "description": "The maximum number of jobs.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 100},
    },
    "after": _text("The id of the last job of the previous page."),
}
WAITING: Final[Parameters] = {
    "wait": {
        "description": "Wait up to this many seconds until the job has ended.",
        "schema": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS, "default": 0},
    },
}

_KEY_HEADER: Final[Json] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same as the parameter `key`.",
    "schema": {"type": "string", "maxLength": 256},
}
_ID: Final[Json] = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id of the job.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
}
_JOB: Final[Json] = {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
_JOBS: Final[Json] = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["jobs"],
            "properties": {"jobs": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}},
        }
    }
}
_PROBLEM: Final[Json] = {PROBLEM_JSON.decode(): {"schema": {"$ref": "#/components/schemas/Problem"}}}
_REFUSALS: Final = {
    400: "A parameter is unknown, repeated or has an invalid value.",
    403: "Cross-site request of a browser without an API key.",
    404: "The job does not exist.",
    406: "The service cannot produce any of the media types in the parameter `accept`.",
    409: "Another job has this key or id, or the job's state does not allow this operation.",
    410: "The job was cancelled, or its deadline passed first.",
    413: "The input is larger than the queue accepts: submit its input_url.",
    415: "The service does not support the format of the input.",
    422: "The input is not valid, or its input_url or output_url is not allowed.",
    500: "The job is dead: its last attempt failed.",
    503: "The queue does not respond, or too many requests wait for it. Try again later.",
}


def types(parameters: Parameters) -> dict[str, type]:
    """The type of each parameter's value."""
    return {name: _TYPES[told["schema"]["type"]] for name, told in parameters.items()}


def operations(max_inline: int) -> dict[tuple[str, str], Json]:
    """The operation objects of `/jobs`, by method and path; inputs have at most `max_inline_bytes` bytes."""
    body = {
        "description": (
            f"The input, as for `/predict`, of at most {max_inline} bytes; leave it empty with `input_url`."
        ),
        "content": {"*/*": {}},
    }
    ended = "The job is cancelled."
    return {
        ("POST", "/jobs"): {
            **_operation(
                "jobs_submit", "Submit a job", SUBMITTING, (400, 403, 406, 409, 413, 415, 422, 503), _KEY_HEADER,
                ok={"202": {**_answer("The job is kept.", _JOB), "headers": _location()}},
            ),
            "requestBody": body,
        },
        ("GET", "/jobs"): _operation(
            "jobs_list", "List jobs, in the order of their submission", LISTING, (400, 404, 503),
            ok={"200": _answer("A page of jobs.", _JOBS)},
        ),
        ("GET", "/jobs/{id}"): _operation(
            "jobs_get", "Show a job", NONE, (400, 404, 503), _ID, ok={"200": _answer("The job.", _JOB)}
        ),
        ("DELETE", "/jobs/{id}"): _operation(
            "jobs_cancel", "Cancel a job", NONE, (400, 404, 409, 503), _ID,
            ok={"200": _answer(ended, _JOB), "202": _answer("A worker holds the job, and cancels it.", _JOB)},
        ),
        ("GET", "/jobs/{id}/result"): _operation(
            "jobs_result", "Get the result of a job", WAITING, (400, 404, 410, 422, 500, 503), _ID,
            ok={
                "200": _answer("The result; for a job with an `output_url`, its URL.", {"*/*": {}}),
                "202": _answer("The job has not ended.", _JOB),
            },
        ),
        ("POST", "/jobs/{id}/retry"): _operation(
            "jobs_retry", "Retry a job that ended without a result", NONE, (400, 403, 404, 409, 503), _ID,
            ok={"202": _answer("The job is queued again.", _JOB)},
        ),
    }  # fmt: skip


def _operation(name: str, words: str, query: Parameters, refusals: tuple[int, ...], *more: Json, ok: Json) -> Json:
    parameters = [{"name": each, "in": "query", **told} for each, told in query.items()]
    return {
        "operationId": name,
        "summary": words,
        "tags": ["jobs"],
        "parameters": [*more, *parameters],
        "responses": {**ok, **_refused(*refusals)},
    }


def _answer(words: str, content: Json) -> Json:
    return {"description": words, "content": content}


def _location() -> Json:
    return {"Location": {"description": "The path of the job.", "schema": {"type": "string"}}}


def _refused(*statuses: int) -> Json:
    found: Json = {}
    for status in statuses:
        found[str(status)] = {"description": _REFUSALS[status], "content": _PROBLEM}
        if status == 503:
            found["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return found
