"""The frames between the coordinator and a worker: both ends, no I/O.

A frame is a header of fixed size and a body.  A BATCH carries n items to a worker; an ANSWERS carries their n answers
back.  Both lay their records out in columns (all ids, all lengths, ...), so that one `struct` call packs a batch.  The
other kinds carry one payload each: those of the handshake, and those by which a worker is examined or checked.

    header   magic "PS", version u8, kind u8, n u32, calls u32, frame id u64, seconds f64, body length u64
    BATCH    ids u64*n, lengths u64*n, remaining f64*n, codecs in u8*n, codecs out u8*n, request ids, payloads
    ANSWERS  ids u64*n, lengths u64*n, statuses u8*n, payloads
    others   one payload

Numbers are little-endian.  In a BATCH, `seconds` is the moment of sending on the host's monotonic clock: an item's
deadline is that moment plus its remaining time, however long the frame lay in the channel; `calls` is how many bytes
its request ids have, which are one text (`core.request_ids`).  In an ANSWERS, `seconds` is the time spent computing,
and `calls` counts the calls of `predict` that it took.  A payload of ALIGN_FROM_BYTES or more
starts at a multiple of 64 in the body, so that an array can be used without a copy.

Between the coordinator and its own workers a payload may lie in a slab, which is shared memory.  The frame then has its
handle in place of its bytes, and the highest bit of its length is set:

    handle   slab u64, offset u64, serial u64

A frame that has handles, or is a CANCEL or of a kind from RELEASED to DEVICE_MEMORY, is of version 5; every other is of
version 4.  A decoder takes version 5 only where it is told to, so that a worker from outside can name no memory and
need not know of any.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from penstock.core.payload import Handle, Payload, alignment_gap, payload_buffers, payload_size
from penstock.errors import ProtocolError

VERSION = 4
"""That of the frames which every worker reads."""
SLAB_VERSION = 5
"""That of the frames which only our own workers read: those that name pieces of slabs."""
MAX_BODY_BYTES = 1 << 40
"""Most bytes of a body.  No real frame is longer, so a header that says more is damaged."""
MAX_ITEMS = (1 << 32) - 1
"""Most items that a header can claim."""
ALIGN_FROM_BYTES = 1024
"""Payloads of so many bytes or more are aligned.  To pad a smaller one would cost more than to copy it."""
JOIN_BELOW_BYTES = 64 * 1024
"""Frames of fewer bytes are sent as one buffer: one copy costs less than a gathering write."""
SCRATCH_BYTES = 256 * 1024
"""Bytes of the buffer that frames are read into; a larger body gets a buffer of its own."""
FIRST_CLAIM_BYTES = 64 * 1024 * 1024
"""Most bytes that are allocated before they have come, because a header announces them.

