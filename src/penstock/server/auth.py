"""Decide whether a request carries one of the accepted API keys.

The digest of a key is looked up among those of the accepted keys, which takes as long with one key as with many
thousands.  How long a look-up takes may depend on the digests, but not on the keys in a way that anybody can use: the
digests are made with a secret that this process drew at random, so nobody can tell which key has which digest.  Only
digests are kept, and no message or log has a key.
"""

from __future__ import annotations

import codecs
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import ConfigError

KEY_FILE_BYTES = 1024 * 1024
"""The largest file of keys, of which there are some 20 000 in it; a larger one is the wrong file."""

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class ApiKeys:
    """The accepted keys."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = frozenset(map(self._digest, keys))
        if not self._digests:
            raise ConfigError("there is no API key: nobody could ever call this server")

    def admits(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether ``Authorization: Bearer KEY`` or ``X-API-Key: KEY`` is among `headers`, with an accepted key."""
        return not self._digests.isdisjoint(map(self._digest, _given(headers)))

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")


def has_key(headers: Mapping[bytes, bytes]) -> bool:
    """Whether any key is among `headers`, accepted or not."""
    return any(_given(headers))


def _given(headers: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    return headers.get(b"x-api-key", b""), bearer.strip() if scheme.lower() == b"bearer" else b""


def read_keys(path: str) -> ApiKeys:
    """The keys in a file: one a line; blank lines and lines that begin with ``#`` do not count.

    Raises ConfigError for a file that cannot be read, that is larger than `KEY_FILE_BYTES`, that has no key, or that
    has a key with a space or a control character in it.  No header could carry that.  It is usually a comment, or a
    file of zeros, as a power loss may leave it.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(KEY_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"api_key_file {path!r} cannot be read: {error.strerror}") from None
    if len(data) > KEY_FILE_BYTES:
        raise ConfigError(f"api_key_file {path!r} is larger than {KEY_FILE_BYTES} bytes")
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()  # some editors write the mark
    keys = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if len(key.split()) > 1:
            raise ConfigError(f"api_key_file {path!r}: the key in line {number} holds a space")
        if _CONTROL.search(key):
            raise ConfigError(f"api_key_file {path!r}: the key in line {number} holds a control character")
        keys.append(key)
    if not keys:
        raise ConfigError(f"api_key_file {path!r} holds no key")
    return ApiKeys(keys)
