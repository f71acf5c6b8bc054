"""The bare loop, Penstock in process and over HTTP, and two peers, on the same encoders."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from callers import START_SECONDS, Load, load, request_bytes
from encoders import HAS_NUMPY, WHY_NO_TORCH, Encoder, Shape, alike, as_ids, kind_here, make_encoder, shape_of, some_ids
from meter import VARIABLE, Notes, meter_folder, read_notes
from part import Part
from serving import Server, ServerFailed, free_port
from texts import open_tokenizer, some_texts, tokenizer_workers, train_tokenizer

import penstock as ps
from procfs import cpu_apart, cpu_seconds

ROUNDS = 3
MODELS = ("BERT-large", "BERT-base", "MiniLM")
"""The one that the aims are meant for comes first."""
MOST_CALLERS = 256
IN_PROCESS, HTTP = "in process", "HTTP, tokenizer in a stage"
HOOK = "HTTP, tokenizer in the hook"
AIM_WEIGHT = 6
"""How many times as long what has an aim is measured: its batches take tens of ms, and one more or less is an error."""
SIZES = (8, 16, 32, 64)
WORKER = "penstock.worker"
LIMIT_OF_AIM = 5000
"""Items a second of the bare loop up to which the aims are meant: a faster encoder waits for the coordinator."""
HERE = Path(__file__).resolve().parents[1]
PEERS = {"FastAPI by hand": ("fastapi", "fastapi_batcher.py"), "LitServe": ("litserve", "litserve_server.py")}
"""The package that each peer needs, and its program."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One measurement."""

    load: Load
    coordinator_us: float = 0.0
    """CPU of an item; of a peer, that of the whole server."""
    worker_us: float = 0.0
    device: float = 0.0
    """The share of the time in which the device computed."""


@dataclass(slots=True)
class Series:
    """The measurements of one subject with so many callers."""

    model: str
    name: str
    callers: int
    measure: Callable[[int, float, float], Seen]
    """Called with the callers, the seconds that count, and those of the warm-up before them."""
    seen: list[Seen] = field(default_factory=list)

    @property
    def title(self) -> str:
        """How its figures begin."""
        return f"{self.model}, {self.callers} caller{'s' if self.callers > 1 else ''}, {self.name}"

    @property
    def inside(self) -> bool:
        """Whether the callers are in the process of the service."""
        return self.name == IN_PROCESS

    def aim(self, loop: Bare) -> float:
        """The share of the bare loop's rate that is to be had; 0 where none is."""
        if self.callers < MOST_CALLERS or not loop.slow:
            return 0.0
        return {IN_PROCESS: 0.95, HTTP: 0.9}.get(self.name, 0.0)


@dataclass(slots=True)
class Bare:
    """The loop without a server: what can be had of the device."""

    encoder: Encoder
    ids: list[Any]
    size: int = 1
    slow: bool = False
    """Whether it is as slow as the aims are meant for."""
    rates: list[float] = field(default_factory=list)
    lone_ms: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def find_size(self, seconds: float) -> None:
        """Take the batch size that does most."""
        rates = {size: self._rate(size, seconds) for size in SIZES}
        self.size = max(rates, key=rates.__getitem__)
        self.slow = rates[self.size] <= LIMIT_OF_AIM

    def measure(self, seconds: float) -> None:
        """Note the rate at that size, and how long one item takes alone."""
        before, started = self.encoder.device_seconds, time.perf_counter()
        self.rates.append(self._rate(self.size, seconds))
        self.shares.append((self.encoder.device_seconds - before) / (time.perf_counter() - started))
        lone = []
        end = time.perf_counter() + seconds / 4
        while not lone or time.perf_counter() < end:
            started = time.perf_counter()
            self.encoder.encode(self.ids[:1])
            lone.append(1000 * (time.perf_counter() - started))
        self.lone_ms.append(median(lone))

    def _rate(self, size: int, seconds: float) -> float:
        batch = self.ids[:size]
        self.encoder.encode(batch)
        items, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds:
            self.encoder.encode(batch)
            items += size
        return items / spent


