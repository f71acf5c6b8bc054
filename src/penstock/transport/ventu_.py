"""The old batching protocol, which workers of the library ventu speak: the coordinator's end, no I/O.

A message is its length, four bytes big-endian, and so many bytes of MessagePack.  The worker's first message is empty.
From then on each batch answers a message.  A batch is a map of ids to items, and the worker's answer is a map of the
same ids to results.  An id under `error_ids` or `error_id` failed, and its result is then a text that says why.

`VentuExchange` makes frames of this, so that everything behind it knows one protocol: its worker says HELLO and READY,
and answers a BATCH with ANSWERS, as a worker from outside does that speaks `transport.framing`.

Contract
--------
* The worker has one batch at a time; the next ones wait for its answer.
* A batch is sent without the items whose deadline has passed.
* Each batch is answered exactly once, with all its items, in order.
* The memory for a message is `FIRST_CLAIM`, or at most twice what has come of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import count
from typing import Any, Final

import msgspec

from penstock.codec.text import cut_middle
from penstock.errors import ProtocolError
from penstock.transport.external_messages import ExternalHello, pack_json, write_failure
from penstock.transport.framing import Frame, Kind, Status, control_frame
from penstock.transport.messages import MESSAGE_BYTES, Problem

LENGTH_BYTES: Final = 4
ID_BYTES: Final = 36
"""Of each id: the worker joins those that failed without a separator, and a reader cuts them by their length."""
FIRST_CLAIM: Final = 64 * 1024
"""The bytes of the buffer for a message; the one of a longer message doubles while the bytes come."""
LONGEST_BATCH: Final = (1 << 31) - 1
"""Most bytes of a message to the worker: the published one reads the length as a signed number."""
REASON_BYTES: Final = 1024
"""Most bytes of what is told of an item that failed."""
READABLE_BYTES: Final = 64 * 1024
"""Most bytes of a reason that is opened, because it is MessagePack: opened, a byte may take a hundred."""
JOINED: Final = "error_ids"
"""The key of the ids that failed, joined."""
LISTED: Final = "error_id"
"""The key of the ids that failed, as a list."""

NO_RESULT: Final = "the worker's response has no result for this item"
NO_REASON: Final = "the worker gave no reason for the error of this item"
TOO_LARGE: Final = "the batch is too large for the old batching protocol, with at most 2 GiB per message"


class _Batch:
    """A batch on its way, and what is known of each of its items: until more is known, that it has expired."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.places: dict[str, int] = {}
        """For the id of each item that is sent, its place in the batch."""
        self.statuses = [int(Status.EXPIRED)] * len(frame.ids)
        self.payloads = [memoryview(b"")] * len(frame.ids)

    def put(self, place: int, status: Status, payload: memoryview) -> None:
        self.statuses[place] = int(status)
        self.payloads[place] = payload

    def put_failure(self, place: int, status: Status, message: str) -> None:
        self.put(place, status, memoryview(write_failure(Problem("", (), message))))

    def answers(self, calls: int) -> Frame:
        frame = Frame(Kind.ANSWERS, self.frame.frame_id, 0.0, calls)
        frame.ids = self.frame.ids
        frame.statuses = tuple(self.statuses)
        frame.payloads = self.payloads
        return frame