The buffer of a longer body doubles while the bytes come, so that a damaged length cannot take all the machine's memory.
"""

_HEADER = struct.Struct("<2sBBIIQdQ")
_HANDLE = struct.Struct("<3Q")
_SHORTAGE = struct.Struct("<2I")
_DEVICE_MEMORY = struct.Struct("<Q")
_NAMED: Final = 1 << 63
"""The bit of a length that says: here is a handle, and the length is that of what it names."""
MAGIC = b"PS"
"""How each frame begins."""


class Kind(IntEnum):
    """What a frame is for.  The numbers travel: never reuse one."""

    HELLO = 1
    """Worker to coordinator: I am here and speak this version."""
    LAUNCH = 2
    """Coordinator to worker: be this stage."""
    READY = 3
    """Worker to coordinator: set up and warmed up."""
    FAILED = 4
    """Worker to coordinator: could not be set up, and why."""
    BATCH = 5
    ANSWERS = 6
    EXAMINE = 7
    """Coordinator to worker: run the stage's first example, after the batches before this."""
    EXAMINED = 8
    """Worker to coordinator: the example ran; a payload says why it failed."""
    CHECK = 9
    """Coordinator to worker: run the stage's `health`."""
    CHECKED = 10
    """Worker to coordinator: `health` returned; a payload says what it raised."""
    DETACH = 11
    """Worker from outside to coordinator: send nothing more; it answers what it holds, and closes."""
    RELEASED = 12
    """Coordinator to worker: nobody reads these results of it any more; a `Released`."""
    KEPT = 13
    """Worker to coordinator, before an ANSWERS: which inputs its stage keeps views of, and which no more;
    a `Kept`."""
    TRIM = 14
    """Coordinator to worker: give memory back to the system that it has not used for a while; a `Trim`.

    A worker whose stage keeps inputs says with a KEPT of which it does no more.
    """
    RECALL = 15
    """Coordinator to worker: leave out these items of a batch that it has not begun; their places, as u32."""
    SHORTAGE = 16
    """Worker to coordinator, before an ANSWERS or READY: the number of items that memory was short for at once, and the
    number that ran; two u32."""
    LOST = 17
    """Worker to coordinator, before an ANSWERS, after which it ends: its device is lost; a `Lost`."""
    SUSPECT = 18
    """Coordinator to worker: the item of the next BATCH was in one under which a worker ended."""
    DEVICE_MEMORY = 19
    """Worker to coordinator, before an ANSWERS or READY: the bytes that torch has reserved on its devices; a u64."""
    COUNTS = 20
    """Worker to coordinator, at any time after LAUNCH: what its stage has counted since the last one; a `Counts`.

    A worker from outside sends it only where its LAUNCH says that it may.
    """
    CANCEL = 21
    """Coordinator to worker of a waiting stage: cancel what runs of this BATCH, which is answered all the same."""


class Status(IntEnum):
    """How the worker answers one item of a batch."""

    OK = 0
    INVALID = 1
    FAILED = 2
    EXPIRED = 3
    """Its deadline passed before `predict`; it was not run."""
    RECALLED = 4
    """It was taken back before the batch began; it was not run.  Only our own workers say so."""


_NO_PLACES: Final[frozenset[int]] = frozenset()


class Frame:
    """A frame as it was read.  A column that frames of its kind do not have is empty."""

    __slots__ = (
        "_body",
        "_request_ids_bytes",
        "calls",
        "codecs_in",
        "codecs_out",
        "frame_id",
        "handles",
        "ids",
        "kind",
        "nbytes",
        "payloads",
        "recalled",
        "remaining",
        "seconds",
        "statuses",
    )

    def __init__(self, kind: Kind, frame_id: int, seconds: float, calls: int) -> None:
        self.kind = kind
        self.nbytes = 0
        """The length of its body."""
        self.frame_id = frame_id
        self.seconds = seconds
        self.calls = calls
        self.ids: tuple[int, ...] = ()
        self.payloads: list[memoryview] = []
        self.remaining: tuple[float, ...] = ()
        self.codecs_in: tuple[int, ...] = ()
        self.codecs_out: tuple[int, ...] = ()
        self.statuses: tuple[int, ...] = ()
        self.handles: list[tuple[int, Handle]] = []
        """The payloads that lie in a slab: the place of each, and where it lies.  In `payloads` it has no bytes yet."""
        self.recalled: frozenset[int] = _NO_PLACES
        """The places of the items of a BATCH that were taken back before it began."""
        self._body: memoryview | None = None
        self._request_ids_bytes = 0

    def put_request_ids(self, body: memoryview, nbytes: int) -> None:
        """Note where the ids of the requests are: behind the columns of a BATCH."""
        self._body, self._request_ids_bytes = body, nbytes

    def request_ids(self) -> bytes:
        """Those of all items, as `core.request_ids` joins them.  They are cut out here, since few stages ask."""
        if self._body is None:
            return b""
        begin = _BATCH_RECORD_BYTES * len(self.ids)
        return bytes(self._body[begin : begin + self._request_ids_bytes])


def control_frame(kind: Kind, payload: bytes) -> Frame:
    """A frame of the handshake, as it would have been read."""
    frame = Frame(kind, 0, 0.0, 0)
    frame.payloads = [memoryview(payload)]
    return frame