def run(part: Part) -> None:
    """Start everything, measure in turns, and tell after each round."""
    part.note(f"Encoders: {kind_here()}." + ("" if part.on_gpu else " Small ones, so the speeds say nothing."))
    if WHY_NO_TORCH:
        part.note(f"{WHY_NO_TORCH}.")
    tokenizer = train_tokenizer(part.folder)
    with asyncio.Runner() as runner, ExitStack() as stack:
        servers = {(model, name): server for model in MODELS for name, server in _servers(part, model)}
        for server in servers.values():
            stack.enter_context(server)
        services = {model: _in_process(part, model) for model in MODELS}
        # At once, like the servers: what takes long is the start of PyTorch in each worker.
        started = runner.run(_start(services.values()))
        stack.callback(lambda: runner.run(_stop(services.values())))
        bare = {model: _bare(part, model) for model in MODELS}
        series: list[Series] = []
        for (model, service), error in zip(services.items(), started, strict=True):
            if error is None:
                calls = functools.partial(_call_in_process, part, runner, service, model, bare[model].ids)
                series += [Series(model, IN_PROCESS, callers, calls) for callers in _counts(model)]
            else:
                part.check(f"{model}, {IN_PROCESS}: it starts", ok=False, words=str(error))
        for (model, name), server in servers.items():
            shape = shape_of(model, small=not part.on_gpu)
            if not _came_up(part, model, name, server):
                continue
            words = _words(tokenizer, shape)
            _same(part, server, f"{model}, {name}", bare[model].encoder, tokenizer, shape, words[0])
            wire = [request_bytes(json.dumps(text).encode(), path="/predict", accept=ACCEPT) for text in words]
            calls = functools.partial(_call_over_http, part, server, wire, _meter(part, model, name))
            series += [Series(model, name, callers, calls) for callers in _counts(model)]
        for loop in bare.values():  # now that nothing starts any more
            loop.find_size(0.3 if part.on_gpu else 0.05)
        _measure(part, bare, series)
        _judge(part, bare, series)


def _counts(model: str) -> tuple[int, ...]:
    """The numbers of callers."""
    return (1, 32, MOST_CALLERS) if model == "BERT-base" else (1, MOST_CALLERS)


def _bare(part: Part, model: str) -> Bare:
    shape = shape_of(model, small=not part.on_gpu)
    return Bare(make_encoder(shape, part.device), list(map(as_ids, some_ids(shape, 64))))


async def _start(services: Iterable[ps.Service]) -> list[BaseException | None]:
    return await asyncio.gather(*(service.start() for service in services), return_exceptions=True)


async def _stop(services: Iterable[ps.Service]) -> None:
    await asyncio.gather(*(service.stop(0) for service in services))


ACCEPT = "application/x-npy" if HAS_NUMPY else "application/json"


# -- subjects ---------------------------------------------------------------------------------------------------------


def _servers(part: Part, model: str) -> Iterator[tuple[str, Server]]:
    """The servers of a model, started and not ready yet."""

    def started(name: str, command: list[str] | str, **env: str) -> tuple[str, Server]:
        log = part.folder / f"{model}-{name.replace(', ', '-').replace(' ', '-')}.log"
        env |= {"GPU_MODEL": model, VARIABLE: str(_meter(part, model, name))}
        if isinstance(command, str):
            return name, Server.penstock(command, log, **env)
        port = free_port()
        return name, Server([sys.executable, *command, str(port)], log, port, **env)

    yield started(HTTP, "encoding_services:text", GPU_TOKENIZERS=str(tokenizer_workers()))
    if model != "BERT-base":
        return
    yield started(HOOK, "encoding_services:hooked")
    for name, (package, program) in PEERS.items():
        missing = [needed for needed in (package, "uvicorn", "numpy") if importlib.util.find_spec(needed) is None]
        if missing:
            part.note(f"{name} was not run: {', '.join(missing)} is not installed.")
        else:
            yield started(name, [str(HERE / program)])


def _came_up(part: Part, model: str, name: str, server: Server) -> bool:
    """Wait until it is ready; False where it is not: of a peer that is noted, of ours it is a check not met."""
    try:
        server.ready(part.seconds_left() / 3 if name in PEERS else part.seconds_left() - 20)
    except ServerFailed as error:
        server.__exit__()  # it would start while others are measured
        if name in PEERS:
            part.note(f"{name} was not run: {error}")
        else:
            part.check(f"{model}, {name}: it starts", ok=False, words=str(error))
        return False
    return True


