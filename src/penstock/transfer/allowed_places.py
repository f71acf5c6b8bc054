"""Decide which files and objects may be read or written: those beneath a prefix that the operator has named.

Contract
--------
* Without a prefix no file and no object is allowed.
* A prefix allows what lies beneath it, segment by segment: ``file:///data/in`` allows ``file:///data/in/a`` and not
  ``file:///data/in2/a``, nor itself.
* Of several prefixes over one place the longest counts.

What http and https may reach is decided by address, in `addresses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import ConfigError, TransferRejected
from penstock.transfer.places import FilePlace, ObjectPlace, WebPlace, parse_place

P = TypeVar("P", FilePlace, ObjectPlace)


@dataclass(frozen=True)
class AllowedPlaces:
    """The prefixes of one option."""

    option: str = "--allow-input"
    """What an operator sets to allow more, for messages."""
    prefixes: tuple[FilePlace | ObjectPlace, ...] = ()

    @classmethod
    def parse(cls, text: str, option: str) -> AllowedPlaces:
        """The prefixes of a comma-separated list; a comma in a name is written ``%2C``.

        Raises ConfigError for what is no prefix.
        """
        found = []
        for url in filter(None, (part.strip() for part in text.split(","))):
            try:
                place = parse_place(url)
            except TransferRejected as error:
                raise ConfigError(f"{option}: {error}") from None
            if isinstance(place, WebPlace):
                raise ConfigError(
                    f"{option}: {place} is an http(s) URL; write prefixes of file:// or s3://, and allow networks "
                    "with allow_net"
                )
            found.append(place)
        return cls(option, tuple(found))

    def root_of(self, place: P) -> P:
        """The longest prefix that `place` lies beneath.  Raises TransferRejected where there is none."""
        roots = [prefix for prefix in self.prefixes if isinstance(prefix, type(place)) and _is_beneath(place, prefix)]
        if not roots:
            raise TransferRejected(f"{place} is not allowed: it is not below a prefix of {self.option}")
        return max(roots, key=lambda root: len(root.segments))


def _is_beneath(place: FilePlace | ObjectPlace, prefix: FilePlace | ObjectPlace) -> bool:
    if isinstance(place, ObjectPlace) and isinstance(prefix, ObjectPlace) and place.bucket != prefix.bucket:
        return False
    count = len(prefix.segments)
    return len(place.segments) > count and place.segments[:count] == prefix.segments
