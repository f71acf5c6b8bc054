"""Read the URL of an input or of an output: a file, an object in S3, or a page of the web.  Text in, a place out.

Contract
--------
* Two spellings of one place are equal once they are read.  What can be read in two ways is refused.
* The path of a file, and the key of an object, is percent-decoded once.  It has no ``..`` and no NUL.
* A URL has no user and no password.  A message shows it without them, without its query, and not at any length.

Whether a place may be read or written is said elsewhere: by `allowed_places` and by `addresses`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote, unquote, urljoin

from penstock.errors import TransferRejected

LONGEST_URL = 16 * 1024
"""Characters; a signed URL has some two thousand."""
LONGEST_SHOWN = 200
"""Characters of a URL that a message shows."""

_SHAPE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
"""Scheme, authority, path, query and fragment, as RFC 3986 takes a URL apart.

`urllib.parse.urlsplit` is not used: it drops line ends and tabs from inside a URL, so that two readers may see two.
"""
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{0,5}))?")
_PRINTABLE: Final = re.compile(r"[!-~]*")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")
_AFTER_AUTHORITY: Final = re.compile(r"[/?#]")
_STANDARD_PORTS: Final = {"http": 80, "https": 443}


def host_of(url: str) -> str:
    """Which host, or bucket, a URL leads to, as a text to compare; it is not judged.  All files have one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{_AFTER_AUTHORITY.split(rest, maxsplit=1)[0]}".lower()


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file of this machine, or a folder where it stands for all beneath it."""

    segments: tuple[str, ...]
    """The names from the root down; none are empty, ``.`` or ``..``."""

    @property
    def name(self) -> str:
        """The last name of its path, or "" for the root."""
        return self.segments[-1] if self.segments else ""

    def __str__(self) -> str:
        return "file:///" + quote("/".join(self.segments))


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """An object in S3, or a prefix where it stands for all beneath it."""

    bucket: str
    segments: tuple[str, ...]
    """The parts of its key between slashes; none are empty, ``.`` or ``..``."""

    @property
    def key(self) -> str:
        """The name of the object in its bucket."""
        return "/".join(self.segments)

    @property
    def name(self) -> str:
        """The last part of its key, or "" for the whole bucket."""
        return self.segments[-1] if self.segments else ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/" + quote(self.key)


@dataclass(frozen=True, slots=True)
class WebPlace:
    """What an HTTP server answers for."""

    scheme: str
    """``http`` or ``https``."""
    host: str
    """A name, in small letters, or an address; one of IPv6 has no brackets."""
    port: int
    target: str
    """The path and the query, as they are sent."""

    @property
    def authority(self) -> str:
        """The host and the port as the header `Host` has them: no port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _STANDARD_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """The last name of its path, or "" where that ends with a slash."""
        return unquote(self.target.partition("?")[0].rpartition("/")[2])

    def __str__(self) -> str:
        return shown_url(f"{self.scheme}://{self.authority}{self.target}")

    def follow(self, location: str) -> WebPlace:
        """Where a redirect from here leads; `location` is the header as it came.  Raises TransferRejected."""
        # Servers send spaces and bytes beyond ASCII there.  http.client has decoded them as Latin-1.
        sent = quote(location.encode("latin-1", "replace"), safe="!#$%&'()*+,/:;=?@[]~")
        try:
            place = parse_place(urljoin(f"{self.scheme}://{self.authority}{self.target}", sent))
        except ValueError:  # urljoin, which takes brackets for an address
            raise TransferRejected(f"{self} redirects to an invalid URL") from None
        if not isinstance(place, WebPlace):
            raise TransferRejected(f"{self} redirects to {place}: only redirects to http and https are followed")
        if self.scheme == "https" and place.scheme == "http":
            raise TransferRejected(f"{self} redirects to {place}, which is not encrypted")
        return place


Place: TypeAlias = FilePlace | ObjectPlace | WebPlace