def _in_process(part: Part, model: str) -> ps.Service:
    """The encoder alone, from ids to vectors, with the model of that name in its worker."""
    from encoding_services import Encode

    env = {"GPU_MODEL": model, VARIABLE: str(_meter(part, model, IN_PROCESS))}
    return ps.Service(ps.stage(Encode, env=env), name="ids")


def _meter(part: Part, model: str, name: str) -> Path:
    return meter_folder(part.folder, f"{model}-{name}")


def _words(tokenizer: Path, shape: Shape) -> list[str]:
    """Texts that have about as many word pieces as the encoder takes."""
    opened = open_tokenizer(tokenizer, 10_000)
    sample = some_texts(1, 1000)[0]
    pieces = sum(opened.encode(sample).attention_mask)
    return some_texts(64, int(1000 * shape.tokens / pieces) + 1)


# -- measuring --------------------------------------------------------------------------------------------------------


def _measure(part: Part, bare: dict[str, Bare], series: list[Series]) -> None:
    """Go through all of them in turns, and tell after each round."""
    warmup = 0.4 if part.on_gpu else 0.15
    weights = {one.title: AIM_WEIGHT if part.on_gpu and one.aim(bare[one.model]) else 1 for one in series}
    around = sum(warmup + (0.0 if one.inside else START_SECONDS + 0.3) for one in series)
    units = sum(weights.values()) + 2.5 * len(bare)
    most = 1.0 if part.on_gpu else 0.2
    seconds = max(0.2, min(most, ((part.seconds_left() - 10) / ROUNDS - around) / units))
    longer = f", or {AIM_WEIGHT * seconds:.1f} s where there is an aim" if AIM_WEIGHT in weights.values() else ""
    part.note(f"Each figure is of {seconds:.1f} s a round{longer}, behind {warmup} s that do not count.")
    for number in range(ROUNDS):
        for model, loop in bare.items():
            loop.measure(2 * seconds)
            part.figure(f"{model}, bare loop: answered", "items/s", loop.rates)
            part.figure(f"{model}, bare loop: best batch", "items", loop.size)
            part.figure(f"{model}, bare loop: p50", "ms", loop.lone_ms)
            if part.on_gpu:
                part.figure(f"{model}, bare loop: device computes", "share", loop.shares)
            for one in series:
                if one.model == model:
                    takes = weights[one.title] * seconds
                    if number and part.seconds_left() < takes + warmup + 5:
                        part.note("There was no time for all rounds.")
                        return
                    one.seen.append(one.measure(one.callers, takes, warmup))
                    _tell(part, one, loop)


def _tell(part: Part, one: Series, loop: Bare) -> None:
    part.figure(f"{one.title}: answered", "items/s", [seen.load.rate for seen in one.seen])
    ratios = [seen.load.rate / rate for seen, rate in zip(one.seen, loop.rates, strict=False)]
    part.figure(f"{one.title}: by the bare loop", "ratio", ratios)
    part.figure(f"{one.title}: p50", "ms", [seen.load.p50_ms for seen in one.seen])
    part.figure(f"{one.title}: p99", "ms", [seen.load.p99_ms for seen in one.seen])
    peer = one.name in PEERS
    whose = "CPU of the server" if peer else "CPU of the coordinator"
    part.figure(f"{one.title}: {whose}", "µs/item", [seen.coordinator_us for seen in one.seen])
    if not peer:
        part.figure(f"{one.title}: CPU of the workers", "µs/item", [seen.worker_us for seen in one.seen])
    if any(seen.device for seen in one.seen):
        part.figure(f"{one.title}: device computes", "share", [seen.device for seen in one.seen])
    if not one.inside:
        part.figure(f"{one.title}: cores of the callers", "cores", [seen.load.cores for seen in one.seen])


def _call_over_http(
    part: Part, server: Server, wire: list[bytes], meter: Path, callers: int, seconds: float, warmup: float
) -> Seen:
    looks: list[tuple[float, float, float, Notes]] = []

    def look() -> None:
        looks.append((time.monotonic(), *cpu_apart(server.process.pid, WORKER), read_notes(meter)))

    found = load(server.port, wire, callers=callers, seconds=seconds, warmup=warmup, look=look)
    (began, coordinator, workers, before), (ended, coordinator_after, workers_after, after) = looks
    notes = after - before
    items = max(1, notes.items or found.rate * seconds)
    return Seen(
        found,
        1e6 * (coordinator_after - coordinator) / items,
        1e6 * (workers_after - workers) / items,
        _share(part, notes, ended - began),
    )


