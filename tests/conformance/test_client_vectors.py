"""`AsyncClient` does what the vectors of `clients/vectors` say, and `Client` does what `AsyncClient` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from penstock.client import AsyncClient, Client
from penstock.client.replies import NoReply, Reply
from penstock.client.world import World
from penstock.errors import PenstockError
from vector_runner import VECTORS, JumpingClock, ScriptedServer, run_async

FILES = {path.stem: json.loads(path.read_text())["vectors"] for path in sorted(VECTORS.glob("*.json"))}
ALL = [pytest.param(vector, id=f"{name}: {vector['name']}") for name, vectors in FILES.items() for vector in vectors]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.stop()


@pytest.mark.parametrize("vector", ALL)
def test_the_async_client_does_what_a_vector_says(vector, server):
    run_async(vector, server)


def test_there_are_enough_vectors_and_each_has_a_name_of_its_own():
    names = [vector["name"] for vectors in FILES.values() for vector in vectors]
    assert len(set(names)) == len(names) >= 60


# -- the client of threads ---------------------------------------------------------------------------------------------

OPTIONS = {
    "api_key": "k", "timeout": 7.0, "max_retries": 2, "max_concurrency": 9, "max_result": 99,
    "tenant_header": "x-tenant", "retry_non_idempotent": True, "format": "msgpack",
}  # fmt: skip
TERMS = {"service": "rank", "urgency": 1, "tenant": "gold", "timeout": 2.0, "request_id": "mine"}
CALLS = [
    ("predict", [5], {}),
    ("predict", [5], TERMS),
    ("predict_many", [[1, 2, 3]], {}),
    ("predict_many", [[1, 2, 3]], {**TERMS, "batch_size": 2, "return_exceptions": True}),
    ("predict_many", [[1, object()]], {}),
    ("health", [], {}),
    ("jobs.submit", [{"value": 3}], {"priority": 2, "delay": 3.0, "deadline": 9.0, "key": "order", "id": "a"}),
    ("jobs.submit", [], {"service": "rank", "input_url": "s3://in/1", "content_type": "a/b"}),
    ("jobs.submit", [3], {"output_url": "s3://out/1", "accept": "application/json"}),
    ("jobs.get", ["a"], {}),
    ("jobs.wait", [["a", "b"]], {"timeout": 2.0}),
    ("jobs.result", ["a"], {"timeout": 3.0}),
    ("jobs.cancel", ["a"], {}),
]


class FullServer:
    """Refuses one request, and asks for another try, and loses the next one; keeps what was sent."""

    def __init__(self):
        self.sent = []
        self.clock = JumpingClock()

    def world(self):
        names = (f"name-{number}" for number in range(100))
        clock = self.clock
        return World(clock, lambda: 1.7e9, lambda: 0.0, names.__next__, names.__next__, lambda address, most: self)

    async def send(self, request):
        self.sent.append((self.clock.now(), request))
        if len(self.sent) % 2:
            return NoReply(sent=True, detail="reset")
        headers = {"content-type": "application/problem+json", "x-should-retry": "true", "retry-after-ms": "250"}
        return Reply(503, headers, b'{"type": "urn:penstock:problem:overloaded", "reason": "queue_full"}')

    async def close(self):
        self.sent.append("closed")


def method(client, name):
    return getattr(client.jobs if name.startswith("jobs.") else client, name.rpartition(".")[2])


@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
def test_the_client_of_threads_sends_and_tells_what_the_async_client_does(name, arguments, options):
    ours, theirs = FullServer(), FullServer()

    async def ask():
        async with AsyncClient("http://full", _deps=theirs.world(), **OPTIONS) as client:
            try:
                answer = await method(client, name)(*arguments, **options)
            except PenstockError as error:
                answer = error
            return repr(answer), client.stats

    with Client("http://full", _deps=ours.world(), **OPTIONS) as client:
        try:
            answer = method(client, name)(*arguments, **options)
        except PenstockError as error:
            answer = error
        told = repr(answer), client.stats
    assert told == asyncio.run(ask())
    assert ours.sent == theirs.sent