class VentuExchange:
    """What is said on one connection: reads the worker's messages as frames, and writes BATCH frames as messages.

    It is the `StreamDecoder` of the connection.  `pid` is the worker's, 0 where nobody knows it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._buffer = bytearray(LENGTH_BYTES + FIRST_CLAIM)
        self._end = 0
        self._longest = 0
        """Most bytes that a message may claim; the first one has none."""
        self._greeted = False
        self._waiting: deque[_Batch] = deque()
        self._sent: _Batch | None = None
        """The batch that the worker has."""
        self._ids = count(1)

    # -- what is sent ---------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether every batch has been answered."""
        return self._sent is None and not self._waiting

    def put(self, frame: Frame) -> None:
        """Take over a BATCH, to be sent when one is due."""
        self._waiting.append(_Batch(frame))

    def take(self, now: float) -> bytearray | Frame | None:
        """What is next at `now`: a message to be sent, or the ANSWERS of a batch that need not be sent at all.

        None while the worker has a batch, and while there is none.
        """
        if self._sent is not None or not self._waiting:
            return None
        batch = self._waiting.popleft()
        items = {}
        frame = batch.frame
        for place, (payload, left) in enumerate(zip(frame.payloads, frame.remaining, strict=True)):
            if now < frame.seconds + left:
                name = f"{next(self._ids):0{ID_BYTES}}"
                batch.places[name] = place
                items[name] = payload
        if not items:
            return batch.answers(calls=0)
        if sum(map(len, items.values())) + _ENTRY_BYTES * len(items) > LONGEST_BATCH:
            for place in batch.places.values():
                batch.put_failure(place, Status.FAILED, TOO_LARGE)
            return batch.answers(calls=0)
        self._sent = batch
        return write_message(items)

    # -- what comes -----------------------------------------------------------------------------------------------

    def bound(self, *, max_body: int, max_items: int) -> None:  # noqa: ARG002  # an answer has the items of its batch
        """Set the most bytes of a message from now on."""
        self._longest = max_body

    def get_buffer(self) -> memoryview:
        """The memory for the next bytes: first of a message of `FIRST_CLAIM`, then as much again as has come."""
        if self._end == len(self._buffer):
            # Not done in `advance`: its caller may still have a view of the buffer, which bars resizing.
            rest = LENGTH_BYTES + self._length() - self._end
            self._buffer.extend(bytes(min(self._end, rest)))
        return memoryview(self._buffer)[self._end :]

    def advance(self, n: int) -> list[Frame]:
        """The HELLO or the ANSWERS that `n` more bytes complete; ProtocolError if the worker may not send them."""
        self._end += n
        if self._greeted and self._sent is None:
            raise ProtocolError("the worker sent a message without having a batch")
        if self._end < LENGTH_BYTES:
            return []
        length = self._length()
        if not self._greeted and length:
            raise ProtocolError("the first message of a worker of the old batching protocol is empty")
        if length > self._longest:
            raise ProtocolError(f"a message announces {length} bytes; the limit is {self._longest}")
        end = LENGTH_BYTES + length
        if self._end < end:
            return []
        if self._end > end:
            raise ProtocolError("the worker sent more than one message for one batch")
        return [self._read(self._take_message())]

    def end(self) -> None:
        """Note the end of the stream; ProtocolError if it ended inside a message."""
        if self._end:
            raise ProtocolError("the connection ended inside a message")

    def _length(self) -> int:
        return int.from_bytes(self._buffer[:LENGTH_BYTES], "big")

    def _take_message(self) -> memoryview:
        """The message that has come, without its length, in memory that is its own."""
        end, self._end = self._end, 0
        if len(self._buffer) <= LENGTH_BYTES + FIRST_CLAIM:
            # Copied: a result of a few bytes may be kept for long, and the whole buffer with it.
            return memoryview(self._buffer[LENGTH_BYTES:end])
        message, self._buffer = self._buffer, bytearray(LENGTH_BYTES + FIRST_CLAIM)
        return memoryview(message)[LENGTH_BYTES:]

    def _read(self, message: memoryview) -> Frame:
        if not self._greeted:
            self._greeted = True
            return control_frame(Kind.HELLO, pack_json(ExternalHello(pid=self._pid)))
        batch, self._sent = self._sent, None
        assert batch is not None
        results, failed = read_answer(message, batch.places.keys())
        for name, place in batch.places.items():
            result = results.get(name)
            if name in failed:
                batch.put_failure(place, Status.INVALID, NO_REASON if result is None else reason_in(result))
            elif result is None:
                batch.put_failure(place, Status.FAILED, NO_RESULT)
            else:
                batch.put(place, Status.OK, result)
        return batch.answers(calls=1)


# -- messages ---------------------------------------------------------------------------------------------------------

_ENTRY_BYTES: Final = ID_BYTES + 2 + 5
"""Most bytes that an item takes besides itself: its id and the heads of both."""
_encoder = msgspec.msgpack.Encoder()
_maps = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_names = msgspec.msgpack.Decoder(list[str])
_BAD_INPUT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_MAP: Final = (0x80, 0xDE)
_LIST: Final = (0x90, 0xDC)
"""How a map and a list begin in MessagePack: with fewer than 16 entries, and with a count of two bytes."""
_HEADS: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5}
"""The bytes before the content of a `bin` or a `str`, by how it begins; a `str` of less than 32 bytes has one."""


