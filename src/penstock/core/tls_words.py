"""Tell from the words of OpenSSL that the other end of a connection does not speak TLS."""

from __future__ import annotations

from typing import Final

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
"""The reasons, in one version of OpenSSL or another, for a text in place of a record of TLS."""


def speaks_no_tls(words: str) -> bool:
    """Whether `words`, of an error in a handshake, say that plain text came as the answer."""
    return any(word in words for word in _NO_TLS)
