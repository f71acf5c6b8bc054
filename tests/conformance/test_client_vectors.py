"""Both Python clients do what the vectors of `clients/vectors` say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from night import NIGHT
from vector_runner import VECTORS, ScriptedServer, run_async, run_sync

FILES = {path.stem: json.loads(path.read_text())["vectors"] for path in sorted(VECTORS.glob("*.json"))}
ALL = [pytest.param(vector, id=f"{name}: {vector['name']}") for name, vectors in FILES.items() for vector in vectors]
# This client is the other one in a thread of its own: by day a seventh of each kind shows that it is called rightly.
OF_THREADS = [
    pytest.param(vector, id=f"{name}: {vector['name']}")
    for name, vectors in FILES.items()
    for vector in vectors[:: 1 if NIGHT else 7]
    if not any("cancel_at" in call for call in vector["calls"])  # no thread can cancel another one that waits
]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.stop()


@pytest.mark.parametrize("vector", ALL)
def test_the_async_client_does_what_a_vector_says(vector, server):
    run_async(vector, server)


@pytest.mark.parametrize("vector", OF_THREADS)
def test_the_client_of_threads_does_what_a_vector_says(vector, server):
    run_sync(vector, server)


def test_there_are_enough_vectors_and_each_has_a_name_of_its_own():
    names = [vector["name"] for vectors in FILES.values() for vector in vectors]
    assert len(set(names)) == len(names) >= 60
