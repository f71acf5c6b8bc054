"""Runs a vector of `clients/vectors` with `AsyncClient`: what `clients/vectors/README.md` asks of a runner.

Requests are real, over sockets, to the scripted server; time is virtual.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec

from penstock import errors
from penstock.client import AsyncClient
from penstock.client.client_options import ServerAddress
from penstock.client.httpx_ import HttpxWire
from penstock.client.replies import NoReply, Reply
from penstock.client.wire import OutgoingRequest
from penstock.client.world import World
from penstock.hosting.loop_clock import sleep_on
from penstock.jobs.job import Job
from penstock.testing.virtual_clock import VirtualClock, rest

VECTORS = Path(__file__).parents[1] / "clients" / "vectors"
PATIENCE_SECONDS = 20.0
"""Seconds of real time; only a broken test waits this long."""
SAME_MOMENT = 1e-6
Json = dict[str, Any]


class ScriptedServer:
    """The program `clients/vectors/server.py`, in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, str(VECTORS / "server.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ports = json.loads(self._process.stdout.readline())
        self.port, self.refused_port = ports["port"], ports["refused_port"]
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_SECONDS, trust_env=False)

    def play(self, vector: Json) -> None:
        """Answer as `vector` says from now on."""
        self._http.put("/vectors/script", json={"answers": vector["answers"]}).raise_for_status()

    def log(self) -> list[Json]:
        """What was sent since then."""
        return self._http.get("/vectors/log").json()

    def stop(self) -> None:
        self._http.close()
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_SECONDS) == 0
        self._process.stdout.close()


class JumpingClock(VirtualClock):
    """Stands still while something real is under way; else it goes to the next timer by itself."""

    def __init__(self) -> None:
        super().__init__(start=0.0)
        self._real = 0
        self._moving: asyncio.Task[None] | None = None

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        timer = super().call_later(delay, callback)
        self._move()
        return timer

    @contextmanager
    def real(self) -> Iterator[None]:
        """Inside, time stands still."""
        self._real += 1
        try:
            yield
        finally:
            self._real -= 1
            self._move()

    def _move(self) -> None:
        if self._moving is None or self._moving.done():
            self._moving = asyncio.get_running_loop().create_task(self._jump())

    async def _jump(self) -> None:
        while True:
            await rest()
            if self._real or not self.waiting:
                return
            await self.advance(self._next())

    def _next(self) -> float:
        return max(0.0, min(due for due, _, timer in self._timers if timer.waiting) - self.now())


class VectorWire:
    """Carries tries to the scripted server, and does what that cannot: it refuses connections, and lets time pass."""

    def __init__(self, vector: Json, clock: JumpingClock, server: ScriptedServer, tries: list[Json]) -> None:
        self._vector = vector
        self._clock = clock
        self._server = server
        self._tries = tries
        self._http = HttpxWire(ServerAddress(f"http://127.0.0.1:{server.port}"), 100)

    async def send(self, request: OutgoingRequest) -> Reply | NoReply:
        known_as, attempt = request.headers["x-request-id"], int(request.headers["x-attempt"])
        answers = self._vector["answers"].get(known_as, [])
        answer = answers[attempt - 1] if attempt <= len(answers) else {}
        refused = bool(answer.get("refuse"))
        self._tries.append({"id": known_as, "attempt": attempt, "at": self._clock.now(), "refused": refused})
        if refused:
            url = request.url.replace(f":{self._server.port}", f":{self._server.refused_port}", 1)
            request = replace(request, url=url)
        with self._clock.real():
            reply = await self._http.send(request)
        if answer.get("delay"):
            await sleep_on(self._clock, answer["delay"])
        return reply

    async def close(self) -> None:
        await self._http.close()


