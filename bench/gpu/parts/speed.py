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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import penstock as ps
from callers import Load, load, request_bytes
from encoders import HAS_NUMPY, WHY_NO_TORCH, Encoder, Shape, alike, kind_here, make_encoder, shape_of, some_ids
from meter import VARIABLE, Notes, read_notes
from part import Part
from procfs import costs, cpu_seconds
from serving import Server, ServerFailed, free_port
from texts import open_tokenizer, some_texts, train_tokenizer

ROUNDS = 3
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
    measure: Callable[[int, float], Seen]
    seen: list[Seen] = field(default_factory=list)

    @property
    def title(self) -> str:
        """How its figures begin."""
        return f"{self.model}, {self.callers} caller{'s' if self.callers > 1 else ''}, {self.name}"


@dataclass(slots=True)
class Bare:
    """The loop without a server: what can be had of the device."""

    encoder: Encoder
    ids: list[Any]
    size: int = 1
    rates: list[float] = field(default_factory=list)
    lone_ms: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def find_size(self, seconds: float) -> None:
        """Take the batch size that does most."""
        rates = {size: self._rate(size, seconds) for size in SIZES}
        self.size = max(rates, key=rates.__getitem__)

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
    tokenizer = part.folder / "tokenizer.json"
    train_tokenizer(tokenizer)
    os.environ["GPU_TOKENIZER"] = str(tokenizer)
    with asyncio.Runner() as runner, ExitStack() as stack:
        bare: dict[str, Bare] = {}
        series: list[Series] = []
        names = ("BERT-base", "MiniLM", "BERT-large")
        servers = {(model, name): server for model in names for name, server in _servers(part, model)}
        for server in servers.values():
            stack.enter_context(server)
        for model in names:
            shape = shape_of(model, small=not part.on_gpu)
            bare[model] = Bare(make_encoder(shape, part.device), _as_arrays(some_ids(shape, 64)))
            bare[model].find_size(0.3 if part.on_gpu else 0.05)
            service = _in_process(part, model)
            runner.run(service.start())
            stack.callback(lambda service=service: runner.run(service.stop(0)))
            counts = (1, 32, 256) if model == "BERT-base" else (1, 256)
            calls = functools.partial(_call_in_process, part, runner, service, model, bare[model].ids)
            series += [Series(model, "in process", callers, calls) for callers in counts]
            words = _words(tokenizer, shape)
            wire = [request_bytes(json.dumps(text).encode(), path="/predict", accept=ACCEPT) for text in words]
            for (of, name), server in servers.items():
                if of != model or not _came_up(part, name, server):
                    continue
                _same(part, server, f"{model}, {name}", bare[model].encoder, tokenizer, shape, words[0])
                calls = functools.partial(_call_over_http, part, server, wire, _meter(part, model, name))
                series += [Series(model, name, callers, calls) for callers in counts]
        _measure(part, bare, series)
        _judge(part, bare, series)


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

    tokenizers = max(1, min(4, (os.cpu_count() or 1) // 4))
    yield started("HTTP, tokenizer in a stage", "encoding_services:text", GPU_TOKENIZERS=str(tokenizers))
    if model != "BERT-base":
        return
    yield started("HTTP, tokenizer in the hook", "encoding_services:hooked")
    for name, (package, program) in PEERS.items():
        missing = [needed for needed in (package, "uvicorn", "numpy") if importlib.util.find_spec(needed) is None]
        if missing:
            part.note(f"{name} was not run: {', '.join(missing)} is not installed.")
        else:
            yield started(name, [str(HERE / program)])


def _came_up(part: Part, name: str, server: Server) -> bool:
    """Wait until it is ready; False for a peer that is not, which is noted."""
    try:
        server.ready(part.seconds_left() / 3 if name in PEERS else part.seconds_left() - 20)
    except ServerFailed as error:
        if name not in PEERS:
            raise
        part.note(f"{name} was not run: {error}")
        return False
    return True


def _in_process(part: Part, model: str) -> ps.Service:
    """The encoder alone, from ids to vectors, with the model of that name in its worker."""
    from encoding_services import Encode

    env = {"GPU_MODEL": model, VARIABLE: str(_meter(part, model, "in process"))}
    return ps.Service(ps.stage(Encode, env=env), name="ids")


def _meter(part: Part, model: str, name: str) -> Path:
    folder = part.folder / f"meter-{model}-{name}".replace(" ", "-")
    folder.mkdir(exist_ok=True)
    return folder


def _as_arrays(texts: list[list[int]]) -> list[Any]:
    if not HAS_NUMPY:
        return list(texts)
    import numpy as np

    return [np.array(text, np.int32) for text in texts]


def _words(tokenizer: Path, shape: Shape) -> list[str]:
    """Texts that have about as many word pieces as the encoder takes."""
    opened = open_tokenizer(tokenizer, 10_000)
    sample = some_texts(1, 1000)[0]
    pieces = sum(opened.encode(sample).attention_mask)
    return some_texts(64, int(1000 * shape.tokens / pieces) + 1)


# -- measuring --------------------------------------------------------------------------------------------------------


def _measure(part: Part, bare: dict[str, Bare], series: list[Series]) -> None:
    """Go through all of them in turns, and tell after each round."""
    warmup = _warmup(part)
    each = (part.seconds_left() - 10) / ROUNDS / (len(series) + 1.5 * len(bare))
    seconds = max(0.2, min(3.0 if part.on_gpu else 0.2, each - warmup - 0.8))
    part.note(f"Each figure is of {seconds:.1f} s behind {warmup} s that do not count.")
    for number in range(ROUNDS):
        for model, loop in bare.items():
            loop.measure(seconds)
            part.figure(f"{model}, bare loop: answered", "items/s", loop.rates)
            part.figure(f"{model}, bare loop: best batch", "items", loop.size)
            part.figure(f"{model}, bare loop: p50", "ms", loop.lone_ms)
            if part.on_gpu:
                part.figure(f"{model}, bare loop: device computes", "share", loop.shares)
            for one in series:
                if one.model == model:
                    if number and part.seconds_left() < seconds + warmup + 4:
                        part.note("There was no time for all rounds.")
                        return
                    one.seen.append(one.measure(one.callers, seconds + warmup))
                    _tell(part, one, loop)


def _tell(part: Part, one: Series, loop: Bare) -> None:
    part.figure(f"{one.title}: answered", "items/s", [seen.load.rate for seen in one.seen])
    ratios = [seen.load.rate / rate for seen, rate in zip(one.seen, loop.rates, strict=False)]
    part.figure(f"{one.title}: by the bare loop", "ratio", ratios)
    part.figure(f"{one.title}: p50", "ms", [seen.load.p50_ms for seen in one.seen])
    part.figure(f"{one.title}: p99", "ms", [seen.load.p99_ms for seen in one.seen])
    peer = not any(seen.worker_us for seen in one.seen)
    whose = "CPU of the server" if peer else "CPU of the coordinator"
    part.figure(f"{one.title}: {whose}", "µs/item", [seen.coordinator_us for seen in one.seen])
    if not peer:
        part.figure(f"{one.title}: CPU of the workers", "µs/item", [seen.worker_us for seen in one.seen])
    if any(seen.device for seen in one.seen):
        part.figure(f"{one.title}: device computes", "share", [seen.device for seen in one.seen])
    if one.name != "in process":
        part.figure(f"{one.title}: cores of the callers", "cores", [seen.load.cores for seen in one.seen])


def _call_over_http(part: Part, server: Server, wire: list[bytes], meter: Path, callers: int, seconds: float) -> Seen:
    warmup = _warmup(part)
    processes = max(1, min(8, (os.cpu_count() or 2) // 2))
    before, (coordinator, workers), started = read_notes(meter), costs(server.process.pid, WORKER), time.monotonic()
    found = load(server.port, wire, callers=callers, seconds=seconds - warmup, processes=processes, warmup=warmup)
    spent = time.monotonic() - started
    coordinator_after, workers_after = costs(server.process.pid, WORKER)
    notes = read_notes(meter) - before
    # CPU is of the whole time, so it is divided by the items of the whole time: those that the stage has noted.
    items = notes.items or found.rate * seconds
    return Seen(
        found,
        1e6 * (coordinator_after.cpu - coordinator.cpu) / max(1, items),
        1e6 * (workers_after.cpu - workers.cpu) / max(1, items),
        _share(part, notes, spent),
    )


def _call_in_process(
    part: Part, runner: asyncio.Runner, service: ps.Service, model: str, ids: list[Any], callers: int, seconds: float
) -> Seen:
    """The callers are tasks of this process, so the CPU of its coordinator is theirs too."""
    warmup = _warmup(part)
    meter = _meter(part, model, "in process")
    before, cpu, started = read_notes(meter), time.process_time(), time.monotonic()
    tree = cpu_seconds(os.getpid())
    latencies: list[float] = []

    async def caller(number: int) -> None:
        while (began := time.monotonic()) < started + seconds:
            await service.predict(ids[number % len(ids)])
            if started + warmup <= (now := time.monotonic()) < started + seconds:
                latencies.append(1000 * (now - began))
            number += 1

    async def all_callers() -> None:
        await asyncio.gather(*(caller(number) for number in range(callers)))

    runner.run(all_callers())
    spent = time.monotonic() - started
    notes = read_notes(meter) - before
    mine = time.process_time() - cpu
    workers = cpu_seconds(os.getpid()) - tree - mine  # other servers rest meanwhile
    latencies.sort()
    rate = len(latencies) / (seconds - warmup)
    p99 = latencies[int(len(latencies) * 0.99)] if latencies else 0.0
    seen = Load(rate, median(latencies or [0.0]), p99, mine / spent, 0)
    items = max(1, notes.items)
    return Seen(seen, 1e6 * mine / items, 1e6 * workers / items, _share(part, notes, spent))


def _warmup(part: Part) -> float:
    return 0.5 if part.on_gpu else 0.15


def _share(part: Part, notes: Notes, spent: float) -> float:
    return notes.device_seconds / spent if part.on_gpu else 0.0


# -- judging ----------------------------------------------------------------------------------------------------------


def _same(part: Part, server: Server, title: str, encoder: Encoder, tokenizer: Path, shape: Shape, text: str) -> None:
    """Check that a server gives the vector that the bare loop gives."""
    wanted = encoder.encode(_as_arrays([open_tokenizer(tokenizer, shape.tokens).encode(text).ids]))[0]
    server.until(lambda: server.answers(text), "no answer", part.seconds_left() - 20)
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
        if not one.seen or not (one.name == "in process" or one.name.startswith("HTTP, tokenizer in a stage")):
            continue
        inside = one.name == "in process"
        if one.callers == 256 and median(loop.rates) <= LIMIT_OF_AIM:
            aim = 0.95 if inside else 0.9
            ratio = median(seen.load.rate / rate for seen, rate in zip(one.seen, loop.rates, strict=False))
            part.check(f"{one.title}: at least {aim} of the bare loop", ratio >= aim, f"{ratio:.3f}")
        if one.callers == 1:
            more = 1.0 if inside else 2.0
            p50, lone = median(seen.load.p50_ms for seen in one.seen), median(loop.lone_ms)
            words = f"{p50:.2f} ms, the bare run {lone:.2f} ms"
            part.check(f"{one.title}: p50 within the bare run and {more:g} ms", p50 <= lone + more, words)
