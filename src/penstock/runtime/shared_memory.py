"""The slabs of one running service in use: who gets a piece, what travels inline, what is given back, what is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.config import ServiceOptions
from penstock.core.arriving import Arriving, ArrivingBody
from penstock.core.clock import Clock
from penstock.core.counters import INLINE_REASONS
from penstock.runtime.slab_upkeep import SlabUpkeep
from penstock.runtime.slabs import Arrivals, OpenSlabs
from penstock.runtime.spec import StageSpec
from penstock.runtime.stage_driver import StageDriver
from penstock.runtime.stage_memory import StageMemory

ARRIVALS_NAME: Final = "arrivals"
FULL: Final = "full"


class ShownSlab:
    """One slab as `/metrics` shows it."""

    def __init__(self, name: str, nbytes: int, used_bytes: int, kept_bytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.used_bytes = used_bytes
        self.kept_bytes = kept_bytes


class SharedMemory:
    """What an engine has of slabs; `start` makes them, before any worker, and `stop` lets go of them.

    Without `open_slabs`, or where that finds no shared memory, everything travels inline.
    """

    def __init__(
        self,
        service: str,
        specs: Sequence[StageSpec],
        options: ServiceOptions,
        stages: Sequence[StageDriver],
        clock: Clock,
        open_slabs: OpenSlabs | None,
    ) -> None:
        self._service = service
        self._specs = specs
        self._options = options
        self._stages = stages
        self._clock = clock
        self._open = open_slabs
        self._least = options.shm_threshold
        self._arrivals: Arrivals | None = None
        self._arriving: Arriving | None = None
        self._upkeep: SlabUpkeep | None = None
        self._close = _nothing
        self._counts: dict[str, int] = {}
        """How many large payloads travelled inline, by reason; nothing where there were never slabs."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waking = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the slabs, if there are to be any; workers that start from now on inherit them.

        Raises:
            ConfigError: `shm_bytes` was set to more than this machine allows.
        """
        self._loop = loop
        slabs = None if self._open is None else self._open(self._service, self._specs, self._options, self._clock.now)
        if slabs is None:
            return
        self._close = slabs.close
        self._counts.update(dict.fromkeys(INLINE_REASONS, 0))
        for stage, own in zip(self._stages, slabs.stages, strict=True):
            if own is None:
                continue
            if own.parts:
                stage.use_slabs(own, self._counts)
            else:
                stage.memory = StageMemory(own, self._counts)
        arrivals = self._arrivals = slabs.arrivals
        if arrivals is not None:
            self._arriving = Arriving(arrivals.slab.nbytes, arrivals.lease, self._counts)
        self._upkeep = SlabUpkeep(self._service, arrivals, self._stages, self._clock)
        self._upkeep.start()

    def stop(self) -> None:
        """Give out nothing more, and let go of the memory.  What somebody still has a view of stays for them."""
        if self._upkeep is not None:
            self._upkeep.stop()
        self._arrivals = self._arriving = self._upkeep = None
        for stage in self._stages:
            stage.forget_slabs()
        self._close()
        self._close = _nothing  # it refers to the slabs, and a stopped engine may stay for long

    # -- pieces -------------------------------------------------------------------------------------------------------

    def piece(self, nbytes: int) -> memoryview | None:
        """See `HostedEngine.piece`."""
        arrivals = self._arrivals
        if arrivals is None or nbytes < self._least:
            return None
        piece = arrivals.lease(nbytes)
        if piece is None:
            self._counts[FULL] = self._counts.get(FULL, 0) + 1
        return piece

    def piece_for(self, body: ArrivingBody) -> memoryview | None:
        """See `HostedEngine.piece_for`."""
        arriving = self._arriving
        if arriving is None or body.announced < self._least:
            return None
        piece = arriving.piece_for(body, self._clock.now())
        if arriving.busy and not self._waking:
            self._wake()
        return piece

    def arrived(self, body: ArrivingBody) -> None:
        """See `HostedEngine.arrived`."""
        if self._arriving is not None:
            self._arriving.arrived(body)

    def _wake(self) -> None:
        assert self._loop is not None
        self._waking = True
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._waking = False
        if self._arriving is not None and self._arriving.go_on():
            self._wake()

    # -- what is shown ------------------------------------------------------------------------------------------------

    @property
    def slabs(self) -> list[ShownSlab]:
        """Each slab; none where everything travels inline."""
        stages = [stage for stage in self._stages if stage.memory is not None]
        if self._upkeep is None:
            return []
        shown = []
        kept = self._stages[0].kept_bytes
        if self._arrivals is not None:
            shown.append(ShownSlab(ARRIVALS_NAME, self._arrivals.slab.nbytes, self._arrivals.used_bytes, kept))
        for stage in stages:
            assert stage.memory is not None
            parts = stage.memory.slabs.parts
            if not parts:
                continue
            behind = self._stages[stage.index + 1].kept_bytes if not stage.last else 0
            used = sum([part.used_bytes for part in parts])
            name = stage.name if stage.name != ARRIVALS_NAME else f"stage {stage.name}"
            shown.append(ShownSlab(name, parts[0].slab.nbytes, used, behind))
        return shown

    @property
    def inline_reasons(self) -> dict[str, int]:
        """How many large payloads travelled inline, by reason; none where all do."""
        return dict(self._counts)


def _nothing() -> None:
    """What is done to close slabs that are not there."""
