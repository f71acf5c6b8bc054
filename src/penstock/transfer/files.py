"""Read and write files beneath a folder that the operator has named.

Contract
--------
* Nothing outside the folder is touched, whatever lies in it and whoever changes it meanwhile: each name of a path is
  opened in the folder before it, and no symbolic link is followed.  The folder's own path is the operator's, and may
  have links.
* Only regular files are read.  A FIFO, a device or a socket is refused, and is not waited for.
* An output appears in its place whole, or not: it is written and synced under another name first, its part.  It can be
  read there by whoever may list and enter the folder, where this user may give them that, and else by this user alone,
  as its part.  The folders that are made for it can be read by whoever reads the one above.
* No call waits for anything but the disk.  That cannot be bounded: a network file system may hang.

TransferRejected is what is not there, is no file, or may not be touched; TransferFailed everything else, and a folder
of the operator that is not there, which may be one that is not mounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from penstock.errors import TransferFailed, TransferRejected
from penstock.hosting.file_rights import FILE_FLAGS, share_opened
from penstock.transfer.outgoing import Outgoing
from penstock.transfer.places import FilePlace
from penstock.transfer.time_limit import TimeLimit

CHUNK_BYTES = 1024 * 1024

_REFUSED: Final = {
    errno.ENOENT: "the file does not exist",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ELOOP: "a component of its path is a symbolic link",
    errno.ENOTDIR: "a component of its path is a symbolic link, or not a directory",
    errno.EISDIR: "it is a directory",
    errno.ENXIO: "it is not a regular file",
    errno.ENAMETOOLONG: "a name in its path is too long",
}
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def read_file(
    root: FilePlace, place: FilePlace, write: Callable[[bytes], object], *, most_bytes: int, limit: TimeLimit
) -> None:
    """Give the bytes of a file beneath `root` to `write`, piece by piece.

    Raises TransferRejected, TransferFailed and TransferCancelled.
    """
    with _told(place), _folder_of(root, place) as folder, _regular_file(folder, place) as (file, nbytes):
        if nbytes > most_bytes:
            raise TransferRejected(
                f"{place} has {nbytes} bytes, which is more than {most_bytes} (max_input_bytes, or max_bytes of a "
                "stage)"
            )
        taken = 0
        while piece := os.read(file, CHUNK_BYTES):
            limit.left()
            taken += len(piece)
            if taken > nbytes:
                break
            write(piece)
        if taken != nbytes:
            raise TransferFailed(f"{place} changed while it was read")


def write_part(root: FilePlace, place: FilePlace, part: str, outgoing: Outgoing, *, limit: TimeLimit) -> None:
    """Write a part beside its place, with the folders on the way to it, and sync both to the disk.

    A part of that name is replaced.  After an error there is none.  Raises as `read_file` does.
    """
    with _told(place), _folder_of(root, place, make=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(place.name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise TransferRejected(f"{place} exists and is not a regular file")
        _remove(folder, part)
        with contextlib.ExitStack() as undo:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(part, flags, 0o600, dir_fd=folder)
            undo.callback(_remove, folder, part)
            with open(file, "wb") as stream:  # noqa: PTH123  # a descriptor, and no path
                for chunk in outgoing.chunks():
                    limit.left()
                    stream.write(chunk)
                stream.flush()
                os.fsync(file)
            _sync(folder)
            undo.pop_all()


def finish_part(root: FilePlace, place: FilePlace, part: str) -> None:
    """Move a part to its place, whatever file is there; nothing where that was done before.

    Raises TransferFailed, and TransferRejected where there is neither the part nor a file in its place.
    """
    with _told(place), _folder_of(root, place) as folder:
        try:
            _share(part, folder)
            os.rename(part, place.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            os.stat(place.name, dir_fd=folder, follow_symlinks=False)
        _sync(folder)


def discard_part(root: FilePlace, place: FilePlace, part: str) -> None:
    """Remove a part; nothing where there is none.  Raises TransferFailed, or TransferRejected without permission."""
    with _told(place):
        try:
            with _folder_of(root, place) as folder:
                _remove(folder, part)
        except FileNotFoundError:  # the folder was never made
            return


@contextlib.contextmanager
def _told(place: FilePlace) -> Iterator[None]:
    """Turn what the system says into what a caller acts on."""
    try:
        yield
    except OSError as error:
        reason = _REFUSED.get(error.errno or 0)
        if reason is not None:
            raise TransferRejected(f"{place}: {reason}") from None
        raise TransferFailed(f"{place}: {error.strerror or error}") from None


@contextlib.contextmanager
def _folder_of(root: FilePlace, place: FilePlace, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that `place` is in, beneath `root`.  `make` makes the folders between."""
    try:
        folder = os.open("/" + "/".join(root.segments), _FOLDER)
    except OSError as error:
        raise TransferFailed(f"{place}: cannot open the allowed directory {root}: {error.strerror}") from None
    try:
        for name in place.segments[len(root.segments) : -1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                    _share(name, folder)
                    _sync(folder)
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _regular_file(folder: int, place: FilePlace) -> Iterator[tuple[int, int]]:
    """A descriptor of the file, to be read, and its size."""
    # To open a device can move it, and to open a FIFO wakes its writer: first a look.  The file can be another one a
    # moment later, so the open file is looked at again.
    mode = os.stat(place.name, dir_fd=folder, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        raise TransferRejected(f"{place}: it is not a regular file")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(place.name, flags, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise TransferRejected(f"{place}: it is not a regular file")
        yield file, found.st_size
    finally:
        os.close(file)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _share(name: str, folder: int) -> None:
    """Have a file or folder in `folder` be read by whoever reads that, as far as this user may give them that."""
    shared = os.open(name, FILE_FLAGS, dir_fd=folder)
    try:
        with contextlib.suppress(OSError), _readable(folder) as above:
            share_opened(shared, above)
    finally:
        os.close(shared)


def _sync(folder: int) -> None:
    """Have the disk keep the names in a folder."""
    with _readable(folder) as readable:
        os.fsync(readable)


@contextlib.contextmanager
def _readable(folder: int) -> Iterator[int]:
    """Another descriptor of a folder: one that was made with O_PATH can be neither synced nor asked for its rights."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield readable
    finally:
        os.close(readable)
