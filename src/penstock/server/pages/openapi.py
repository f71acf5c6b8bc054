"""`GET /openapi.json`: the API as OpenAPI 3.1, made from the types and examples of the stages.

Every path a client may call is in it, every format, and every status that can come back, so that a generated client
knows them all.  The document depends on nothing but the services' descriptions and the options: it is made once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from inspect import cleandoc, isroutine
from itertools import count
from typing import Any

import msgspec

from penstock.codec.encode import ItemEncoder
from penstock.codec.example import Example, inputs_of
from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.schema import json_schema
from penstock.config import ServerOptions
from penstock.core.payload import join_payload
from penstock.errors import REFUSAL_REASONS
from penstock.hosting.servable import Servable
from penstock.hosting.service_health import version
from penstock.server.protocols.route import Route, ServiceRoute
from penstock.server.status import PROBLEM_JSON, phrase

Json = dict[str, Any]

_REF = "#/components/schemas/"

_REFUSALS = {
    400: "The request is malformed or too slow, or the body of a batch is not an array.",
    406: "The service cannot produce any media type in Accept.",
    408: "The client took too long to send the request.",
    413: "The body is larger than the server accepts.",
    414: "The target is longer than the server accepts.",
    415: "The body is in a format that this path does not support, or is compressed.",
    417: "The Expect header is not 100-continue.",
    431: "The head is larger than the server accepts.",
    500: "A stage raised or returned an invalid result, or its worker was lost twice. `id` finds it in the log.",
    501: "The transfer coding is not supported, or a deep check has no example to send.",
    503: "The service is not ready. Try again later.",
}
"""Statuses that every call of a service may come back with, whatever the options are."""

_LATER = "Try again later."
_FULL = f"The service is full. {_LATER}"
_EXPIRED = f"The deadline passed before the item was started. {_LATER}"
_LATE = "The deadline passed while a stage ran the item."
_QUOTA = f"The tenant has used up its quota. {_LATER}"

_PROBLEM: Json = {
    "type": "object",
    "description": "Why there is no result (RFC 9457).",
    "required": ["type", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "The kind of problem; stable."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "request_id": {"type": "string", "description": "The same id is in the X-Request-ID header and in the log."},
        "id": {"type": "string", "description": "For a fault of the service: the id to search for in its log."},
        "path": {"type": "string", "description": "For an invalid item: the position of the error, as `$.x[3]`."},
        "state": {"type": "string", "description": "For a service that is not ready: its state."},
        "reason": {
            "type": "string",
            "enum": list(REFUSAL_REASONS),
            "description": "For a service that is full: the limit that was reached.",
        },
        "retry_after": {"type": "integer", "description": "Seconds to wait before the next attempt."},
        "retry_after_ms": {"type": "integer", "description": "The same in milliseconds."},
    },
}

_PARAMETERS: Json = {
    "RequestId": {
        "name": "X-Request-ID",
        "in": "header",
        "description": "Kept as the request's id if it is 1 to 128 letters, digits, dots, dashes or underscores.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "RequestTimeout": {
        "name": "X-Request-Timeout",
        "in": "header",
        "description": (
            "Seconds after which the client no longer needs the response; the server's own limit still applies."
        ),
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    "GrpcTimeout": {
        "name": "grpc-timeout",
        "in": "header",
        "description": (
            "The same in the notation of gRPC: digits and a unit of H M S m u n. The smallest limit applies."
        ),
        "schema": {"type": "string", "pattern": "^[0-9]{1,8}[HMSmun]$"},
    },
    "EnvoyTimeout": {
        "name": "x-envoy-expected-rq-timeout-ms",
        "in": "header",
        "description": (
            "The same in milliseconds, in the notation of Envoy; 0 is no limit. The smallest limit applies."
        ),
        "schema": {"type": "integer", "minimum": 0},
    },
}

_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}

_DEEP: Json = {
    "name": "deep",
    "in": "query",
    "description": "1: send the first example through every service, and respond when its result is back.",
    "schema": {"type": "integer", "enum": [0, 1]},
}

_PAGES = {
    "/livez": ("Whether the process works (liveness)", "application/json", False),
    "/readyz": ("Whether the server is ready for traffic (readiness)", "application/json", False),
    "/health": ("The state of every service, stage and worker", "application/json", True),
    "/metrics": ("Metrics for Prometheus", "text/plain", True),
    "/scale": ("Numbers for an autoscaler", "application/json", True),
}


def openapi(
    services: Sequence[Servable],
    routes: Mapping[str, ServiceRoute],
    options: ServerOptions,
    *,
    keys: bool,
    others: Sequence[Route] = (),
    schemas: Mapping[str, Any] | None = None,
) -> Json:
    """The document for `services`, whose calls are `routes` by path; with `keys`, an API key is asked for.

    Of `others` it has what each says of itself; `schemas` are those that they refer to, by name.
    """
    refusals = _refusals(services, options)
    refusals[422] = "The item is not valid input; `path` has the position."
    if keys:
        refusals[401] = "The request has no accepted API key."
    components: Json = {"Problem": _PROBLEM, **(schemas or {})}
    paths: Json = {}
    for service in services:
        own = _own_routes(service, routes)
        types = ServiceTypes(service, components, prefix="" if len(services) == 1 else f"{service.name}.")
        for path, route in own.items():
            paths[path] = {"post": _call(route, types, refusals, named=len(services) > 1)}
            if path == service.options.predict_path:  # a second one needs a name of its own
                paths[path]["post"]["operationId"] += "_path"
    for path, (words, media, guarded) in _PAGES.items():
        paths[path] = {"get": _page(path, words, media, guarded=guarded and keys)}
    if options.health_path is not None:
        paths[options.health_path] = {"get": _health_path()}
    for other in others:
        if other.operation is not None:
            paths.setdefault(other.path, {})[other.method.lower()] = _operation(other.operation, keys=keys)
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": ", ".join(service.name for service in services),
            "version": _version_of(services),
            "description": _description(services),
        },
        "servers": [{"url": "."}],  # relative to this document, so it is right under every mount point
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                f"Status{status}": _problem(status, words, retried=_LATER in words)
                for status, words in refusals.items()
            },
            "parameters": _PARAMETERS,
        },
    }
    if keys:
        document["components"]["securitySchemes"] = _SECURITY
        document["security"] = [{"bearer": []}, {"api_key": []}]
    return document


def _refusals(services: Sequence[Servable], options: ServerOptions) -> dict[int, str]:
    """What each status means that a call may come back with.  The options choose some of them."""
    refusals = dict(_REFUSALS)
    chosen = [
        (options.overload_status, _FULL),
        (options.queue_timeout_status, _EXPIRED),
        (options.run_timeout_status, _LATE),
    ]
    if any(service.options.tenants_file is not None for service in services):
        chosen.append((429, _QUOTA))
    for status, words in chosen:
        refusals[status] = f"{refusals[status]} {words}" if status in refusals else words
    return refusals


def _version_of(services: Sequence[Servable]) -> str:
    """The version of the only service; Penstock's own where there are several, or it says none."""
    own = services[0].version if len(services) == 1 else ""
    return own or version()


