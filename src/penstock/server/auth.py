"""Decide whether a request carries one of the accepted API keys.

The digest of a key is looked up among those of the accepted keys, which takes as long with one key as with many
thousands.  How long a look-up takes may depend on the digests, but not on the keys in a way that anybody can use: the
digests are made with a secret that this process drew at random, so nobody can tell which key has which digest.  Only
digests are kept, and no message or log has a key.

The key of a tenant is an API key too, of which only the SHA-256 is known.  So what is looked up is the secret digest of
a key's SHA-256.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from copy import copy

from penstock.errors import ConfigError
from penstock.hosting.small_file import read_small_file

KEY_FILE_BYTES = 1024 * 1024
"""The largest file of keys, of which there are some 20 000 in it; a larger one is the wrong file."""

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class ApiKeys:
    """The accepted keys: `keys` themselves, and those of tenants by their SHA-256, with the tenant's name."""

    def __init__(self, keys: Iterable[bytes], tenants: Mapping[bytes, str] | None = None) -> None:
        self._secret = secrets.token_bytes(32)
        self._names = {self._digest(hashlib.sha256(key).digest()): "" for key in keys}
        if not self._names and not tenants:
            raise ConfigError("no API key is given: no client could call this server")
        self._names.update((self._digest(sha256), name) for sha256, name in (tenants or {}).items())

    def with_tenants(self, tenants: Mapping[bytes, str]) -> ApiKeys:
        """These keys and those of `tenants`."""
        both = copy(self)
        both._names = self._names | {self._digest(sha256): name for sha256, name in tenants.items()}
        return both

    def find(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The tenant whose key is among `headers`; "" for an accepted key of none, None without an accepted one.

        A key comes as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``.  Of two the second says who it is, if it is
        a tenant's.
        """
        found: str | None = None
        for key in _given(headers):
            if key:
                name = self._names.get(self._digest(hashlib.sha256(key).digest()))
                found = name or found or name
        return found

    def admits(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether an accepted key is among `headers`."""
        return self.find(headers) is not None

    def _digest(self, sha256: bytes) -> bytes:
        return hmac.digest(self._secret, sha256, "sha256")


def has_key(headers: Mapping[bytes, bytes]) -> bool:
    """Whether any key is among `headers`, accepted or not."""
    return any(_given(headers))


def _given(headers: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    return bearer.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"")


def read_keys(path: str) -> ApiKeys:
    """The keys in a file: one a line; blank lines and lines that begin with ``#`` do not count.

    Raises ConfigError for a file that cannot be read, that is no regular one or larger than `KEY_FILE_BYTES`, that has
    no key, or that has a key with a space or a control character in it.  No header could carry that.  It is usually a
    comment, or a file of zeros, as a power loss may leave it.
    """
    data = read_small_file(path, KEY_FILE_BYTES, f"api_key_file {path!r}")
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()  # some editors write the mark
    keys = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if len(key.split()) > 1:
            raise ConfigError(f"api_key_file {path!r}: the key in line {number} contains a space")
        if _CONTROL.search(key):
            raise ConfigError(f"api_key_file {path!r}: the key in line {number} contains a control character")
        keys.append(key)
    if not keys:
        raise ConfigError(f"api_key_file {path!r} contains no key")
    return ApiKeys(keys)
