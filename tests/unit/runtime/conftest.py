"""An engine whose workers are fakes and whose clock stands still: no process, no thread, no sleep.

Every test that uses `rig` ends with a stop, and is held to what the engine promises: each request was answered exactly
once, and nothing is held.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.codec.formats import Codec
from penstock.config import ServiceOptions
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.state import State
from penstock.runtime.engine import Engine
from penstock.runtime.slabs import ServiceSlabs, writing_workers
from penstock.runtime.spec import StageSpec, stage
from penstock.testing.fake_workers import FakeWorkers
from penstock.testing.virtual_clock import VirtualClock, rest


class Call:
    """One request, and what became of it."""

    def __init__(self) -> None:
        self.told: list[list[Outcome]] = []
        self.request: object = None

    def __call__(self, outcomes: list[Outcome]) -> None:
        self.told.append(outcomes)

    @property
    def done(self) -> bool:
        return bool(self.told)

    @property
    def ends(self) -> list[object]:
        """The bytes of each result, and the class of each failure."""
        (outcomes,) = self.told
        return [bytes(o.payload) if isinstance(o, Result) else type(o.error) for o in outcomes]

    def forget(self) -> None:
        """Let go of the results."""
        for outcomes in self.told:
            outcomes.clear()

    @property
    def error(self) -> Exception:
        """The failure of a request of one item."""
        ((outcome,),) = self.told
        assert isinstance(outcome, Failure)
        return outcome.error


class Rig:
    """An engine, its clock, its workers, and every request it was given."""

    def __init__(
        self,
        *specs: StageSpec,
        obedient: bool = True,
        inline: bool = False,
        cpus=None,
        read_memory=lambda: None,
        shm_bytes=0,
        **options,
    ) -> None:
        self.clock = VirtualClock()
        self.workers = FakeWorkers(obedient=obedient)
        self.engine = Engine(
            "service",
            specs or (stage(math.sqrt),),
            # Most tests look at the timers that wait: the watchdog has one only where a test asks for it.
            ServiceOptions(**{"progress_deadline": math.inf, **options}),
            clock=self.clock,
            start_incarnation=self.workers.start,
            cpus=cpus,
            inline=inline,
            read_memory=read_memory,
            open_slabs=self._open_slabs if shm_bytes else None,
        )
        self._shm_bytes = shm_bytes
        self.slabs: ServiceSlabs | None = None
        self.calls: list[Call] = []

    async def start(self) -> Rig:
        """Start, with every worker ready."""
        starting = await self.begin()
        for worker in self.workers.alive:
            worker.become_ready()
        await starting
        return self

    async def begin(self) -> asyncio.Task[None]:
        """Begin to start; the workers have said nothing yet."""
        starting = asyncio.get_running_loop().create_task(self.engine.start())
        await rest()
        return starting

    def submit(self, *payloads: bytes, within: float = math.inf, **how) -> Call:
        """Submit a request of `payloads`, by default one, whose deadline is `within` seconds from now."""
        call = Call()
        self.calls.append(call)
        deadline = self.clock.now() + within
        call.request = self.engine.submit(list(payloads) or [b"1"], Codec.JSON, Codec.JSON, deadline, call, **how)
        return call

    async def call(self, *payloads: bytes, **how) -> Call:
        """Submit, and let what follows happen."""
        call = self.submit(*payloads, **how)
        await rest()
        return call

    def _open_slabs(self, service, specs, options, now) -> ServiceSlabs:
        self.slabs = ServiceSlabs.make(list(map(writing_workers, specs)), self._shm_bytes, options.shm_threshold, now)
        return self.slabs

    @property
    def used_bytes(self) -> list[int]:
        """What is used of each slab: of that of arrivals, and of each stage's."""
        if self.slabs is None:
            return []
        arrivals, stages = self.slabs.arrivals, self.slabs.stages
        return [
            0 if arrivals is None else arrivals.used_bytes,
            *[sum(part.used_bytes for part in stage.parts) for stage in stages],
        ]

    def body(self, mark: bytes, nbytes: int) -> memoryview:
        """A body of `nbytes` in a piece, as a connection has it once it is whole."""
        piece = self.engine.piece(nbytes)
        assert piece is not None, "there is no room"
        piece[:] = mark * nbytes
        return piece

    async def stop(self, drain: float = 0) -> None:
        """Stop, letting time pass until it has ended."""
        stopping = await self.stopping(drain)
        for _ in range(3):
            for worker in self.workers.alive:
                worker.die()
            await self.clock.advance(10.0)
        await stopping

    async def stopping(self, drain: float) -> asyncio.Task[None]:
        """Begin to stop."""
        task = asyncio.get_running_loop().create_task(self.engine.stop(drain))
        await rest()
        return task

    async def end(self) -> None:
        """Stop, and check what an engine promises."""
        await self.stop()
        await rest()
        for call in self.calls:
            if call.request is not None:
                assert len(call.told) == 1, "a request is answered once"
        assert self.engine.state is State.STOPPED
        assert self.engine.queued == 0
        assert self.engine.held_bytes == 0, "nothing is held once everything is settled"
        assert self.clock.waiting == [], "no timer outlives the engine"
        for call in self.calls:
            call.forget()
        assert not any(self.used_bytes), "no piece of a slab outlives its holders"
        counters = self.engine.counters
        endings = ("succeeded", "failed", "invalid", "expired", "cancelled", "worker_lost", "aborted", "preempted")
        assert counters.accepted == sum(getattr(counters, ending) for ending in endings)


MakeRig = Callable[..., Rig]


@pytest.fixture(scope="session")
def rig_type() -> type[Rig]:
    """For tests that run many histories, each on an event loop and with an engine of its own."""
    return Rig


@pytest.fixture
async def make_rig() -> AsyncIterator[MakeRig]:
    """Makes engines, and checks each at the end."""
    made: list[Rig] = []

    def make(*specs: StageSpec, **how) -> Rig:
        made.append(Rig(*specs, **how))
        return made[-1]

    yield make
    for rig in made:
        await rig.end()
