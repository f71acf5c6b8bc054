"""What handshake frames and failures in answers say: plain data as MessagePack, never pickle.

One field is an exception: `Launch` has the arguments of `setup` as pickled bytes.  Only our own processes write and
read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.codec.formats import Codec
from penstock.codec.type_cache import fill_type_cache
from penstock.config import LogOptions, StageOptions
from penstock.core.series import Series
from penstock.errors import InvalidItem, ProtocolError, StageFailed
from penstock.transport.framing import SLAB_VERSION

M = TypeVar("M", bound=msgspec.Struct)

MESSAGE_BYTES = 8 * 1024
"""Longest message of a `Problem`, in UTF-8; also the longest reason and path of an InvalidItem."""
TRACEBACK_BYTES = 64 * 1024
"""Longest traceback, in UTF-8."""
NAME_BYTES = 512
"""Longest name of a class, and longest `file:line`."""
MAX_NAMES = 64
"""Most names in an `mro`."""


class Hello(msgspec.Struct, frozen=True):
    """A worker's first message."""

    pid: int
    version: int = SLAB_VERSION


class StageRef(msgspec.Struct, frozen=True):
    """Where a stage's class or function is found: `module:qualname`.

    When it lives in the main script, `main_path` or `main_module` says how to import that script under another name.
    A path is bytes, as the system has it: not each is text that UTF-8 can carry.
    """

    module: str
    qualname: str
    main_path: bytes | None = None
    main_module: str | None = None


class SlabOrder(msgspec.Struct, frozen=True):
    """Which shared memory a worker reads its inputs from, and which it writes its results to.

    Each is the number of a slab, or -1 where there is none; the descriptors are on its command line.
    """

    inputs: int
    input_bytes: int
    """How large the slab of its inputs is."""
    results: int
    part_offset: int
    """Where its part of the slab of results begins."""
    part_bytes: int
    held: list[tuple[int, int, int]]
    """Results of the worker before it in its place that are still read: offset, bytes and serial number of each."""
    next_serial: int
    """From where it numbers its own."""
    least: int
    """Results of so many bytes or more go there."""


class Well(msgspec.Struct, frozen=True):
    """An item that ended well: what a stage without examples is examined by."""

    payload: bytes
    codec: int


class Launch(msgspec.Struct, frozen=True):
    """All that a process needs to know to be a stage's worker.  The worker checks it while it reads it."""

    service: str
    stage: str
    index: int
    count: int
    gpus: tuple[int | str, ...]
    ref: StageRef
    setup: bytes
    """The keyword arguments of `setup`, pickled."""
    sys_path: list[bytes]
    batched: bool
    max_size: int
    options: StageOptions
    first: bool
    last: bool
    validate: bool
    validate_results: bool
    allow_nan: bool
    logs: LogOptions
    behind: str
    """The remote stage whose results are its items; "" where it has none before it."""
    crossing: Codec
    """The format of its results, where it is not last."""
    served: bool
    """Whether every caller comes over HTTP: a result that only pickle carries is then of no use to anybody."""
    slabs: SlabOrder | None = None
    """None where everything travels in frames."""
    well: Well | None = None
    """An item that ended well before a worker of the stage lost its device."""
    concurrency: int = 0
    """How many frames a worker of a waiting stage has in progress at once; 0: the stage is plain."""


class Released(msgspec.Struct, frozen=True):
    """Results that nobody reads any more, by their serial numbers: their pages may be written to again."""

    serials: list[int]


class Kept(msgspec.Struct, frozen=True):
    """What a stage does with the inputs that lie in a slab, by their serial numbers."""

    kept: list[int]
    """Those of the batch that is answered next of which it keeps views."""
    ended: list[int]
    """Those of earlier batches whose last view is gone."""


class Trim(msgspec.Struct, frozen=True):
    """What of a worker's memory nobody has used for a while."""

    runs: list[tuple[int, int]]
    """Ranges of its part, as offset and bytes."""
    heap: bool = False
    """Whether it has been idle, so that what its C library keeps for the next batch is of no use."""


class Problem(msgspec.Struct, frozen=True):
    """Why an item or a worker failed, as text."""

    type_name: str
    mro: tuple[str, ...]
    message: str
    traceback: str = ""
    path: str = ""
    raised_at: str = ""
    """`file:line` of the innermost frame of the traceback, or ""."""
    on_examples: bool = False
    """Whether a worker that did not start was set up, and failed on its examples."""
    out_of_memory: bool = False
    """Whether a worker that did not start found too little memory."""


class Lost(msgspec.Struct, frozen=True):
    """A worker's device is lost: after a batch that failed, what ran well before fails too."""

    problem: Problem
    """Why."""
    well: Well | None = None
    begun: bool = True
    """Whether anything of the batch was run: not where an item before it had lost the device."""


class SeriesCount(msgspec.Struct, frozen=True):
    """How much was counted of a series since it was told last."""

    name: str
    """`/metrics` shows it as `penstock_NAME_total`."""
    labels: dict[str, str]
    n: float


class Counts(msgspec.Struct, frozen=True):
    """Everything that the stage of a worker has counted since the last of these."""

    series: list[SeriesCount]


COUNTS_BYTES = 64 * 1024
"""Most bytes of one `Counts`: more is told in several, so that an answer never waits for a large one.

A series takes 14 KB at most.
"""

_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    """`message` as MessagePack."""
    return _encoder.encode(message)


def unpack(payload: Any, kind: type[M]) -> M:
    """The message of `kind` in `payload`; ProtocolError if it is not one."""
    fill_type_cache(kind)
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a {kind.__name__}: {error}") from None


def counts_payloads(
    counted: Sequence[tuple[Series, float]], write: Callable[[Counts], bytes]
) -> Iterator[tuple[bytes, int]]:
    """Payloads of COUNTS, each with how many of the series are in it, in their order."""
    payload = write(Counts([SeriesCount(name, dict(labels), n) for (name, labels), n in counted]))
    if len(payload) <= COUNTS_BYTES or len(counted) == 1:
        yield payload, len(counted)
    else:
        half = len(counted) // 2
        yield from counts_payloads(counted[:half], write)
        yield from counts_payloads(counted[half:], write)


def stage_failure(problem: Problem, stage: str) -> StageFailed:
    """The error a caller sees for `problem`."""
    return StageFailed(
        problem.message,
        stage=stage,
        type_name=problem.type_name,
        mro=problem.mro,
        traceback=problem.traceback,
        raised_at=problem.raised_at,
    )


def invalid_input(problem: Problem) -> InvalidItem:
    """The error a caller sees for an item that is not valid."""
    return InvalidItem(problem.message, path=problem.path)