_PLACES: Final = f": a payload of {ALIGN_FROM_BYTES} bytes or more must start at a multiple of 64 in the body"
_BATCH_RECORD_BYTES: Final = 26
_ANSWER_RECORD_BYTES: Final = 17
"""What the columns take for each item."""


@lru_cache(maxsize=512)
def _batch_columns(n: int) -> struct.Struct:
    return struct.Struct(f"<{n}Q{n}Q{n}d{n}B{n}B")


@lru_cache(maxsize=512)
def _answer_columns(n: int) -> struct.Struct:
    return struct.Struct(f"<{n}Q{n}Q{n}B")


# -- writing --------------------------------------------------------------------------------------------------------


def encode_batch(
    frame_id: int,
    sent: float,
    ids: Sequence[int],
    payloads: Sequence[Payload],
    lengths: Sequence[int],
    remaining: Sequence[float],
    codecs_in: Sequence[int],
    codecs_out: Sequence[int],
    request_ids: bytes = b"",
    handles: Mapping[int, Handle] | None = None,
) -> list[Any]:
    """The buffers of a BATCH, to be written in order; `lengths` are those of `payloads`.

    `handles` says by their places which payloads are named in place of being sent.
    """
    version, named = VERSION, lengths
    if handles:
        version, named, lengths, payloads = _put_handles(handles, lengths, payloads)
    columns = _batch_columns(len(ids)).pack(*ids, *named, *remaining, *codecs_in, *codecs_out)
    return _assemble(version, Kind.BATCH, frame_id, sent, len(request_ids), columns + request_ids, lengths, payloads)


def encode_answers(
    frame_id: int,
    seconds: float,
    calls: int,
    ids: Sequence[int],
    payloads: Sequence[Payload],
    statuses: Sequence[int],
    lengths: Sequence[int] | None = None,
    handles: Mapping[int, Handle] | None = None,
) -> list[Any]:
    """The buffers of an ANSWERS, to be written in order.

    `lengths` are those of `payloads`, which are measured without them; `handles` as in `encode_batch`.
    """
    if lengths is None:
        lengths = [payload_size(p) for p in payloads]
    version, named = VERSION, lengths
    if handles:
        version, named, lengths, payloads = _put_handles(handles, lengths, payloads)
    columns = _answer_columns(len(ids)).pack(*ids, *named, *statuses)
    return _assemble(version, Kind.ANSWERS, frame_id, seconds, calls, columns, lengths, payloads)


def written_statuses(buffers: Sequence[Any]) -> tuple[int, ...] | None:
    """The statuses in an ANSWERS, as its buffers were written; None where they are of another frame.

    No payload is copied, which reading the frame would do.
    """
    _, _, kind, n, *_ = _HEADER.unpack_from(buffers[0])
    if kind != Kind.ANSWERS:
        return None
    columns, start = (buffers[0], _HEADER.size) if len(buffers) == 1 else (buffers[1], 0)
    begin = start + (_ANSWER_RECORD_BYTES - 1) * n
    return tuple(columns[begin : begin + n])


def encode_control(kind: Kind, payload: bytes, frame_id: int = 0) -> list[Any]:
    """The buffers of a frame of the handshake, of an examination or of a check; only the last two have an id."""
    return [_HEADER.pack(MAGIC, VERSION, kind, 1, 0, frame_id, 0.0, len(payload)) + payload]


def encode_slab_note(kind: Kind, payload: bytes, frame_id: int = 0) -> bytes:
    """A frame that only our own workers know, as a RELEASED; only a RECALL and a CANCEL have an id."""
    return _HEADER.pack(MAGIC, SLAB_VERSION, kind, 1, 0, frame_id, 0.0, len(payload)) + payload


def encode_recall(frame_id: int, places: Sequence[int]) -> bytes:
    """A RECALL of the items at `places` of the BATCH `frame_id`."""
    return encode_slab_note(Kind.RECALL, struct.pack(f"<{len(places)}I", *places), frame_id)


