"""The `Priority` field of a request (RFC 9218), which is a dictionary of RFC 9651.

Contract
--------
* `urgency_of` knows the whole grammar of such a dictionary, and nothing of what the other members mean.
* A field that is not valid as a whole says nothing, and one of more than `MAX_FIELD_BYTES` is not read.
* It takes time in proportion to the bytes: characters are repeated possessively, and what follows a repeated group
  begins otherwise than the group.  A group is not possessive: before Python 3.11.5 it kept what a failed try had read.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.core.tenants import USUAL_URGENCY, WORST_URGENCY

MAX_FIELD_BYTES: Final = 1024
"""Of a field of one short member that is plenty; longer ones are ignored."""

_KEY: Final = r"[a-z*][a-z0-9_.*-]*+"
_INTEGER: Final = r"-?[0-9]{1,15}+(?![0-9.])"
_DECIMAL: Final = r"-?[0-9]{1,12}+\.[0-9]{1,3}+(?![0-9])"
_STRING: Final = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_WORD: Final = r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*+"
_BYTES: Final = r":[A-Za-z0-9+/=]*+:"
_BOOLEAN: Final = r"\?[01]"
_DATE: Final = rf"@{_INTEGER}"
# What stands for characters beyond ASCII: bytes of UTF-8, each as % and two small hexadecimal digits.
_TAIL: Final = r"%[89ab][0-9a-f]"
_ENCODED: Final = "|".join(  # one kind of sequence a line
    (
        r"%[0-7][0-9a-f]",
        rf"%(?:c[2-9a-f]|d[0-9a-f]){_TAIL}",
        rf"%e0%[ab][0-9a-f]{_TAIL}",
        rf"%e[1-9a-cef](?:{_TAIL}){{2}}",
        rf"%ed%[89][0-9a-f]{_TAIL}",
        rf"%f0%[9ab][0-9a-f](?:{_TAIL}){{2}}",
        rf"%f[123](?:{_TAIL}){{3}}",
        rf"%f4%8[0-9a-f](?:{_TAIL}){{2}}",
    )
)
_DISPLAYED: Final = rf'%"(?:[ !#$&-~]|{_ENCODED})*"'
_BARE: Final = f"(?:{_DECIMAL}|{_INTEGER}|{_STRING}|{_WORD}|{_BYTES}|{_BOOLEAN}|{_DATE}|{_DISPLAYED})"
_PARAMETERS: Final = f"(?:; *+{_KEY}(?:={_BARE})?)*"
_INNER_LIST: Final = rf"\( *+(?:{_BARE}{_PARAMETERS}(?: ++|(?=\))))*\)"
_MEMBER: Final = re.compile(
    f"(?P<key>{_KEY})(?:=(?:(?P<value>{_BARE})|{_INNER_LIST}))?{_PARAMETERS}[ \t]*+(?P<comma>,[ \t]*+)?".encode()
)


def urgency_of(field: bytes) -> int:
    """The urgency that `field` names, from 0 to 7; the usual one where it names none or is not valid."""
    if len(field) > MAX_FIELD_BYTES:
        return USUAL_URGENCY
    field = field.lstrip(b" ")
    said: bytes | None = None
    place, ended = 0, True
    while place < len(field) or not ended:
        member = _MEMBER.match(field, place)
        if member is None:
            return USUAL_URGENCY
        if member["key"] == b"u":
            said = member["value"]  # of several members with one key the last counts
        place, ended = member.end(), member["comma"] is None
        if ended and place < len(field):
            return USUAL_URGENCY
    return _read_urgency(said)


def _read_urgency(said: bytes | None) -> int:
    if said is None or not said.removeprefix(b"-").isdigit():
        return USUAL_URGENCY
    urgency = int(said)
    return urgency if 0 <= urgency <= WORST_URGENCY else USUAL_URGENCY