def write_message(items: dict[str, memoryview]) -> bytearray:
    """The message with `items`, in one buffer: the published worker reads it with a single call."""
    message = bytearray(LENGTH_BYTES)
    _encoder.encode_into(items, message, LENGTH_BYTES)
    message[:LENGTH_BYTES] = (len(message) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return message


def read_answer(message: memoryview, sent: Collection[str]) -> tuple[dict[str, memoryview], set[str]]:
    """The results by their ids, as views of `message`, and the ids that failed.

    ProtocolError if it is no answer to a batch with the ids `sent`.  What a map or a list claims to have is looked at
    before it is read, so that no more is made of it than there were items.
    """
    entries = _claimed(message, _MAP)
    if entries is None:
        raise ProtocolError("the worker's response is not a map")
    if entries > len(sent) + 2:
        raise ProtocolError(f"the worker's response has {entries} entries for {len(sent)} items")
    try:
        found = _maps.decode(message)
    except _BAD_INPUT as error:
        raise ProtocolError(
            f"the worker's response cannot be decoded: {cut_middle(str(error), MESSAGE_BYTES)}"
        ) from None
    if len(found) != entries:
        raise ProtocolError("the worker's response has an id twice")
    failed = [*_joined(found.pop(JOINED, None), len(sent)), *_listed(found.pop(LISTED, None), len(sent))]
    if not all(name in sent for name in [*found, *failed]):
        raise ProtocolError("the worker's response has an unknown id")
    return {name: _content(memoryview(raw)) for name, raw in found.items()}, set(failed)


def _joined(raw: msgspec.Raw | None, most: int) -> list[str]:
    """The ids that are joined in `raw`."""
    if raw is None:
        return []
    joined = _content(memoryview(raw))
    if len(joined) % ID_BYTES or len(joined) > most * ID_BYTES:
        raise ProtocolError(f"{JOINED} has {len(joined)} bytes; expected at most {most} ids of {ID_BYTES} bytes each")
    return [str(joined[i : i + ID_BYTES], "ascii", "replace") for i in range(0, len(joined), ID_BYTES)]


def _listed(raw: msgspec.Raw | None, most: int) -> list[str]:
    """The ids that are listed in `raw`."""
    if raw is None:
        return []
    entries = _claimed(raw, _LIST)
    if entries is None or entries > most:
        raise ProtocolError(f"{LISTED} is not a list of at most {most} ids")
    try:
        return _names.decode(raw)
    except _BAD_INPUT as error:
        raise ProtocolError(f"{LISTED} is not a list of ids: {cut_middle(str(error), MESSAGE_BYTES)}") from None


def _claimed(message: Any, kind: tuple[int, int]) -> int | None:
    """How many entries the map or list at the beginning of `message` says it has; None where there is no such thing."""
    start = bytes(memoryview(message)[:5])
    fixed, counted = kind
    if start and start[0] & 0xF0 == fixed:
        return start[0] & 0x0F
    if start and start[0] in (counted, counted + 1):
        return int.from_bytes(start[1 : 3 if start[0] == counted else 5], "big")
    return None


def _content(raw: memoryview) -> memoryview:
    """What a `bin` or a `str` holds; ProtocolError if `raw` is something else."""
    first = raw[0]
    head = 1 if 0xA0 <= first <= 0xBF else _HEADS.get(first)
    if head is None:
        raise ProtocolError("the worker's response has a value that is neither bytes nor text")
    return raw[head:]


def reason_in(content: memoryview) -> str:
    """What the worker says of an item that failed, as text of at most `REASON_BYTES`.

    Where the worker speaks MessagePack, its reason is an object in that: it is told as JSON.
    """
    try:
        text = str(content, "utf-8")
    except UnicodeDecodeError:
        text = _opened(content) if len(content) <= READABLE_BYTES else ""
        text = text or str(content[:READABLE_BYTES], "utf-8", "backslashreplace")
    return cut_middle(text, REASON_BYTES)


def _opened(content: memoryview) -> str:
    """What `content` is as MessagePack, as text; "" where it is none, or nothing that JSON has."""
    try:
        said = msgspec.msgpack.decode(content)
        return said if isinstance(said, str) else msgspec.json.encode(said).decode()
    except (*_BAD_INPUT, TypeError, ValueError):
        return ""
