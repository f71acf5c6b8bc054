"""Decide whether a request carries one of the accepted API keys.

The digest of a key is compared with that of every accepted key, in constant time and without an early exit.  So neither
the length of a key nor its line in the file can be measured.  Only digests are kept, and no message or log has a key.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import ConfigError

KEY_FILE_BYTES = 1024 * 1024
"""The largest file of keys.  Each request is compared with every key, so a larger one is the wrong file."""


class ApiKeys:
    """The accepted keys."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._digests = [_digest(key) for key in keys]
        if not self._digests:
            raise ConfigError("there is no API key: nobody could ever call this server")

    def admits(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether ``Authorization: Bearer KEY`` or ``X-API-Key: KEY`` is among `headers`, with an accepted key."""
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = [headers.get(b"x-api-key", b""), bearer.strip() if scheme.lower() == b"bearer" else b""]
        found = False
        for key in given:
            digest = _digest(key)
            for accepted in self._digests:
                found |= hmac.compare_digest(digest, accepted)
        return found


def read_keys(path: str) -> ApiKeys:
    """The keys in a file: one a line; blank lines and lines that begin with ``#`` do not count.

    Raises ConfigError for a file that cannot be read, that is larger than `KEY_FILE_BYTES`, that has no key, or that
    has a key with a space in it: a header could not carry that, and it is usually a comment.
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
        keys.append(key)
    if not keys:
        raise ConfigError(f"api_key_file {path!r} holds no key")
    return ApiKeys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