def _put_handles(
    handles: Mapping[int, Handle], lengths: Sequence[int], payloads: Sequence[Payload]
) -> tuple[int, list[int], list[int], list[Payload]]:
    """The version of a frame with `handles`, its column of lengths, and what it has in place of the payloads."""
    named, sizes, sent = list(lengths), list(lengths), list(payloads)
    for place, handle in handles.items():
        named[place] = handle.nbytes | _NAMED
        sizes[place] = _HANDLE.size
        sent[place] = _HANDLE.pack(handle.slab, handle.offset, handle.serial)
    return SLAB_VERSION, named, sizes, sent


def _assemble(
    version: int,
    kind: Kind,
    frame_id: int,
    seconds: float,
    calls: int,
    columns: bytes,
    lengths: Sequence[int],
    payloads: Sequence[Payload],
) -> list[Any]:
    parts: list[Any] = []
    offset = len(columns)
    if max(lengths, default=0) < ALIGN_FROM_BYTES:
        offset += sum(lengths)
        parts.extend(payloads)
    else:
        for length, payload in zip(lengths, payloads, strict=True):
            gap = alignment_gap(offset) if length >= ALIGN_FROM_BYTES else 0
            if gap:
                parts.append(bytes(gap))
            parts.append(payload)
            offset += gap + length
    header = _HEADER.pack(MAGIC, version, kind, len(lengths), calls, frame_id, seconds, offset)
    buffers = [header, columns, *_flat(parts)]
    return [b"".join(buffers)] if offset < JOIN_BELOW_BYTES else buffers


def _flat(parts: list[Any]) -> list[Any]:
    if list not in map(type, parts):
        return parts
    return [buffer for part in parts for buffer in payload_buffers(part)]


# -- reading --------------------------------------------------------------------------------------------------------