def _operation(told: Mapping[str, Any], *, keys: bool) -> Json:
    """What a route says of itself, with the refusal that only servers with keys have."""
    if not keys:
        return dict(told)
    refused = {"401": {"$ref": "#/components/responses/Status401"}}
    return {**told, "responses": {**told.get("responses", {}), **refused}}


def _description(services: Sequence[Servable]) -> str:
    """What the docstrings of the stages say, as Markdown; a heading names whose each is, where that is in question."""
    parts = []
    for service in services:
        said = [(stage.name, docstring(stage.target)) for stage in service.stages]
        said = [(name, text) for name, text in said if text]
        if said and len(services) > 1:
            parts.append(f"## {service.name}")
        for name, text in said:
            parts += [f"### {name}", text] if len(service.stages) > 1 else [text]
    return "\n\n".join(parts)


def docstring(target: Any) -> str:
    """What the author of a stage wrote about it: the docstring of its class, else of its `predict`, or of the function.

    An inherited docstring does not count: mostly it says what a stage is.  A stage whose workers are remote has none.
    """
    if target is None:
        return ""
    if isinstance(target, type):
        predict = vars(target).get("predict")
        found = vars(target).get("__doc__") or getattr(predict, "__doc__", None)
    elif isinstance(target, partial):
        return docstring(target.func)
    else:
        found = getattr(target, "__doc__", None) if isroutine(target) else getattr(type(target), "__doc__", None)
    return cleandoc(found) if isinstance(found, str) else ""


def _own_routes(service: Servable, routes: Mapping[str, ServiceRoute]) -> dict[str, ServiceRoute]:
    return {path: route for path, route in routes.items() if route.service is service}


class ServiceTypes:
    """The schemas of one service's items and results, and its examples as JSON."""

    def __init__(self, service: Servable, schemas: Json, *, prefix: str) -> None:
        first, last = service.stages[0], service.stages[-1]
        item = first.signature().item
        self.item = _add_schema(item, schemas, prefix)
        self.result = _add_schema(last.signature().result, schemas, prefix)
        self.examples = list(_as_json(item, inputs_of(first.examples)))
        given = [example for example in first.examples if type(example) is Example]
        self.answers: list[Any] = []
        """The answers to the examples, where each has one and there is one stage: else they are not the service's."""
        if first is last and len(given) == len(first.examples):
            answers = list(_as_json(first.signature().result, [example.output for example in given]))
            self.answers = answers if len(answers) == len(self.examples) else []


def _add_schema(kind: Any, schemas: Json, prefix: str) -> Json:
    """The schema of `kind`, its components added to `schemas` under names that nothing else has there."""
    lead = base = re.sub(r"[^A-Za-z0-9._-]", "_", prefix)
    for attempt in count(2):
        schema, components = json_schema(kind, ref_template=f"{_REF}{lead}{{name}}")
        named = {lead + name: component for name, component in components.items()}
        if all(schemas.get(name, component) == component for name, component in named.items()):
            schemas.update(named)
            return schema
        lead = f"{base}{attempt}."  # another type has that name: the item's, the result's, or Problem
    raise AssertionError("count() does not end")


