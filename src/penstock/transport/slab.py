"""Shared memory for large payloads: a slab, this process's map of it, and the views of its pieces.

Contract
--------
* A slab is an anonymous file in memory.  It has no name, so nothing of it is left when its processes have ended.  Its
  size is sealed: no process can shrink it, which would kill whoever reads there.
* Other processes get a descriptor that is open for reading only, and can make no writable map of it.  This guards
  against mistakes and not against malice, since they are of the same user.
* A piece has an exporter: a ctypes array of its pages.  Every view of the piece, every slice of one and every array
  made of one refers to the exporter.  When the last of them is gone the exporter is, and its weak reference tells that.
  `memoryview.release()` would not: it succeeds while slices and arrays live.

There is no seal against future writable maps: under it pages could not be given back to the system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, Final

from penstock.core.payload import Handle
from penstock.transport.forks import keep_from_forks
from penstock.transport.slab_pieces import exporter_type, whole_pages

SYSTEM_PAGE_BYTES: Final = mmap.ALLOCATIONGRANULARITY
"""A map begins at a multiple of it; some processors have larger pages than those of the allocator."""
NOT_MAPPED: Final = ctypes.c_void_p(-1).value


_open_slabs: Final[dict[int, int]] = {}
"""The bytes of each slab of this process that is not closed, by its descriptor; of all threads."""


def open_slab_bytes() -> int:
    """How many bytes all slabs of this process have that are not closed."""
    return sum(tuple(_open_slabs.values()))


class SlabsUnavailable(OSError):
    """This system has no shared memory of the kind that is needed, or refuses it; the message says why."""


class Slab:
    """A slab, and a writable map of the whole of it.

    `number` is that by which handles name it.  `readable` is the descriptor that is open for reading only.
    """

    refusal: OSError | None = None
    """Why the system gave no pages back, if it ever refused: memory is locked, or the system cannot do that."""
    _open = False

    def __init__(self, number: int, descriptor: int, readable: int, nbytes: int) -> None:
        self.number = number
        self.descriptor = descriptor
        self.readable = readable
        self.nbytes = nbytes
        self.memory = mmap.mmap(descriptor, nbytes)
        self._open = True
        _open_slabs[descriptor] = nbytes
        keep_from_forks(self)

    @classmethod
    def make(cls, number: int, nbytes: int) -> Slab:
        """A new slab of `nbytes`, which are whole pages.

        Raises:
            SlabsUnavailable: there is no `memfd_create`, `/proc` is not mounted, or the system refuses.
        """
        if not hasattr(os, "memfd_create"):
            raise SlabsUnavailable("this system has no memfd_create")
        import fcntl

        descriptor = readable = -1
        try:
            descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            readable = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            return cls(number, descriptor, readable, nbytes)
        except OSError as error:
            for opened in (descriptor, readable):
                if opened >= 0:
                    os.close(opened)
            raise SlabsUnavailable(f"{error.filename or 'the memory'}: {error.strerror}") from error

    def own_descriptors(self) -> list[int]:
        """What a fork of this process must not have: it could give back pages that are in use."""
        return [self.descriptor, self.readable] if self._open else []

    def close(self) -> None:
        """Close the descriptors: no further worker gets them.  The map stays while there are views of it."""
        if self._open:
            self._open = False
            del _open_slabs[self.descriptor]
            os.close(self.descriptor)
            os.close(self.readable)

    def __del__(self) -> None:
        # A service that was never stopped, and whose event loop is closed, has nobody else who could do this.
        self.close()

    def give_back(self, offset: int, nbytes: int) -> None:
        """Give the pages of this range back to the system, unless it refuses; whoever reads there then finds zeros."""
        self.refusal = give_back_pages(self.memory, offset, nbytes) or self.refusal


class ReadableSlab:
    """A map for reading only of a slab that another process has made.  It lasts as long as this process.

    The map is made by the C library, because Python gives away no address of a map that cannot be written to.

    Raises:
        OSError: the system refuses.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        address = library.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, NOT_MAPPED):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address: int = address

    def view(self, handle: Handle) -> tuple[memoryview, Any]:
        """A view of the piece that `handle` names, for reading only, and the weak reference that tells of its end.

        Who writes there all the same, past Python, ends this process.
        """
        exporter: Any = exporter_type(whole_pages(handle.nbytes)).from_address(self._address + handle.offset)
        return memoryview(exporter).cast("B").toreadonly()[: handle.nbytes], weakref.ref(exporter)


def give_back_pages(memory: mmap.mmap, offset: int, nbytes: int) -> OSError | None:
    """Give the pages of a range of `memory` back to the system, as far as they lie in it wholly; or why it refuses.

    It refuses after `mlockall`, and where it is no Linux kernel but one that imitates it.  The pages stay then, which
    harms nobody.
    """
    begin = -(-offset // SYSTEM_PAGE_BYTES) * SYSTEM_PAGE_BYTES
    end = (offset + nbytes) // SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES
    if end > begin:
        try:
            memory.madvise(mmap.MADV_REMOVE, begin, end - begin)
        except OSError as error:
            return error
    return None
