"""What of one stage's inputs and results lies in slabs, and what travels inline all the same."""

from __future__ import annotations

from typing import Final

from penstock.core.dispatch import SentFrame
from penstock.core.payload import Handle, handle_of
from penstock.runtime.slabs import ResultPart, StageSlabs
from penstock.transport.framing import Frame, Kind, Status, encode_slab_note
from penstock.transport.messages import Released, pack

KEPT_SHARE: Final = 4
"""A stage that keeps views of more than one in so many bytes of a slab gets its inputs inline."""
FULL: Final = "full"
WAITING: Final = "waiting"
KEPT: Final = "kept"
OK: Final = int(Status.OK)


class StageMemory:
    """The slabs of one running stage, as its driver uses them for each batch.

    It counts in `inline_reasons` what travels inline all the same, by reason: all that is large, where the stage is a
    waiting one.
    """

    def __init__(self, slabs: StageSlabs, inline_reasons: dict[str, int]) -> None:
        self.slabs = slabs
        self._waits = not slabs.parts
        self.least = slabs.least
        """Payloads of so many bytes or more lie in a slab."""
        self._inline_reasons = inline_reasons
        self.told_kept = False
        """History: whether the log has said that the stage keeps views of its inputs."""

    def name_inputs(self, sent: SentFrame, kept_bytes: int) -> dict[int, Handle]:
        """The handles of the inputs that the worker reads where they lie, by their places; all others are sent.

        `kept_bytes` are those of the inputs that the stage keeps views of.
        """
        handles: dict[int, Handle] = {}
        inputs = self.slabs.inputs
        if self._waits:
            self._count(WAITING, sum([item.nbytes >= self.least for item in sent.items]))
        if inputs is None:
            return handles
        if kept_bytes * KEPT_SHARE > inputs.nbytes:
            self._count(KEPT, sum([item.nbytes >= self.least for item in sent.items]))
            return handles
        for place, item in enumerate(sent.items):
            handle = handle_of(item.payload)
            if handle is not None and handle.slab == inputs.number:
                handles[place] = handle
        sent.views = [sent.items[place].payload for place in handles]
        return handles

    def count_unplaced(self, frame: Frame) -> None:
        """Count the large results in `frame` that were sent: their worker's part had no room, or it has none."""
        named = {place for place, _ in frame.handles}
        for place, payload in enumerate(frame.payloads):
            if place not in named and payload.nbytes >= self.least and frame.statuses[place] == OK:
                self._count(WAITING if self._waits else FULL, 1)

    def _count(self, reason: str, n: int) -> None:
        self._inline_reasons[reason] = self._inline_reasons.get(reason, 0) + n


def released_note(part: ResultPart) -> bytes:
    """The frame that tells a worker which of its results nobody reads any more."""
    return encode_slab_note(Kind.RELEASED, pack(Released(part.released())))