def parse_place(url: str) -> Place:
    """The place that `url` names.  Raises TransferRejected where it names none, or more than one."""
    if len(url) > LONGEST_URL:
        raise TransferRejected(f"{shown_url(url)}: the URL has {len(url)} characters; the maximum is {LONGEST_URL}")
    parts = _SHAPE.fullmatch(url)
    if parts is None:
        raise TransferRejected(
            f"{shown_url(url)!r} is not a URL: write file:///..., s3://..., http://... or https://..."
        )
    scheme, authority, path, query, fragment = parts.groups(default="")
    scheme = scheme.lower()
    if "@" in authority:
        raise TransferRejected(f"{shown_url(url)}: a user or password in the URL is not supported")
    if scheme in _STANDARD_PORTS:
        return _web_place(url, scheme, authority, (path or "/") + query)
    if query or fragment:
        raise TransferRejected(f"{shown_url(url)}: write %3F for a question mark in a name, and %23 for a number sign")
    if scheme == "file":
        if authority.lower() not in ("", "localhost"):
            raise TransferRejected(f"{shown_url(url)}: a file URL has no host; write file:/// and the absolute path")
        return FilePlace(_segments(url, path, folded=True))
    if scheme == "s3":
        if not _BUCKET.fullmatch(authority):
            raise TransferRejected(f"{shown_url(url)}: write s3:// with a bucket and a key: s3://bucket/folder/name")
        return ObjectPlace(authority, _segments(url, path, folded=False))
    raise TransferRejected(f"{shown_url(url)}: scheme {scheme} is not supported; use file, s3, http or https")


def parse_file_or_object(url: str) -> FilePlace | ObjectPlace | WebPlace:
    """As `parse_place`, for a place that is one file or one object and no folder."""
    place = parse_place(url)
    if not isinstance(place, WebPlace) and (not place.segments or url.endswith("/")):
        raise TransferRejected(f"{shown_url(url)} names a directory: name a file or an object in it")
    return place


def shown_url(url: str) -> str:
    """`url` for a message: without user, password, query and fragment, in one line and not too long.

    It need not be a URL: of any text what stands before an ``@`` in the place of a user is left out.
    """
    shown = re.sub(r"^([^/?#]*//)?[^/?#]*@", r"\1***@", url)
    shown = re.sub(r"\?.*", "?***", shown.partition("#")[0], flags=re.DOTALL)
    shown = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", shown)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."


def _web_place(url: str, scheme: str, authority: str, target: str) -> WebPlace:
    if not _PRINTABLE.fullmatch(authority + target):
        raise TransferRejected(f"{shown_url(url)}: percent-encode each character that is not printable ASCII")
    parts = _AUTHORITY.fullmatch(authority)
    port = int((parts and parts[3]) or _STANDARD_PORTS[scheme])
    if parts is None or not 1 <= port <= 65535:
        raise TransferRejected(f"{shown_url(url)}: the host or the port is not valid")
    return WebPlace(scheme, (parts[1] or parts[2]).lower(), port, target)


def _segments(url: str, path: str, *, folded: bool) -> tuple[str, ...]:
    """The names in `path`.  `folded` leaves out empty ones and ``.``, which mean nothing in a file's path.

    In a key they would mean something, and the library would take them out: there they are refused.
    """
    if _ESCAPE.search(path):
        raise TransferRejected(f"{shown_url(url)}: write %25 for a percent sign")
    try:
        decoded = unquote(path, errors="strict")
        decoded.encode()  # half of a surrogate pair is no character
    except UnicodeError:
        raise TransferRejected(f"{shown_url(url)}: the path is not UTF-8") from None
    names = decoded.strip("/").split("/") if decoded.strip("/") else []
    if folded:
        names = [name for name in names if name not in ("", ".")]
    elif not set(names).isdisjoint(("", ".")) or decoded.startswith("//") or decoded.endswith("//"):
        raise TransferRejected(f"{shown_url(url)}: a segment of a key must not be empty or `.`")
    if ".." in names:
        raise TransferRejected(f"{shown_url(url)}: a path must not contain `..`")
    if _CONTROLS.search(decoded):
        raise TransferRejected(f"{shown_url(url)}: a path must not contain control characters")
    return tuple(names)
