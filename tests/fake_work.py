"""A consumer with an engine in memory, which answers when a test says so, and with a clock that stands still.

Calls that would block in a thread are made at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from penstock.codec.annotations import signature
from penstock.codec.formats import Codec
from penstock.codec.schema import accepts, offers
from penstock.config import Batch, ServiceOptions, StageOptions
from penstock.core.counters import StageCounters
from penstock.core.outcome import Failure, Result
from penstock.core.state import State
from penstock.errors import Cancelled, StoreUnavailable
from penstock.jobs.consumer import Consumer
from penstock.jobs.store import NewJob
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.jobs.work_options import WorkOptions
from penstock.runtime.external_spec import remote
from penstock.testing.virtual_clock import VirtualClock, rest
from penstock.transfer.transfers import Downloaded


class Double:
    def predict(self, x: int) -> int:
        return 2 * x


class DoubleAll:
    def predict(self, xs: list[int]) -> list[int]:
        return [2 * x for x in xs]


class Count:
    def predict(self, body: bytes) -> int:
        return len(body)


class Measure:
    def predict(self, path: Path) -> int:
        return path.stat().st_size


class Hangs(Exception):
    """What a call raises in place of never returning."""


class InlineThreads:
    """Makes each call at once; one that hangs keeps its thread for ever."""

    def __init__(self, most, name):
        self.ended = False
        self._free = asyncio.Semaphore(most)

    async def run(self, call):
        await asyncio.sleep(0)
        async with self._free:
            try:
                return call()
            except Hangs:
                await asyncio.Event().wait()

    def start(self, call):
        call()

    def end(self):
        self.ended = True


class Ticket:
    def __init__(self, payload, job_id, given, done):
        self.payload, self.job_id, self.done = payload, job_id, done
        self.given = given
        self.begun = self.sent_ahead = self.settled = False

    def settle(self, outcome):
        """Bytes stand for a result, an exception for a failure."""
        if not self.settled:
            self.settled = True
            self.done([Failure(outcome) if isinstance(outcome, Exception) else Result(outcome)])


class FakeEngine:
    def __init__(self):
        self.state = State.READY
        self.memory_short = False
        self.refuses = None
        self.tickets = []
        self.pieces = []
        self.begins = 0
        """How many further tickets a worker takes at the end of the turn in which they come."""
        self.stages = [SimpleNamespace(name="double", counters=StageCounters(), workers=[])]

    def piece(self, nbytes):
        """A piece of shared memory for each input of a page or more, as is asked for."""
        self.pieces.append(memoryview(bytearray(nbytes)))
        return self.pieces[-1]

    def submit(self, payloads, codec_in, codec_out, deadline, done, request_id=b"", **more):
        if self.refuses is not None:
            raise self.refuses
        given = {"codec_in": codec_in, "codec_out": codec_out, "deadline": deadline, **more}
        ticket = Ticket(bytes(payloads[0]), request_id.decode(), given, done)
        self.tickets.append(ticket)
        if self.begins:
            self.begins -= 1
            asyncio.get_running_loop().call_soon(setattr, ticket, "begun", True)
        return ticket

    def recall(self, ticket):
        """A ticket that was `sent_ahead` settles by the test: its worker is to say whether it was too late."""
        if not (ticket.begun or ticket.sent_ahead):
            ticket.settle(Cancelled())

    def begun(self, ticket):
        return ticket.begun or ticket.settled

    def cancel(self, ticket):
        ticket.settle(Cancelled())

    def of(self, job_id):
        """The newest ticket of this job."""
        return [ticket for ticket in self.tickets if ticket.job_id == job_id][-1]


def fake_service(target=None, name="double", workers=1, max_size=None, concurrency=0, max_in_flight_batches=None):
    target = target or (DoubleAll if max_size else Double)
    batch = Batch(max_size=max_size) if max_size else None
    types = signature(target, batched=batch is not None)
    stage = SimpleNamespace(
        name="first",
        target=target,
        workers=workers,
        batch=batch,
        concurrency=concurrency,
        options=StageOptions(max_in_flight_batches=max_in_flight_batches),
        examples=(),
        external=None,
        signature=lambda: types,
        crossing=Codec.PICKLE,
        accepts=lambda: accepts(types.item),
        offers=lambda: offers(types.result),
    )
    return service_of([stage], name)


def outside_service(*, max_size=None, **how):
    """A service whose only stage has workers from outside; `how` is what `penstock.remote` takes."""
    batch = Batch(max_size=max_size) if max_size else None
    return service_of([remote("out", batch=batch, **how)], "outside")


def service_of(stages, name="several"):
    return SimpleNamespace(
        name=name, version="", model_version=None, options=ServiceOptions(), engine=FakeEngine(), stages=stages
    )


class FakeTransfers:
    """Inputs by URL, outputs as they are written; what is in `errors` is raised, each once, in order."""

    def __init__(self, folder):
        self.folder = folder
        self.inputs, self.parts, self.outputs, self.discarded = {}, {}, {}, []
        self.errors = []
        self.finish_errors = []
        self.refused = ()
        self.hanging = ()
        """How the URLs begin of which a transfer never ends."""
        self.puts = False
        self.content_type = ""
        """What a server says of every input."""

    def _reach(self, url):
        if url.startswith(tuple(self.hanging)):
            raise Hangs

    @staticmethod
    def _raise_next(errors):
        if errors:
            raise errors.pop(0)

    def check_input(self, url):
        if url in self.refused:
            raise self.refused[url]

    check_output = check_input

    def target_of(self, url):
        self.check_output(url)
        return url.rpartition("/")[0]

    def is_put_in_place(self, url):
        return self.puts

    def download(self, url, job_id, fence, stopped):
        self._reach(url)
        self._raise_next(self.errors)
        path = self.folder / f"{job_id}-{fence}"
        path.write_bytes(self.inputs[url])
        return Downloaded(path, len(self.inputs[url]), self.content_type)

    def write_output(self, url, job_id, fence, body, content_type, stopped):
        self._reach(url)
        self._raise_next(self.errors)
        self.parts[url, job_id, fence] = body

    def finish_output(self, url, job_id, fence):
        self._reach(url)
        self._raise_next(self.finish_errors)
        self.outputs[url] = self.parts.pop((url, job_id, fence))

    def discard_output(self, url, job_id, fence):
        self.discarded.append((url, job_id, fence))
        self.parts.pop((url, job_id, fence), None)


class TroubledStore:
    """A store that can be gone: `gone` is what is raised then."""

    def __init__(self, store):
        self._store = store
        self.gone = None
        self.calls = []

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args, **kwargs):
            self.calls.append(name)
            if self.gone is not None:
                raise self.gone
            return found(*args, **kwargs)

        return call


class Bench:
    """A consumer, what it works for, and the hands of a test."""

    def __init__(self, tmp_path, services, **options):
        self.clock = VirtualClock()
        self.wall = lambda: 1_700_000_000.0 + self.clock.now()
        self.asleep = 0.0
        """For how many seconds the machine was suspended: the clock of leases has gone on."""
        boot = lambda: self.clock.now() + self.asleep  # noqa: E731
        self.memory = MemoryStore("q", now=boot, wall=self.wall)
        self.store = TroubledStore(self.memory)
        self.transfers = FakeTransfers(tmp_path)
        self.services = services
        self.engine = services[0].engine
        self.consumer = Consumer(
            services,
            lambda: self.store,
            WorkOptions(**{"lease": 30.0, "retry_backoff": 1.0, **options}),
            clock=self.clock,
            transfers=self.transfers,
            boot=boot,
            wall=self.wall,
            draw=lambda: 0.5,
            threads=InlineThreads,
        )

    def submit(self, job_id="a", body=b"3", **more):
        self.memory.submit([NewJob(id=job_id, body=body, digest=job_id, **more)])

    def job(self, job_id="a"):
        (found,) = self.memory.get([job_id])
        return found

    def lose_store(self):
        self.store.gone = StoreUnavailable("gone")

    async def start(self):
        await self.consumer.start()
        await self.turn()

    async def turn(self, seconds=0.5):
        """Let the claim loop look, and everything come to rest."""
        await self.clock.advance(seconds)
        await rest()

    def renew(self):
        """What the thread that renews does; here it waits for ever."""
        self.consumer.renewing.renew()
