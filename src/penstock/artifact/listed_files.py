"""Read files of a folder that somebody else may have written: through no link, of no more bytes than were expected.

Contract
--------
* Nothing is opened but regular files and folders below the given one; a link, a pipe or a device is refused by name.
* Every complaint is an `ArtifactInvalid` with the file's path below the folder, which its text has in printable
  characters alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from io import FileIO
from typing import BinaryIO, NamedTuple

from penstock.artifact.manifest import FileEntry
from penstock.artifact.manifest_json import parents_of
from penstock.codec.text import printable
from penstock.errors import ArtifactInvalid
from penstock.hosting.file_rights import FILE_FLAGS

CHUNK = 1 << 20
KERNEL_CHUNK = 64 << 20
"""Bytes that the kernel copies at a time: a signal waits for them."""
NOT_BY_KERNEL = frozenset(
    {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
)
"""Errors of `copy_file_range` where kernel, file system or sandbox do not copy."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that git has put in place of a large one."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileStamp(NamedTuple):
    """The parts of a file's state that change with its content.

    The last one cannot be put back by somebody who may only write to the file.
    """

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int


def read_small(folder: int, path: str, *, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes."""
    with _opened(folder, path) as file:
        content = file.read(max(limit + 1, len(LFS_POINTER)))
    _check_no_pointer(path, content)
    if len(content) > limit:
        raise _invalid(path, f"has more than {limit} bytes")
    return content


def read_listed(folder: int, path: str, entry: FileEntry, *, stamp: FileStamp | None = None) -> bytes:
    """The content of a file that the manifest lists, after its size and sha256 were found right.

    It is not hashed where its stamp is `stamp`: that is the one with which its sha256 was right.
    """
    with _opened(folder, path) as file:
        _check_size(file, path, entry)
        before = _stamp_of(file)
        content = file.read(entry.bytes + 1)
        same = before == _stamp_of(file) == stamp
    if not same or len(content) != entry.bytes:
        _check_content(path, entry, len(content), sha256(content).hexdigest())
    return content


def check_listed(
    folder: int, files: Mapping[str, FileEntry], *, besides: Iterable[str], of_size_alone: Collection[str] = ()
) -> dict[str, FileStamp]:
    """Check that the folder holds `files` and `besides`, nothing else, and that each of `files` is as listed.

    Files in `of_size_alone` are not read.  Returns the stamp of each of `files`, from before it was read.
    """
    check_listing(folder, files, besides=besides)
    unread = frozenset(of_size_alone)
    return {
        path: _check_size_of(folder, path, entry) if path in unread else _check_file(folder, path, entry)
        for path, entry in files.items()
    }


def open_regular(folder: int, path: str) -> int:
    """A descriptor of a regular file below the folder, which the caller closes."""
    with _opened(folder, path) as file:
        return os.dup(file.fileno())


def read_stamps(folder: int, files: Iterable[str], *, besides: Iterable[str]) -> dict[str, FileStamp]:
    """The stamp of each of `files`, after the folder was found to hold them and `besides`, and nothing else."""
    check_listing(folder, files, besides=besides)
    found: dict[str, FileStamp] = {}
    for path in files:
        with _opened(folder, path) as file:
            found[path] = _stamp_of(file)
    return found


def check_listing(folder: int, files: Iterable[str], *, besides: Iterable[str]) -> None:
    """Check that the folder holds `files` and `besides`, and nothing else; no file is opened."""
    expected = {*files, *besides}
    folders = {parent for path in expected for parent in parents_of(path)}
    found: set[str] = set()
    for path, kind in _walk(folder, ""):
        if path in (expected if kind == "file" else folders if kind == "folder" else ()):
            found.add(path)
        elif path in expected:
            raise _invalid(path, f"is a {kind}, and should be a file{_remedy(kind)}")
        else:
            raise _invalid(path, f"is a {kind} that the manifest does not list{_remedy(kind)}")
    for path in sorted(expected - found):
        raise _invalid(path, "is missing")


def copy_listed(folder: int, path: str, entry: FileEntry, target: FileIO) -> None:
    """Write the content of a file to `target`; it is of the listed size.

    Nothing is hashed: whoever needs to know what the copy is hashes the copy.  The kernel copies where it can, and
    shares blocks where the file system can.

    Raises:
        OSError: it cannot be written.
    """
    with open(open_regular(folder, path), "rb", buffering=0) as file:

        def read(size: int) -> bytes:
            with _named(path):
                return file.read(size)

        _check_size(file, path, entry)
        left = entry.bytes
        while left and (copied := _copied_by_kernel(file, target, min(left, KERNEL_CHUNK))):
            left -= copied
        while left and (chunk := read(min(left, CHUNK))):
            _write_all(target, chunk)
            left -= len(chunk)
        if read(1):  # somebody is writing it, and may never end
            raise _invalid(path, "grows while it is read")
        if left:
            raise _invalid(path, f"has {entry.bytes - left} bytes, but the manifest lists {entry.bytes}")


def _copied_by_kernel(file: FileIO, target: FileIO, size: int) -> int:
    """Bytes that the kernel has copied from where both files are; 0 where it does not, and where the file ends."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(file.fileno(), target.fileno(), size)
    except OSError as error:
        if error.errno in NOT_BY_KERNEL:
            return 0
        raise


def _write_all(target: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[target.write(rest) :]


def _check_file(folder: int, path: str, entry: FileEntry) -> FileStamp:
    """Check that a file is as listed; its stamp is from before it was read."""
    digest, size = sha256(), 0
    with _opened(folder, path) as file:
        _check_size(file, path, entry)
        stamp = _stamp_of(file)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if size > entry.bytes:  # somebody is writing it, and may never end
                raise _invalid(path, "grows while it is read")
    _check_content(path, entry, size, digest.hexdigest())
    return stamp


def _check_size_of(folder: int, path: str, entry: FileEntry) -> FileStamp:
    with _opened(folder, path) as file:
        _check_size(file, path, entry)
        return _stamp_of(file)


def _stamp_of(file: BinaryIO) -> FileStamp:
    found = os.fstat(file.fileno())
    return FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _check_no_pointer(path: str, content: bytes) -> None:
    if content.startswith(LFS_POINTER):
        raise _invalid(path, "is a git-lfs pointer, not the file: get the files with `git lfs pull`")


def _check_size(file: BinaryIO | FileIO, path: str, entry: FileEntry) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != entry.bytes:
        _check_no_pointer(path, file.read(len(LFS_POINTER)))
        raise _invalid(path, f"has {size} bytes, but the manifest lists {entry.bytes}")


def _check_content(path: str, entry: FileEntry, size: int, digest: str) -> None:
    if (size, digest) != (entry.bytes, entry.sha256):
        raise _invalid(path, f"was changed after it was saved: its sha256 is {digest}, not {entry.sha256}")


def _remedy(kind: str) -> str:
    return ": copy the directory with the files that its links point to, with `cp -rL`" if kind == "link" else ""


def _invalid(path: str, what: str) -> ArtifactInvalid:
    """What is wrong with a file; its name, which anybody may have chosen, is written in printable characters."""
    return ArtifactInvalid(f"{printable(path) or 'the directory'} {what}", file=path)


def _walk(folder: int, above: str) -> Iterator[tuple[str, str]]:
    """Each path below a folder and what it is, in order of the names; only folders are gone into."""
    with _named(above), os.scandir(folder) as entries:
        found = sorted((entry.name, _kind(entry)) for entry in entries)
    for name, kind in found:
        path = f"{above}{name}"
        yield path, kind
        if kind == "folder":
            with _named(path):
                below = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            try:
                yield from _walk(below, f"{path}/")
            finally:
                os.close(below)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special file"


@contextmanager
def _opened(folder: int, path: str) -> Iterator[BinaryIO]:
    """A regular file, each part of whose path was opened by itself, so that no link on the way is followed."""
    *folders, name = path.split("/")
    here = folder
    with _named(path):
        try:
            for part in folders:
                below = os.open(part, FOLDER_FLAGS, dir_fd=here)
                if here != folder:
                    os.close(here)
                here = below
            descriptor = os.open(name, FILE_FLAGS, dir_fd=here)
        finally:
            if here != folder:
                os.close(here)
        with open(descriptor, "rb") as raw:  # noqa: PTH123  # of a descriptor, there is no path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _invalid(path, "is not a regular file")
            yield raw


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Say which file it was that the system did not open or read."""
    try:
        yield
    except FileNotFoundError as error:
        raise _invalid(path, "is missing") from error
    except OSError as error:
        if error.errno == errno.ELOOP:  # no link is followed
            raise _invalid(path, f"cannot be read: it is a link{_remedy('link')}") from error
        more = "; raise `ulimit -n`" if error.errno == errno.EMFILE else ""
        raise _invalid(path, f"cannot be read: {error.strerror}{more}") from error
