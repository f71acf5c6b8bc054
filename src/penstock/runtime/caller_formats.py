"""Write the items of callers in process as a service takes them, and read the results that it gives them.

Where the first stage is ours an item is pickled; for workers from outside it is written in a format that they read.
Likewise, a result of theirs is read as what it is: bytes that nobody vouches for, and never a pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeAlias

from msgspec.structs import replace

from penstock.codec import pickle_
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import Codec
from penstock.codec.text import cut_middle
from penstock.core.payload import (
    Buffer,
    LeasePiece,
    Payload,
    copy_to_piece,
    handle_of,
    join_payload,
)
from penstock.errors import InvalidItem, StageFailed
from penstock.runtime.crossings import crossings
from penstock.runtime.spec import StageSpec
from penstock.transport.messages import MESSAGE_BYTES, stage_failure
from penstock.worker.problems import describe_error

Packed: TypeAlias = Buffer | InvalidItem
"""An input as it is submitted: its payload, or the reason why it has none."""


def no_piece(_nbytes: int) -> memoryview | None:
    """A place for a payload where there is no slab: none."""
    return None


def pack_item(x: Any, lease: LeasePiece = no_piece) -> Packed:
    """Copy `x` into one payload, pickled; where it lies is for `lease` to say."""
    try:
        payload = pickle_.dumps(x)
    except ValueError as error:
        return _invalid(str(error), error.__cause__)
    return _copied(payload, lease)


def _copied(payload: Payload, lease: LeasePiece) -> Buffer:
    piece = copy_to_piece(payload, lease)
    return bytes(join_payload(payload)) if piece is None else piece


class CallerFormats:
    """The formats of one service's callers in process.

    Args:
        codec_in: the format of their items.
        codec_out: the format of their results.
        last_stage: whose results they are, for errors.
        item: the type of one item, where `codec_in` is no pickle.
        result: the type of one result, where `codec_out` is no pickle.
        allow_nan: whether an item's NaN is written as null in JSON.
    """

    def __init__(
        self,
        codec_in: Codec,
        codec_out: Codec,
        last_stage: str,
        *,
        item: Any = Any,
        result: Any = Any,
        allow_nan: bool = False,
    ) -> None:
        self.codec_in = codec_in
        self.codec_out = codec_out
        self.pack = pack_item if codec_in is Codec.PICKLE else self._write
        """Copies an item into one payload, which lies where a lease says, or says why it cannot."""
        self._last_stage = last_stage
        self._encode = ItemEncoder(item, allow_nan=allow_nan, subject="the input").encode
        self._decode = ItemDecoder(result).decode

    @classmethod
    def of(cls, specs: Sequence[StageSpec], *, allow_nan: bool) -> Self:
        """Those of a service with these stages.

        Raises:
            ConfigError: two remote stages in a row have no format in common.
        """
        formats = crossings(specs)
        first, last = specs[0].external, specs[-1].external
        return cls(
            formats[0],
            formats[-1],
            specs[-1].name,
            item=Any if first is None else first.item,
            result=Any if last is None else last.result,
            allow_nan=allow_nan,
        )

    def unpack(self, payload: Payload) -> Any:
        """The result in `payload`; a StageFailed, not raised, where it cannot be read."""
        try:
            buffer = join_payload(payload)
            if handle_of(buffer) is not None:
                buffer = bytearray(buffer)  # the result is its caller's, who may keep it, and write to it
            if self.codec_out is Codec.PICKLE:
                return pickle_.loads(buffer)
            return self._decode(self.codec_out, buffer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the checks of a type are the user's code: SystemExit, too
            return self._unreadable(error)

    def _write(self, x: Any, lease: LeasePiece = no_piece) -> Packed:
        try:
            return _copied(self._encode(self.codec_in, x), lease)
        except KeyboardInterrupt:
            raise
        except EncodeFailed as error:
            return _invalid(str(error), error.__cause__)
        except BaseException as error:  # noqa: BLE001  # as above
            return _invalid(
                f"the input cannot be written as {self.codec_in.name}: {describe_error(error).message}", error
            )

    def _unreadable(self, error: BaseException) -> StageFailed:
        """The failure of an item whose result cannot be read in this process."""
        problem = describe_error(error.__cause__ or error)
        if self.codec_out is Codec.PICKLE:
            words = f"the result cannot be unpickled here: {problem.message}"
        else:
            words = cut_middle(f"the result cannot be read from {self.codec_out.name}: {error}", MESSAGE_BYTES)
        return stage_failure(replace(problem, message=words), self._last_stage)


def _invalid(reason: str, cause: BaseException | None) -> InvalidItem:
    invalid = InvalidItem(cut_middle(reason, MESSAGE_BYTES))
    invalid.__cause__ = cause
    return invalid
