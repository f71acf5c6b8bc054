"""Read what a server answers at `/readyz`: is it ready, in which state, and why not.  No I/O.

Nothing that comes is trusted.  What is not an answer of Penstock is told from one, so that a proxy's page or another
program at the same port never counts as a server that is ready, or as one that is not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.codec.text import cut_line, one_line, printable
from penstock.core.state import State

LONGEST_LINE_BYTES = 2000
"""What is printed of an answer.  Docker keeps 4096 bytes of what a health check prints."""
NOT_PENSTOCK = "the server is not Penstock"
_OURS = "urn:penstock:problem:"
_STATES = frozenset(State)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a server says of itself."""

    ready: bool
    words: str
    """Its state and the reason, as a line that any terminal may show."""


class NotPenstock(Exception):
    """Something answers, and it is no server of Penstock; the text says what it answered."""


def read_readiness(status: int, body: bytes) -> Readiness:
    """What the answer with this status and body says; raises NotPenstock."""
    found = _object(body)
    if status == 200 and (state := _state(found)) is not None and state.serving:
        return Readiness(ready=True, words=state.value)
    if status == 503 and _is_ours(found):
        state = _state(found)
        words = f"{'not ready' if state is None else state.value}: {one_line(found['detail'])}"
        return Readiness(ready=False, words=short_line(words))
    raise NotPenstock(f"{NOT_PENSTOCK}: unexpected status {status}")


def short_line(words: str) -> str:
    """`words` as a line of bounded length that any terminal may show."""
    return cut_line(printable(words), LONGEST_LINE_BYTES)


def _is_ours(problem: dict[str, Any]) -> bool:
    """Whether an answer with 503 is a problem of ours.

    One of a host's own, such as a consumer whose queue is out of reach, has a type that is nobody's; but it has the id
    of the request, which we put into each.
    """
    kind = problem.get("type")
    ours = kind == "about:blank" or (isinstance(kind, str) and kind.startswith(_OURS))
    return ours and all(isinstance(problem.get(name), str) for name in ("detail", "request_id"))


def _state(found: dict[str, Any]) -> State | None:
    state = found.get("state")
    return State(state) if isinstance(state, str) and state in _STATES else None


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` is, or an empty one."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