class FrameDecoder:
    """Turns a stream of bytes into frames, in whatever pieces it comes.

    Read into `get_buffer()`, then say how much came with `advance(n)`.  A large body is read straight into a buffer
    of its own; payloads are views of that buffer, never copies.  With `readonly` nobody can write through those views,
    so that a payload can be decoded a second time.

    `max_body` and `max_items` are the most that a frame may claim.  `first_claim` is the most bytes that are allocated
    for a body before they have come.  Only with `slabs` may a frame name pieces of them.
    """

    def __init__(
        self,
        *,
        max_body: int = MAX_BODY_BYTES,
        max_items: int = MAX_ITEMS,
        first_claim: int = FIRST_CLAIM_BYTES,
        readonly: bool = False,
        slabs: bool = False,
    ) -> None:
        self._max_body = max_body
        self._max_items = max_items
        self._first_claim = first_claim
        self._readonly = readonly
        self._slabs = slabs
        self._scratch = bytearray(SCRATCH_BYTES)
        self._start = 0
        self._end = 0
        self._body: bytearray | None = None
        self._length = 0
        self._filled = 0
        self._header: tuple[Any, ...] = ()

    def bound(self, *, max_body: int, max_items: int) -> None:
        """Set what a frame may claim from now on: who has said HELLO may send more than who has not."""
        self._max_body = max_body
        self._max_items = max_items

    def get_buffer(self) -> memoryview:
        """The memory that the next bytes belong in; it is never empty."""
        if self._body is not None:
            if self._filled == len(self._body):
                # This is not done in `advance`: its caller may still have a view of the buffer, which bars resizing.
                self._body.extend(bytes(min(self._filled, self._length - self._filled)))
            return memoryview(self._body)[self._filled :]
        return memoryview(self._scratch)[self._end :]

    def advance(self, n: int) -> list[Frame]:
        """The frames that are completed by `n` bytes read into the last `get_buffer()`.

        ProtocolError if the bytes are not frames.  The stream is useless then, and so are frames from the same read.
        """
        if self._body is None:
            self._end += n
            return self._parse()
        self._filled += n
        if self._filled < self._length:
            return []
        body, self._body = self._body, None
        return [_read_frame(self._header, body, self._readonly)]

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are completed by `data`, which is copied."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            n = min(len(buffer), len(rest))
            buffer[:n] = rest[:n]
            buffer.release()
            rest = rest[n:]
            frames.extend(self.advance(n))
        return frames

    def end(self) -> None:
        """Note the end of the stream; ProtocolError if it ended inside a frame."""
        if self._body is not None or self._end > self._start:
            raise ProtocolError("the channel ended inside a frame")

    def _parse(self) -> list[Frame]:
        frames: list[Frame] = []
        scratch = self._scratch
        while self._end - self._start >= _HEADER.size:
            header = _HEADER.unpack_from(scratch, self._start)
            length = self._check(header)
            begin = self._start + _HEADER.size
            if begin + length > self._end:
                # A body that fits into the scratch buffer is completed there; a larger one gets its own buffer.
                if length > SCRATCH_BYTES - _HEADER.size:
                    self._move_to_body(header, begin, length)
                break
            self._start = begin + length
            frames.append(_read_frame(header, scratch[begin : begin + length], self._readonly))
        self._compact()
        return frames

    def _check(self, header: tuple[Any, ...]) -> int:
        magic, version, kind, n, _, _, _, length = header
        if magic != MAGIC:
            raise ProtocolError(f"not a frame: it starts with {magic!r}")
        if version != VERSION and not (version == SLAB_VERSION and self._slabs):
            raise ProtocolError(f"the peer uses version {version} of the protocol, this process version {VERSION}")
        if kind not in _KINDS or (_FIRST_SLAB_KIND <= kind != _COUNTS and version != SLAB_VERSION):
            raise ProtocolError(f"unknown kind of frame: {kind}")
        if length > self._max_body or n > self._max_items or n * 9 > max(length, 9):
            hint = ": its numbers must be little-endian" if length >= MAX_BODY_BYTES << 8 else ""
            raise ProtocolError(f"a frame announces {n} items in {length} bytes{hint}")
        return int(length)

    def _move_to_body(self, header: tuple[Any, ...], begin: int, length: int) -> None:
        self._header = header
        self._length = length
        self._body = bytearray(min(length, self._first_claim))
        self._filled = self._end - begin
        self._body[: self._filled] = self._scratch[begin : self._end]
        self._start = self._end = 0

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            kept = self._scratch[self._start : self._end]
            self._scratch[: len(kept)] = kept
            self._start, self._end = 0, len(kept)


def encode_shortage(failed: int, ran: int) -> bytes:
    """A SHORTAGE: there was no memory for `failed` items at once, and for `ran`."""
    return encode_slab_note(Kind.SHORTAGE, _SHORTAGE.pack(failed, ran))


def read_shortage(frame: Frame) -> tuple[int, int]:
    """How many items failed together, and how many ran."""
    if len(frame.payloads[0]) != _SHORTAGE.size:
        raise ProtocolError("a SHORTAGE must have two numbers")
    failed, ran = _SHORTAGE.unpack(frame.payloads[0])
    return failed, ran


def encode_device_memory(nbytes: int) -> bytes:
    """A DEVICE_MEMORY: torch has reserved `nbytes` of the memory of devices."""
    return encode_slab_note(Kind.DEVICE_MEMORY, _DEVICE_MEMORY.pack(nbytes))


def read_device_memory(frame: Frame) -> int:
    """How many bytes torch has reserved."""
    if len(frame.payloads[0]) != _DEVICE_MEMORY.size:
        raise ProtocolError("a DEVICE_MEMORY must have one number")
    nbytes: int = _DEVICE_MEMORY.unpack(frame.payloads[0])[0]
    return nbytes


