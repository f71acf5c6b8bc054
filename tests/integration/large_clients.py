"""Clients that send large bodies over HTTP: each body has a number of its own, and is answered with its digest.

So an answer that has a byte of another request in it is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias

from large_bodies import body as numbered
from prometheus_client.parser import text_string_to_metric_families
from served import Answer, Server, Wire, request
from waiting import until_now

LARGE: Final = 600_000
RAW: Final = "application/octet-stream"

SERVICES: Final = """
import hashlib
from pathlib import Path

import numpy as np
from notes_and_gates import note, wait_for

import penstock as ps


class Digest(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[bytes]:
        return [hashlib.sha256(body).hexdigest().encode() for body in bodies]


class Back(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[memoryview]:
        return bodies


def is_held(body) -> bool:
    return bytes(body[4:8]) == (1_000_000_000).to_bytes(4, "little")


class Pass(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[np.ndarray]:
        if any(map(is_held, bodies)):
            wait_for(Path("pass"))
        return [np.frombuffer(body, np.uint8) for body in bodies]


class DigestArray(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, arrays: list[np.ndarray]) -> list[bytes]:
        return [self.digest(array) for array in arrays]

    def digest(self, array: np.ndarray) -> bytes:
        half = len(array) // 2
        read = hashlib.sha256(array[:half])
        if is_held(array):
            note("reads", "held")
            wait_for(Path("open"))
        read.update(array[half:])
        return read.hexdigest().encode()


service = ps.Service(Digest, name="digest")
back = ps.Service(Back, name="back")
two = ps.Service(Pass, DigestArray, name="two")
"""
HELD: Final = 1_000_000_000
"""The number of a body that the first stage of service `two` passes on when there is a file `pass`, and of which the
second one reads the second half when there is a file `open`."""

Connect: TypeAlias = Callable[[], Wire]
"""Opens a new connection."""


def body_of(number: int, nbytes: int = LARGE) -> bytes:
    """A body that no other number has, no page of it like another."""
    return numbered(number, nbytes).tobytes()


def digest_of(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def post(number: int, nbytes: int = LARGE, path: str = "/predict", **fields: str) -> bytes:
    """The request with the body of this number."""
    return request("POST", path, body_of(number, nbytes), Content_Type=RAW, **fields)


def checked(answer: Answer, number: int, nbytes: int = LARGE) -> int:
    """The status of an answer to the body of this number; one of 200 must have its digest, any other is a problem."""
    if answer.status == 200:
        assert answer.body == digest_of(body_of(number, nbytes)), f"the digest of another body than {number}"
    else:
        assert answer.headers["content-type"] == "application/problem+json", answer
    return answer.status


def ask(
    connect: Connect, numbers: Iterable[int], path: str = "/predict", nbytes: int = LARGE, connections: int = 8
) -> Counter[int]:
    """Send the body of each number, over so many connections at a time; how many answers had which status."""
    left = iter(list(numbers))  # each `next` of it is one step, whatever thread takes it

    def send(wire: Wire) -> Counter[int]:
        with contextlib.closing(wire):
            return Counter(checked(wire.send(post(n, nbytes, path)).answer(), n, nbytes) for n in left)

    with ThreadPoolExecutor(connections) as threads:
        return sum(threads.map(send, [connect() for _ in range(connections)]), Counter())


def see_held_body(connect: Connect, folder: Path) -> None:
    """See where body `HELD` lies, which was sent before, in both stages of service `two`; then let it go."""
    for memory, gate in (("arrivals", "pass"), ("Pass", "open")):
        until_now(lambda memory=memory: samples(connect)[f"used {memory}"] >= LARGE, f"a piece in {memory}")
        (folder / gate).touch()


class Load:
    """Connections that send large bodies one after another until the block ends.

    `statuses` are those of the answers so far.  A connection that ends is counted as status 0, and nothing more is sent
    on it.
    """

    def __init__(self, connect: Connect, connections: int, path: str, nbytes: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._path = path
        self._nbytes = nbytes
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(connections)
        self._running = [self._threads.submit(self._send, connect()) for _ in range(connections)]

    def _send(self, wire: Wire) -> None:
        with contextlib.closing(wire):
            while not self._over.is_set():
                number = next(self._numbers)
                try:
                    answer = wire.send(post(number, self._nbytes, self._path)).answer()
                except (OSError, AssertionError):  # the latter where it ended in the midst of an answer
                    self.statuses[0] += 1
                    return
                self.statuses[checked(answer, number, self._nbytes)] += 1

    def end(self) -> None:
        """Send nothing more; an answer that was wrong fails here."""
        self._over.set()
        self._threads.shutdown()
        for each in self._running:
            each.result()


@contextlib.contextmanager
def load(connect: Connect, connections: int, path: str = "/predict", nbytes: int = LARGE) -> Iterator[Load]:
    """A `Load` for the block."""
    made = Load(connect, connections, path, nbytes)
    try:
        yield made
    finally:
        made.end()


def over_tls(server: Server) -> Wire:
    """A connection to a server with a certificate that nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return Wire(context.wrap_socket(server.wire().sock))


def samples(connect: Connect) -> Counter[str]:
    """What `/metrics` shows, by name: the sum for each.

    Also what each memory has in use, as "used arrivals", and what went inline for each reason, as "inline full".
    """
    with contextlib.closing(connect()) as wire:
        page = wire.send(request("GET", "/metrics")).answer().body.decode()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] += sample.value
            if sample.name == "penstock_shm_used_bytes":
                found[f"used {sample.labels['memory']}"] += sample.value
            elif sample.name == "penstock_shm_fallbacks_total":
                found[f"inline {sample.labels['reason']}"] += sample.value
    return found


def nothing_is_held(connect: Connect) -> bool:
    """Whether no memory has a piece in use, no stage keeps one, and no bytes are held."""
    shown = samples(connect)
    held = ("penstock_shm_used_bytes", "penstock_shm_retained_bytes", "penstock_reserved_bytes")
    return shown["penstock_shm_bytes"] > 0 and not any(shown[name] for name in held)


def with_slabs(pids: Iterable[int]) -> list[int]:
    """Those of the processes `pids` that map a slab, or have one open."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            if _has_slab(Path(f"/proc/{pid}")):
                found.append(pid)
    return found


def _has_slab(process: Path) -> bool:
    opened = (str(entry.readlink()) for entry in (process / "fd").iterdir())
    return "memfd:penstock" in (process / "maps").read_text() or any("memfd:penstock" in name for name in opened)
