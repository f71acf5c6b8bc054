"""A thousand requests at once, room for eight, and a worker that is held: exactly eight are let in, and answered."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import struct
import sys
from types import SimpleNamespace

import httpx
import pytest
from notes_and_gates import notes
from prometheus_client.parser import text_string_to_metric_families
from served import Program, Server, write_module
from waiting import until

CLIENTS, ROOM = 1000, 8
BODY_BYTES = 1000
PATIENCE_SECONDS = 60.0
"""Seconds; a crowd on a busy machine is slow, and only a broken test waits this long."""

SOURCE = f"""
from pathlib import Path

from notes_and_gates import note, wait_for

import penstock as ps


class Held(ps.Stage):
    def predict(self, text: str) -> str:
        note("ran", int(text[:4]))
        wait_for(Path("open"))
        return text[:4]


by_items = ps.Service(Held, name="held", max_in_flight={ROOM})
by_bytes = ps.Service(Held, name="held", max_queued_bytes={ROOM * BODY_BYTES})
asgi_by_items, asgi_by_bytes = ps.asgi(by_items), ps.asgi(by_bytes)
"""


class Client(asyncio.Protocol):
    """One connection and its request; what comes is kept until the answer is whole."""

    def __init__(self, number: int) -> None:
        self.number = number
        body = json.dumps(f"{number:04}".ljust(BODY_BYTES - 2, ".")).encode()
        assert len(body) == BODY_BYTES
        self.head = f"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.wire = self.head + body
        self.received = b""
        self.lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def hang_up(self, *, crash: bool) -> None:
        """Leave; with `crash` there is no goodbye, and what the server has not read yet is lost."""
        if crash:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    @property
    def answer(self) -> tuple[int, object] | None:
        """Status and body, once all of it is there."""
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return None
        (length,) = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return (int(head.split(b" ")[1]), json.loads(body)) if len(body) == length else None


@pytest.fixture
def many_files():
    """A thousand connections need as many files here, and in the server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 3 * CLIENTS
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"a process may have {hard} files open here")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=["native", "asgi"])
def start(request, tmp_path, many_files):
    """Serve the held stage, by `penstock serve` or as an ASGI app under uvicorn; what is needed to talk to it."""
    programs = []
    clients = httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_SECONDS)

    def start(bound):
        module = write_module(tmp_path, SOURCE)
        if request.param == "native":
            program = Server(tmp_path, f"{module}:{bound}", "--port", "0")
            programs.append(program)
            port = program.ready().port
        else:
            command = ("-m", "uvicorn", f"{module}:asgi_{bound}", "--port", "0", "--no-access-log")
            program = Program(tmp_path, sys.executable, *command)
            programs.append(program)
            port = int(program.wait_for(r"Uvicorn running on http://127\.0\.0\.1:(\d+)")[1])

        def metric(name, **labels):
            page = clients.get(f"http://127.0.0.1:{port}/metrics").text
            return sum(
                sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )

        return SimpleNamespace(port=port, metric=metric, open_gate=(tmp_path / "open").touch, folder=tmp_path)

    yield start
    clients.close()
    (tmp_path / "open").touch()  # where the test has failed before: a drain waits for what runs
    for program in programs:
        if program.process.poll() is None:
            program.signal(signal.SIGTERM)
            program.wait()
        program.destroy()


async def connect(server, numbers):
    """A client for each number, connected: at most a hundred connections are under way at a time."""
    loop, clients = asyncio.get_running_loop(), [Client(number) for number in numbers]
    for begin in range(0, len(clients), 100):
        connecting = [
            loop.create_connection(lambda client=client: client, "127.0.0.1", server.port)
            for client in clients[begin : begin + 100]
        ]
        await asyncio.gather(*connecting)
    return clients


async def until_metric(server, wanted, name, **labels):
    """Wait until the server shows this number."""
    await until(lambda: server.metric(name, **labels) == wanted, f"{name}{labels} to be {wanted}", PATIENCE_SECONDS)


@pytest.mark.parametrize("bound", ["by_items", "by_bytes"])
async def test_exactly_as_many_are_let_in_as_there_is_room_and_all_who_stay_are_answered(start, bound):
    server = start(bound)
    crowd = await connect(server, range(CLIENTS))
    # A third hangs up half-way: in the head, in the body, or before the answer.
    cut_in_head, cut_in_body = crowd[::12], crowd[6::12]
    whole = [client for client in crowd if client.number % 6]

    cut = {client: 1 + client.number % (len(client.head) - 1) for client in cut_in_head}
    cut |= {client: len(client.head) + client.number % BODY_BYTES for client in cut_in_body}
    if bound == "by_bytes":
        # Half a body takes room as long as it is there, so these are gone before the others come.
        for client in cut_in_body:
            client.transport.write(client.wire[: cut.pop(client)])
            client.hang_up(crash=False)
        await until_metric(server, len(cut_in_body), "penstock_http_requests_total", route="/predict")
        assert server.metric("penstock_reserved_bytes") == 0
    for client in crowd:
        if client in cut:
            client.transport.write(client.wire[: cut[client]])
        elif client not in cut_in_body:
            client.transport.write(client.wire)
    for client in cut:
        client.hang_up(crash=client.number % 4 == 0)

    # Everybody is told, but for eight.
    def unanswered():
        return [client for client in whole if client.answer is None]

    await until(lambda: len(unanswered()) <= ROOM, "all answers but eight", PATIENCE_SECONDS)
    assert server.metric("penstock_items_accepted_total") == ROOM
    assert server.metric("penstock_items_in_flight") == ROOM
    let_in = unanswered()
    assert len(let_in) == ROOM
    refused = [client for client in whole if client not in let_in]
    for client in refused:
        status, problem = client.answer
        assert (status, problem["type"]) == (503, "urn:penstock:problem:overloaded")

    # Of the eight a third leaves, and as many of the others.
    gone, left = let_in[::3], [client for client in let_in if client not in let_in[::3]]
    for place, client in enumerate((*gone, *refused[::5])):
        client.hang_up(crash=place % 2 == 0)
    await until_metric(server, len(gone), "penstock_items_ended_total", ending="cancelled")
    assert server.metric("penstock_items_in_flight") == len(left)
    assert not any(client.answer for client in left)

    server.open_gate()
    await until(lambda: all(client.answer for client in left), "the answers of those who stayed", PATIENCE_SECONDS)
    assert [client.answer for client in left] == [(200, f"{client.number:04}") for client in left]
    ran = notes(server.folder / "ran")
    assert {client.number for client in left} <= set(ran)
    assert len(set(ran)) == len(ran) <= len(left) + 2, "of those who left, only what a worker held was run"

    # All of the room is back, and no more than that was ever taken.
    await until_metric(server, 0, "penstock_reserved_bytes")
    again = await connect(server, range(CLIENTS, CLIENTS + ROOM))
    for client in again:
        client.transport.write(client.wire)
    await until(lambda: all(client.answer for client in again), "answers to as many as there is room", PATIENCE_SECONDS)
    assert [client.answer for client in again] == [(200, f"{client.number}") for client in again]
    assert server.metric("penstock_items_accepted_total") == 2 * ROOM
    assert not any(client.lost for client in again)
    for client in (*crowd, *again):
        client.transport.abort()
