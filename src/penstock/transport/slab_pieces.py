"""The pieces of a slab that somebody has a view of: each has an exporter, and a weak reference tells of its end.

It has a file of its own because it is on the path of each large request, and compiled.  `transport.slab` says what an
exporter is for.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import lru_cache
from typing import Any

from penstock.core.payload import Handle
from penstock.core.slab_allocator import PAGE_BYTES


class Pieces:
    """The pieces of one slab, or of a part of it, that somebody in this process has a view of.

    `memory` is the slab's map in this process.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._in_use: dict[int, tuple[Any, Handle]] = {}
        """By the identity of the weak reference to its exporter."""
        self._gone: deque[Any] = deque()
        """Weak references whose exporters are gone.  Any thread may add one, at any moment."""

    def view(self, handle: Handle) -> memoryview:
        """A writable view of the piece that `handle` names, and that nobody has a view of yet."""
        exporter: Any = exporter_type(whole_pages(handle.nbytes)).from_buffer(self._memory, handle.offset)
        exporter.handle = handle
        reference = weakref.ref(exporter, self._gone.append)
        self._in_use[id(reference)] = (reference, handle)
        return memoryview(exporter).cast("B")[: handle.nbytes]

    @property
    def any_ended(self) -> bool:
        """Whether `ended` has anything to tell."""
        return bool(self._gone)

    def ended(self) -> list[Handle]:
        """Those whose last view has gone since this was asked last."""
        handles = []
        gone, in_use = self._gone, self._in_use
        while gone:
            handles.append(in_use.pop(id(gone.popleft()))[1])
        return handles

    def in_use(self) -> list[Handle]:
        """Those of which there is a view, or was one when `ended` was asked last."""
        return [handle for _, handle in self._in_use.values()]


def whole_pages(nbytes: int) -> int:
    """The bytes of the whole pages that `nbytes` take."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


@lru_cache(maxsize=1024)
def exporter_type(nbytes: int) -> Any:
    """The type of what exports `nbytes` of a piece, which are whole pages."""
    return ctypes.c_char * nbytes