def _as_json(kind: Any, values: Iterable[Any]) -> Iterable[Any]:
    """The values of type `kind` as JSON; one that JSON cannot carry is left out."""
    encoder = ItemEncoder(kind)
    for value in values:
        try:
            encoded = encoder.encode(Codec.JSON, value)
        except Exception:  # noqa: BLE001, S112  # runs the user's own encoding; the document leaves the example out
            continue
        yield msgspec.json.decode(join_payload(encoded))


def _call(route: ServiceRoute, types: ServiceTypes, refusals: Mapping[int, str], *, named: bool) -> Json:
    """`POST` to a service: one item, or a list of them."""
    verb, many = route.verb, route.many
    item = {"type": "array", "items": types.item} if many else types.item
    result = _outcomes(types.result) if many else types.result
    examples = [types.examples] if many and types.examples else [] if many else types.examples
    given = [{"outcomes": [{"result": each} for each in types.answers]}] if many and types.answers else types.answers
    answers: Json = {"200": _answer("Every item has a result." if many else "The result.", route, result, given)}
    if many:
        answers["207"] = _answer("Some items have no result: check each outcome.", route, result)
    for status in sorted(refusals):
        if not (many and status == 422):  # in a batch an invalid item is an outcome
            answers[str(status)] = {"$ref": f"#/components/responses/Status{status}"}
    body = _content(route.accepts, item, examples)
    return {
        "operationId": f"{route.service.name}_{verb}" if named else verb,
        "summary": "Many items in, their outcomes in order out" if many else "One item in, its result out",
        "tags": [route.service.name],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS],
        **({"requestBody": {"required": True, "content": body}} if body else {}),
        "responses": answers,
    }


def _content(codecs: Iterable[Codec], schema: Json, examples: Sequence[Any] = ()) -> Json:
    """One entry for each format; the binary ones are not described by a schema."""
    content: Json = {}
    for codec in sorted(codecs):
        described = codec in (Codec.JSON, Codec.MSGPACK)
        content[MEDIA_TYPES[codec]] = {"schema": schema} if described else {}
        if codec is Codec.JSON and examples:
            content[MEDIA_TYPES[codec]]["examples"] = {
                f"example{number}": {"value": value} for number, value in enumerate(examples, 1)
            }
    return content


def _answer(words: str, route: ServiceRoute, schema: Json, examples: Sequence[Any] = ()) -> Json:
    return {"description": words, "headers": _id_header(), "content": _content(route.offers, schema, examples)}


def _outcomes(result: Json) -> Json:
    problem = {"$ref": f"{_REF}Problem"}
    entries = [
        {"type": "object", "required": [key], "properties": {key: schema}, "additionalProperties": False}
        for key, schema in (("result", result), ("error", problem))
    ]
    outcomes = {"type": "array", "items": {"oneOf": entries}}
    return {"type": "object", "required": ["outcomes"], "properties": {"outcomes": outcomes}}


def _problem(status: int, words: str, *, retried: bool) -> Json:
    headers = _id_header()
    headers["x-should-retry"] = {
        "description": "Whether the same request may succeed later, and has not run yet.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    }
    if retried:
        headers["Retry-After"] = {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        headers["retry-after-ms"] = {"description": "The same in milliseconds.", "schema": {"type": "integer"}}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
    content = {PROBLEM_JSON.decode(): {"schema": {"$ref": f"{_REF}Problem"}}}
    return {"description": f"{phrase(status)}. {words}", "headers": headers, "content": content}


def _id_header() -> Json:
    return {"X-Request-ID": {"description": "The request's id.", "schema": {"type": "string"}}}


def _health_path() -> Json:
    words = "The state of all services, in one word"
    word = {"type": "string", "enum": ["ready", "busy", "starting", "failed", "draining"]}
    schema = {"type": "object", "required": ["status"], "properties": {"status": word}}
    answer: Json = {"description": words, "content": {"application/json": {"schema": schema}}}
    responses = {"200": answer, "503": {**answer, "description": f"{words}: send no traffic here"}}
    return {"operationId": "health_path", "summary": words, "tags": ["server"], "responses": responses, "security": []}


def _page(path: str, words: str, media: str, *, guarded: bool) -> Json:
    responses: Json = {"200": {"description": words, "content": {media: {}}}}
    if path == "/readyz":
        responses["503"] = {"$ref": "#/components/responses/Status503"}
    if guarded:
        responses["401"] = {"$ref": "#/components/responses/Status401"}
    page: Json = {"operationId": path.strip("/"), "summary": words, "tags": ["server"], "responses": responses}
    if path == "/health":
        page["parameters"] = [_DEEP]
        responses["503"] = {"description": "A deep check got no result", "content": {media: {}}}
        responses["501"] = {"$ref": "#/components/responses/Status501"}
    if path in ("/livez", "/readyz"):
        page["security"] = []
    return page
