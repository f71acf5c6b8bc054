"""The one door for inputs and outputs: fetch, store, move and remove them, wherever their URLs lead.

Contract
--------
* A URL is judged at every call: where the operator's options allow it no more, TransferRejected.
* Every call blocks, so it belongs in a thread, and ends in `timeout` seconds, or soon after `stopped` says so.  A name
  that hangs in the system's resolver does not hold it, a file system that hangs does.
* What fails leaves nothing behind.
* An output is written under the attempt's own name beside its place.  `finish_output` moves it there, and
  `discard_output` removes it; both can be called again and again.  The web has no such names: there an output is put in
  its place at once, perhaps more than once, and to finish and to discard do nothing.
* Safe to use from several threads at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from penstock.config import MIB
from penstock.errors import ConfigError, TransferFailed
from penstock.option_fields import SECONDS, check_options, option
from penstock.transfer import files
from penstock.transfer.addresses import NET_OPTION, Network
from penstock.transfer.allowed_places import AllowedPlaces
from penstock.transfer.fetcher import Fetcher
from penstock.transfer.outgoing import Outgoing
from penstock.transfer.part_names import download_name, part_name
from penstock.transfer.place_rules import PlaceRules
from penstock.transfer.places import FilePlace, ObjectPlace, WebPlace, parse_file_or_object
from penstock.transfer.time_limit import TimeLimit

if TYPE_CHECKING:
    from penstock.transfer.obstore_ import ObjectStorage

_SUFFIX: Final = re.compile(r"\.[A-Za-z0-9]{1,16}")

Stopped = Callable[[], bool]


def never() -> bool:
    """Nobody stops it."""
    return False


@dataclass(frozen=True)
class TransferOptions:
    """What may be transferred, and within which limits."""

    folder: Path
    """Where downloads lie.  It is made for this user alone; one that others may enter is refused."""
    allowed_inputs: AllowedPlaces = AllowedPlaces("--allow-input")
    allowed_outputs: AllowedPlaces = AllowedPlaces("--allow-output")
    allowed_nets: tuple[Network, ...] = ()
    """Networks that may be reached although they are not public."""
    net_option: str = NET_OPTION
    max_input: int = option(1024 * MIB, "maximum bytes of one input", minimum=1)
    timeout: float = 60.0
    """Seconds that one transfer may take, in either direction."""

    def __post_init__(self) -> None:
        check_options(self)
        SECONDS.take("timeout", self.timeout)

    @property
    def rules(self) -> PlaceRules:
        """Which URLs may be transferred."""
        return PlaceRules(self.allowed_inputs, self.allowed_outputs, self.allowed_nets, self.net_option)


@dataclass(frozen=True)
class Downloaded:
    """An input in a file of ours, until it is removed."""

    path: Path
    nbytes: int
    content_type: str
    """As the web server or the object store says it; "" where nobody does."""

    def read(self) -> bytes:
        """Its bytes.  Raises TransferFailed where the file is gone: somebody may have tidied up the folder."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise TransferFailed(f"cannot read the downloaded file: {error.strerror or error}") from None

    def remove(self) -> None:
        """Delete the file; harmless if it is gone."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class FetchedInput:
    """An input in memory."""

    body: bytes
    content_type: str
    """As that of `Downloaded`."""


class Transfers:
    """Carries the inputs and outputs of jobs.

    Raises ConfigError where the folder for downloads cannot be had, or a library is missing that an allowed place
    needs.
    """

    def __init__(self, options: TransferOptions, fetcher: Fetcher | None = None) -> None:
        self.options = options
        self._rules = options.rules
        self._fetcher = fetcher or Fetcher(options.allowed_nets, net_option=options.net_option)
        _make_private(options.folder)
        prefixes = (*options.allowed_inputs.prefixes, *options.allowed_outputs.prefixes)
        if any(isinstance(prefix, ObjectPlace) for prefix in prefixes):
            self._objects  # noqa: B018  # whether the library is there is asked at start, and not of the first job

    # -- what may be named --------------------------------------------------------------------------------------------

    def check_input(self, url: str) -> None:
        """Raise TransferRejected where `url` can never be an input.  No name is looked up, and nothing is opened."""
        self._rules.check_input(url)

    def check_output(self, url: str) -> None:
        """Raise TransferRejected where `url` can never be an output.  No name is looked up, and nothing is opened."""
        self._rules.check_output(url)

    def target_of(self, url: str) -> str:
        """The target that can be down, with all outputs in it: a folder of the operator's, a bucket, or "" of the web.

        Raises TransferRejected where `url` can never be an output.
        """
        match self._rules.check_output(url):
            case FilePlace() as place:
                return str(self.options.allowed_outputs.root_of(place))
            case ObjectPlace() as place:
                return f"s3://{place.bucket}"
            case WebPlace():
                return ""

    @staticmethod
    def is_put_in_place(url: str) -> bool:
        """Whether an output at `url` is in its place as soon as it is written: nothing is left to finish."""
        return isinstance(parse_file_or_object(url), WebPlace)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def download(self, url: str, job_id: str, fence: int, stopped: Stopped = never) -> Downloaded:
        """Fetch an input into a file of its own; the caller removes it.

        The file is named for the attempt, and keeps the suffix of the URL.  Raises TransferRejected, TransferFailed
        and TransferCancelled.
        """
        place = parse_file_or_object(url)
        suffix = Path(place.name).suffix
        name = f"{download_name(job_id, fence)}{suffix if _SUFFIX.fullmatch(suffix) else ''}"
        with contextlib.suppress(OSError):  # what removes old files from temporary folders may have taken it
            self.options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.options.folder / name
        with _new_file(path, str(place)) as file:
            content_type = self._get(url, file.write, stopped, self.options.max_input)
            nbytes = file.tell()
        return Downloaded(path, nbytes, content_type)

    def read(self, url: str, stopped: Stopped = never, most_bytes: int | None = None) -> FetchedInput:
        """Fetch an input into memory; at most `most_bytes`, or `max_input` without.  Raises as `download` does."""
        pieces: list[bytes] = []
        most = self.options.max_input if most_bytes is None else min(most_bytes, self.options.max_input)
        content_type = self._get(url, pieces.append, stopped, most)
        return FetchedInput(b"".join(pieces), content_type)

    def _get(self, url: str, write: Callable[[bytes], object], stopped: Stopped, most_bytes: int) -> str:
        place = self._rules.check_input(url)
        limit = TimeLimit(str(place), self.options.timeout, stopped)
        limit.left()
        match place:
            case FilePlace():
                root = self.options.allowed_inputs.root_of(place)
                files.read_file(root, place, write, most_bytes=most_bytes, limit=limit)
                return ""
            case ObjectPlace():
                return self._objects.read(place, write, most_bytes=most_bytes, limit=limit)
            case WebPlace():
                return self._fetcher.get(place, write, most_bytes=most_bytes, limit=limit)

    # -- outputs ------------------------------------------------------------------------------------------------------

    def write_output(
        self,
        url: str,
        job_id: str,
        fence: int,
        source: bytes | Path,
        content_type: str = "application/octet-stream",
        stopped: Stopped = never,
    ) -> None:
        """Store the bytes, or the bytes of the file, as the output of an attempt.

        Raises TransferRejected, TransferFailed and TransferCancelled.
        """
        place = self._rules.check_output(url)
        limit = TimeLimit(str(place), self.options.timeout, stopped)
        limit.left()
        outgoing = Outgoing(source, content_type)
        match place:
            case FilePlace():
                root = self.options.allowed_outputs.root_of(place)
                files.write_part(root, place, part_name(place.name, job_id, fence), outgoing, limit=limit)
            case ObjectPlace():
                self._objects.write(_part_of(place, job_id, fence), outgoing, limit=limit)
            case WebPlace():
                self._fetcher.put(place, outgoing, limit=limit)

    def finish_output(self, url: str, job_id: str, fence: int) -> None:
        """Move what an attempt has written to its place; nothing where that was done before.

        Raises TransferFailed, and TransferRejected where there is neither, so that it can never be done.
        """
        match self._rules.check_output(url):
            case FilePlace() as place:
                root = self.options.allowed_outputs.root_of(place)
                files.finish_part(root, place, part_name(place.name, job_id, fence))
            case ObjectPlace() as place:
                self._objects.move(_part_of(place, job_id, fence), place)
            case WebPlace():
                pass

    def discard_output(self, url: str, job_id: str, fence: int) -> None:
        """Remove what an attempt has written and nobody will finish; nothing where there is none.

        Raises TransferFailed and TransferRejected.
        """
        match self._rules.check_output(url):
            case FilePlace() as place:
                root = self.options.allowed_outputs.root_of(place)
                files.discard_part(root, place, part_name(place.name, job_id, fence))
            case ObjectPlace() as place:
                self._objects.remove(_part_of(place, job_id, fence))
            case WebPlace():
                pass

    @cached_property
    def _objects(self) -> ObjectStorage:
        try:
            from penstock.transfer.obstore_ import ObjectStorage
        except ModuleNotFoundError:
            raise ConfigError("s3:// needs a library: pip install 'penstock[s3]'") from None
        return ObjectStorage(self.options.timeout)


def _part_of(place: ObjectPlace, job_id: str, fence: int) -> ObjectPlace:
    return ObjectPlace(place.bucket, (*place.segments[:-1], part_name(place.name, job_id, fence)))


def _make_private(folder: Path) -> None:
    """Have a folder that only this user may enter.  Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot create the download directory {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"the download directory {folder} must belong to this user and be closed to others: chmod 700"
        )


@contextlib.contextmanager
def _new_file(path: Path, shown: str) -> Iterator[BinaryIO]:
    """A file of this user alone to be written; it is removed where it could not be filled.

    What goes wrong with it is TransferFailed: there may be room on the disk later.
    """
    with contextlib.ExitStack() as undo:
        try:
            path.unlink(missing_ok=True)
            undo.callback(path.unlink, missing_ok=True)
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                yield file
        except OSError as error:
            raise TransferFailed(f"{shown}: cannot write the download: {error.strerror or error}") from None
        undo.pop_all()