def queue_frames(waiting: deque[Frame], frames: list[Frame]) -> None:
    """Append `frames`, which a worker has read, to those that it has not begun; a RECALL marks its BATCH among these.

    A RECALL that finds no such batch has come too late, and says nothing.
    """
    for frame in frames:
        if frame.kind is not _RECALL:
            waiting.append(frame)
            continue
        for batch in waiting:
            if batch.kind is _BATCH and batch.frame_id == frame.frame_id:
                batch.recalled |= _read_places(frame.payloads[0])


def _read_places(payload: memoryview) -> frozenset[int]:
    if len(payload) % 4:
        raise ProtocolError(f"a RECALL has {len(payload)} bytes, which is not a list of indexes")
    return frozenset(struct.unpack(f"<{len(payload) // 4}I", payload))


# Looked up for every frame: to make a member of an enum from its number takes ten times as long.
_KINDS: Final = {int(kind): kind for kind in Kind}
_BATCH: Final = Kind.BATCH
_ANSWERS: Final = Kind.ANSWERS
_RECALL: Final = Kind.RECALL
_FIRST_SLAB_KIND: Final = int(Kind.RELEASED)
_COUNTS: Final = int(Kind.COUNTS)


def _read_frame(header: tuple[Any, ...], body: bytearray, readonly: bool) -> Frame:
    # Annotated: where mypyc knows that these are numbers, it multiplies them without a call.
    n: int = header[3]
    calls: int = header[4]
    frame = Frame(_KINDS[header[2]], header[5], header[6], calls)
    frame.nbytes = header[7]
    view = memoryview(body).toreadonly() if readonly else memoryview(body)
    if frame.kind is _BATCH:
        columns = _columns(_batch_columns, n, body)
        frame.ids = columns[:n]
        lengths = columns[n : 2 * n]
        frame.remaining = columns[2 * n : 3 * n]
        frame.codecs_in = columns[3 * n : 4 * n]
        frame.codecs_out = columns[4 * n :]
        frame.calls = 0
        frame.put_request_ids(view, calls)
        frame.payloads = _slice(view, _BATCH_RECORD_BYTES * n + calls, lengths, frame.handles, header[1])
    elif frame.kind is _ANSWERS:
        columns = _columns(_answer_columns, n, body)
        frame.ids = columns[:n]
        lengths = columns[n : 2 * n]
        frame.statuses = columns[2 * n :]
        frame.payloads = _slice(view, _ANSWER_RECORD_BYTES * n, lengths, frame.handles, header[1])
    else:
        frame.payloads = [view[: header[7]]]
    return frame


def _columns(layout: Any, n: int, body: bytearray) -> tuple[Any, ...]:
    try:
        return layout(n).unpack_from(body)  # type: ignore[no-any-return]  # struct is typed as Any
    except struct.error:
        raise ProtocolError(f"a frame of {len(body)} bytes is too short for its {n} records") from None


def _slice(
    view: memoryview, offset: int, lengths: Sequence[int], handles: list[tuple[int, Handle]], version: int
) -> list[memoryview]:
    """The payloads of a frame; those that it names are put into `handles`, and are empty."""
    payloads: list[memoryview] = []
    total = len(view)
    may_name = version == SLAB_VERSION
    for length in lengths:
        named = may_name and length >= _NAMED
        nbytes = _HANDLE.size if named else length
        begin = offset + alignment_gap(offset) if nbytes >= ALIGN_FROM_BYTES else offset
        offset = begin + nbytes
        if offset > total:
            raise ProtocolError(f"a frame is shorter than its payloads{_PLACES}")
        if named:
            handles.append((len(payloads), _read_handle(view, begin, length - _NAMED)))
            payloads.append(_NOTHING)
        else:
            payloads.append(view[begin:offset])
    if offset != total:
        raise ProtocolError(f"a frame has {total - offset} bytes too many{_PLACES}")
    return payloads


_NOTHING: Final = memoryview(b"")


def _read_handle(view: memoryview, begin: int, nbytes: int) -> Handle:
    slab, offset, serial = _HANDLE.unpack_from(view, begin)
    return Handle(slab, offset, nbytes, serial)
