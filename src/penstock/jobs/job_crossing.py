"""Bring the inputs of jobs to workers from outside, and their results back.

A job is to such workers what a call in process is: its input crosses in the one format that is spoken with them, in
whichever it was submitted, and their results come in that format, whichever is asked for.  With workers of ours nothing
is converted here: they read and write every format themselves.
"""

from __future__ import annotations

from typing import Any

from penstock.codec.annotations import array_kind, bytes_kind
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.codec.schema import offers
from penstock.core.payload import Payload, join_payload
from penstock.errors import InvalidItem, StageFailed
from penstock.hosting.servable import Servable
from penstock.runtime.caller_formats import CallerFormats
from penstock.transport.messages import stage_failure
from penstock.worker.problems import describe_error


class JobCrossing:
    """The two ends of one service."""

    def __init__(self, service: Servable) -> None:
        first, last = service.stages[0], service.stages[-1]
        item, result = first.signature().item, last.signature().result
        allow_nan = service.options.nan_as_null
        self.outside_first = first.crossing is not Codec.PICKLE
        """Whether the input goes to workers from outside."""
        self.outside_last = last.crossing is not Codec.PICKLE
        """Whether the result comes from some."""
        self.converted_in = _readable(item) if self.outside_first else frozenset()
        """The formats of inputs that are converted, besides those that the workers read."""
        self.converted_out = offers(result) if self.outside_last else ()
        """Likewise of results."""
        self._first_stage, self._last_stage = first.name, last.name
        self._caller = CallerFormats(
            first.crossing, last.crossing, last.name, item=item, result=result, allow_nan=allow_nan
        )
        self._read = ItemDecoder(item).decode
        self._write = ItemEncoder(result, allow_nan=allow_nan).encode

    def sent_in(self, submitted: Codec) -> Codec:
        """The format in which an input that was submitted in this one goes to the service."""
        return self._caller.codec_in if self.outside_first else submitted

    def given_in(self, asked: Codec) -> Codec:
        """The format in which the service gives a result that is asked for in this one."""
        return self._caller.codec_out if self.outside_last else asked

    def item(self, payload: Payload, submitted: Codec) -> Payload:
        """The input as it goes to the service.

        Raises:
            InvalidItem: it cannot be read as the stage's item, or not be written in the format of its workers.
            StageFailed: the checks of its type have a fault.
        """
        if self.sent_in(submitted) is submitted:
            return payload
        try:
            value = self._read(submitted, join_payload(payload))
        except (InvalidItem, KeyboardInterrupt):
            raise
        except BaseException as error:  # the checks of a type are the user's code: SystemExit, too
            raise stage_failure(describe_error(error), self._first_stage) from error
        packed = self._caller.pack(value)
        if isinstance(packed, InvalidItem):
            raise packed
        return packed

    def result(self, payload: Payload, asked: Codec) -> bytes:
        """The result as it is asked for.

        Raises:
            StageFailed: it cannot be read as the stage's result, or not be written in that format.
        """
        if self.given_in(asked) is asked:
            return bytes(join_payload(payload))
        value = self._caller.unpack(payload)
        if isinstance(value, StageFailed):
            raise value
        try:
            return bytes(join_payload(self._write(asked, value)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # `EncodeFailed`, and as above
            raise stage_failure(describe_error(error), self._last_stage) from error


def _readable(item: Any) -> frozenset[Codec]:
    """The formats that an item of this type can be read from."""
    found = {Codec.JSON, Codec.MSGPACK}
    if bytes_kind(item) is not None:
        found.add(Codec.RAW)
    if array_kind(item) is not None:
        found.add(Codec.NPY)
    return frozenset(found)
