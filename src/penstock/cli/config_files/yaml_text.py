"""Write a text as YAML takes it, in double quotes, so that no value of a user is read as anything else.  Pure."""

from __future__ import annotations

from penstock.errors import ConfigError

_WRITTEN = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def yaml_text(text: str) -> str:
    """`text` in double quotes, where YAML 1.1 and 1.2 agree.

    Raises:
        ConfigError: it has a character that no YAML can have.
    """
    if any("\ud800" <= c <= "\udfff" or c == "\0" for c in text):
        raise ConfigError(f"YAML does not support half a character or a null character, got {text!r}")
    return '"' + "".join(_WRITTEN.get(c) or (c if c.isprintable() else _escape(ord(c))) for c in text) + '"'


def _escape(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