class Rig:
    """One vector, and the world of the client that it is tried on."""

    def __init__(self, vector: Json, server: ScriptedServer) -> None:
        self.vector = vector
        self.server = server
        self.clock = JumpingClock()
        self.tries: list[Json] = []
        self.answers: list[Any] = [None] * len(vector["calls"])
        """What each call has given or raised."""
        self.ends: list[float] = [math.nan] * len(vector["calls"])
        """When."""
        ids, keys = count(1), count(1)
        wall = vector.get("wall", 1_700_000_000)
        self.world = World(
            clock=self.clock,
            wall=lambda: wall + self.clock.now(),
            chance=lambda: vector.get("chance", 0.0),
            new_id=lambda: f"r{next(ids)}",
            new_key=lambda: f"k{next(keys)}",
            connect=lambda address, most_kept: VectorWire(vector, self.clock, server, self.tries),
        )
        self.url = f"http://127.0.0.1:{server.port}{vector.get('prefix', '')}"
        self.options = vector.get("client", {})
        server.play(vector)

    async def timed(self, place: int, coroutine: Awaitable[Any]) -> Any:
        """What the coroutine of a call gives; keeps when."""
        try:
            return await coroutine
        finally:
            self.ends[place] = self.clock.now()

    def check(self, stats: Any) -> None:
        """Everything that the vector says must be as it says."""
        for call, answer, ended in zip(self.vector["calls"], self.answers, self.ends, strict=True):
            check_answer(call["gets"], answer)
            assert abs(ended - call["ends"]) < SAME_MOMENT, f"ends at {ended}, not {call['ends']}"
        told = {(one["id"], one["attempt"]): one for one in self.vector["tries"]}
        made = {(one["id"], one["attempt"]): one for one in self.tries}
        assert {name: one["at"] for name, one in told.items()} == {
            name: round(one["at"], 6) for name, one in made.items()
        }
        seen = {(one["id"], one["attempt"]): one for one in self.server.log()}
        assert seen.keys() == {name for name, one in made.items() if not one["refused"]}
        assert len(seen) == len(self.server.log()), "each try was sent once"
        for name, one in seen.items():
            check_request(told[name], one)
        for name, value in self.vector.get("stats", {}).items():
            assert getattr(stats, name) == value, name


def run_async(vector: Json, server: ScriptedServer) -> None:
    """Try the vector on `AsyncClient`."""
    asyncio.run(_run_async(Rig(vector, server)))


async def _run_async(rig: Rig) -> None:
    async def one(place: int, call: Json, client: AsyncClient) -> None:
        if call.get("at"):
            await sleep_on(rig.clock, call["at"])
        try:
            rig.answers[place] = await rig.timed(place, asked(client, call))
        except (errors.PenstockError, asyncio.CancelledError) as error:
            rig.answers[place] = error

    async with asyncio.timeout(PATIENCE_SECONDS), AsyncClient(rig.url, _deps=rig.world, **rig.options) as client:
        tasks = [asyncio.create_task(one(place, call, client)) for place, call in enumerate(rig.vector["calls"])]
        for task, call in zip(tasks, rig.vector["calls"], strict=True):
            if "cancel_at" in call:
                rig.clock.call_later(call["cancel_at"], task.cancel)
        closing: list[asyncio.Task[None]] = []
        if "close_at" in rig.vector:
            rig.clock.call_later(rig.vector["close_at"], lambda: closing.append(asyncio.create_task(client.close())))
        await asyncio.gather(*tasks)
        await asyncio.gather(*closing)
        rig.check(client.stats)


# -- what a vector says -----------------------------------------------------------------------------------------------


def asked(client: AsyncClient, call: Json) -> Awaitable[Any]:
    """What the call named by `do` gives."""
    options = call.get("options", {})
    where, _, name = call["do"].rpartition(".")
    method = getattr(client.jobs if where == "jobs" else client, name)
    if "item_base64" in call:
        return method(base64.b64decode(call["item_base64"]), **options)
    for argument in ("item", "items", "job", "jobs"):
        if argument in call:
            return method(call[argument], **options)
    return method(**options)


def check_answer(told: Json, got: Any) -> None:
    """What a caller got is what the vector says."""
    if "error" in told:
        assert type(got).__name__ == told["error"], repr(got)
        for name, value in told.items():
            if name != "error":
                assert getattr(got, name) == value, name
    elif "results" in told:
        assert len(got) == len(told["results"])
        for one, each in zip(told["results"], got, strict=True):
            check_answer(one, each)
    elif "base64" in told:
        assert got == base64.b64decode(told["base64"])
    else:
        shown = msgspec.to_builtins(got) if isinstance(got, Job) else got
        if isinstance(got, list) and all(isinstance(one, Job) for one in got):
            shown = msgspec.to_builtins(got)
        assert contains(shown, told["result"]), repr(got)


def contains(got: Any, told: Any) -> bool:
    """Whether `got` is `told`; an object may have more members."""
    if isinstance(told, dict) and isinstance(got, dict):
        return all(name in got and contains(got[name], value) for name, value in told.items())
    if isinstance(told, list) and isinstance(got, list):
        return len(told) == len(got) and all(map(contains, got, told))
    return got == told


def check_request(told: Json, seen: Json) -> None:
    """What the server saw of a try is what the vector says."""
    assert seen["method"] == told.get("method", "POST")
    assert "path" not in told or seen["path"] == told["path"]
    body = base64.b64decode(seen["base64"])
    if "json" in told:
        assert json.loads(body) == told["json"]
    if "base64" in told:
        assert seen["base64"] == told["base64"]
    for name, value in told.get("headers", {}).items():
        assert seen["headers"].get(name) == value, name
    if "timeout" in told:
        assert abs(float(seen["headers"]["x-request-timeout"]) - told["timeout"]) < 0.002