def _call_in_process(
    part: Part,
    runner: asyncio.Runner,
    service: ps.Service,
    model: str,
    ids: list[Any],
    callers: int,
    seconds: float,
    warmup: float,
) -> Seen:
    """The callers are tasks of this process, so the CPU of its coordinator is theirs too."""
    meter = _meter(part, model, IN_PROCESS)
    began = time.monotonic() + warmup
    end = began + seconds
    latencies: list[float] = []
    wrong = 0
    looks: list[tuple[float, float, float, Notes]] = []

    async def caller(number: int) -> None:
        nonlocal wrong
        while (asked := time.monotonic()) < end:
            try:
                await service.predict(ids[number % len(ids)])
            except ps.PenstockError:
                wrong += 1
            else:
                if began <= (now := time.monotonic()) < end:
                    latencies.append(1000 * (now - asked))
            number += 1

    def look() -> None:
        mine = time.process_time()
        workers = cpu_seconds(os.getpid()) - mine  # other servers rest meanwhile
        looks.append((time.monotonic(), mine, workers, read_notes(meter)))

    async def all_callers() -> None:
        loop = asyncio.get_running_loop()
        for moment in (began, end):
            loop.call_later(max(0.0, moment - time.monotonic()), look)
        await asyncio.gather(*(caller(number) for number in range(callers)))

    runner.run(all_callers())
    while len(looks) < 2:  # the last answer may have come just before the end
        look()
    (first, mine, workers, before), (last, mine_after, workers_after, after) = looks
    notes = after - before
    latencies.sort()
    p99 = latencies[int(len(latencies) * 0.99)] if latencies else 0.0
    seen = Load(len(latencies) / seconds, median(latencies or [0.0]), p99, (mine_after - mine) / (last - first), wrong)
    items = max(1, notes.items)
    return Seen(
        seen,
        1e6 * (mine_after - mine) / items,
        1e6 * (workers_after - workers) / items,
        _share(part, notes, last - first),
    )


def _share(part: Part, notes: Notes, spent: float) -> float:
    return notes.device_seconds / spent if part.on_gpu else 0.0


# -- judging ----------------------------------------------------------------------------------------------------------


def _same(part: Part, server: Server, title: str, encoder: Encoder, tokenizer: Path, shape: Shape, text: str) -> None:
    """Check that a server gives the vector that the bare loop gives."""
    wanted = encoder.encode([as_ids(open_tokenizer(tokenizer, shape.tokens).encode(text).ids)])[0]
    try:
        server.until(lambda: server.answers(text), "no answer", part.seconds_left() / 3)
    except ServerFailed as error:
        part.check(f"{title}: the bare loop's vector", ok=False, words=str(error))
        return
    status, body = server.ask(text, accept=ACCEPT)
    if status != 200:
        part.check(f"{title}: the bare loop's vector", ok=False, words=f"status {status}: {body[:200]!r}")
        return
    if HAS_NUMPY:
        import numpy as np

        found = np.load(io.BytesIO(body), allow_pickle=False).tolist()
    else:
        found = json.loads(body)
    part.check(f"{title}: the bare loop's vector", alike(found, list(wanted)))


def _judge(part: Part, bare: dict[str, Bare], series: list[Series]) -> None:
    """Check that every call was answered, and, on a GPU, the aims."""
    wrong = {one.title: sum(seen.load.wrong for seen in one.seen) for one in series}
    bad = [f"{title}: {count}" for title, count in wrong.items() if count]
    part.check("every call was answered", not bad, ", ".join(bad))
    if not part.on_gpu:
        return
    for one in series:
        loop = bare[one.model]
        if not one.seen or one.name not in (IN_PROCESS, HTTP):
            continue
        if aim := one.aim(loop):
            ratio = median(seen.load.rate / rate for seen, rate in zip(one.seen, loop.rates, strict=False))
            part.check(f"{one.title}: at least {aim} of the bare loop", ratio >= aim, f"{ratio:.3f}")
        if one.callers == 1:
            more = 1.0 if one.inside else 2.0
            p50, lone = median(seen.load.p50_ms for seen in one.seen), median(loop.lone_ms)
            words = f"{p50:.2f} ms, the bare run {lone:.2f} ms"
            part.check(f"{one.title}: p50 within the bare run and {more:g} ms", p50 <= lone + more, words)
