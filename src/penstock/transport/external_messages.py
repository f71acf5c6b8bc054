"""What the handshake and the failures of workers from outside say: JSON, which every language reads.

Between the coordinator and its own workers the same things are MessagePack (`messages`).  Nothing here is trusted: what
a worker sends is cut to the bounds that our own workers keep.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from penstock.codec.formats import CODEC_NAMES, Codec
from penstock.codec.text import cut_middle, printable, without_controls
from penstock.codec.type_cache import fill_type_cache
from penstock.errors import ProtocolError
from penstock.transport.framing import VERSION
from penstock.transport.messages import MESSAGE_BYTES, NAME_BYTES, TRACEBACK_BYTES, Problem

M = TypeVar("M", bound=msgspec.Struct)

HANDSHAKE_BYTES: Final = 64 * 1024
"""Most bytes of a payload before the worker is READY, a failed setup aside; also the first claim of any frame."""
FAILURE_BYTES: Final = 1024 * 1024
"""Most bytes of the payload of a FAILED."""


class ExternalHello(msgspec.Struct, frozen=True):
    """A worker's first message.  Fields that we do not know are ignored."""

    version: int = VERSION
    pid: int = 0
    language: str = ""
    stage: str | None = None
    """None where the service has one remote stage, and the worker leaves it out."""
    codecs: tuple[str, ...] = tuple(CODEC_NAMES)
    """The formats that it reads and writes."""
    health: bool = False
    """Whether it answers CHECK."""


class ExternalLaunch(msgspec.Struct, frozen=True):
    """What a worker is told to be."""

    service: str
    stage: str
    index: int
    count: int
    """The most workers that the stage may have."""
    batched: bool
    max_size: int
    accepts: tuple[str, ...]
    max_body: int
    """The most bytes of a body that the worker may send."""
    validate_results: bool
    allow_nan: bool
    counts: bool = False
    """Whether the worker may send COUNTS; servers of before there was that do not say it."""


class ExternalFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an item, a setup, or a connection failed: the payload of FAILED and CHECKED, and of answers that failed."""

    message: str = ""
    type: str = ""
    """The class of the error, as `module.Name`."""
    traceback: str = ""
    path: str = ""
    """Where in an item that is not valid, as ``$.x[3]``."""
    raised_at: str = ""
    """`file:line`."""


_encoder = msgspec.json.Encoder()


def pack_json(message: msgspec.Struct) -> bytes:
    """`message` as JSON."""
    return _encoder.encode(message)


def unpack_json(payload: Any, kind: type[M]) -> M:
    """The message of `kind` in `payload`; ProtocolError if it is not one."""
    fill_type_cache(kind)
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        name = kind.__name__.removeprefix("External").upper()
        raise ProtocolError(f"invalid JSON in a {name}: {cut_middle(str(error), MESSAGE_BYTES)}") from None


def codecs_of(names: tuple[str, ...]) -> frozenset[Codec]:
    """The formats with these names; a name that we do not know is that of a format we never ask for."""
    return frozenset(CODEC_NAMES[name] for name in names if name in CODEC_NAMES)


def write_failure(problem: Problem) -> bytes:
    """`problem` as a worker from outside says it."""
    return pack_json(
        ExternalFailure(problem.message, problem.type_name, problem.traceback, problem.path, problem.raised_at)
    )


def read_external_failure(payload: Any) -> Problem:
    """What a worker from outside says of a failure, each text cut as our own; ProtocolError if it is none.

    The texts go to logs and clients, so no control character in them is left to act there.
    """
    failure = unpack_json(payload, ExternalFailure)
    name = _cut_name(failure.type)
    return Problem(
        type_name=name,
        mro=(name,) if name else (),
        message=_cut_text(failure.message, MESSAGE_BYTES),
        traceback=_cut_text(failure.traceback, TRACEBACK_BYTES),
        path=_cut_text(failure.path, MESSAGE_BYTES),
        raised_at=_cut_name(failure.raised_at),
    )


def _cut_text(text: str, limit: int) -> str:
    # Cut first: a text of a megabyte is not escaped as a whole.
    return cut_middle(without_controls(cut_middle(text, limit)), limit)


def _cut_name(text: str) -> str:
    return cut_middle(printable(cut_middle(text, NAME_BYTES)), NAME_BYTES)
