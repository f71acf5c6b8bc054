"""Say in a sentence what a Redis server that does not do what it is asked means: who can mend it, and whether to wait.

Also whether another server may be the one by now, for which the server's name has to be looked up again.

The library has a class for some of a server's refusals, and leaves others as they were sent; a script's refusal has the
server's word somewhere in its text.  So both are looked at, as text.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import ConfigError, PenstockError, StoreUnavailable
from penstock.jobs.store import StoreFull

_NOT_ALLOWED: Final = {
    "AuthenticationError": "rejected the user name or password",
    "AuthenticationWrongNumberOfArgsError": "rejected the user name or password",
    "NOAUTH": "requires a user name and password",
    "WRONGPASS": "rejected the user name or password",
    "AuthorizationError": "rejected the user",
    "NoPermissionError": "denies this user a command that a queue needs",
    "NOPERM": "denies this user a command that a queue needs",
    "MovedError": "is a cluster node that does not hold this queue: use the URL of the node that holds it",
    "MOVED": "is a cluster node that does not hold this queue: use the URL of the node that holds it",
}
"""What only another URL or another configuration helps against, by the library's class or the server's word."""
_NOT_NOW: Final = {
    "BusyLoadingError": "is loading its data from disk",
    "LOADING": "is loading its data from disk",
    "ReadOnlyError": "is a read-only replica",
    "READONLY": "is a read-only replica",
    "MISCONF": "cannot write to its disk and rejects writes",
    "NOREPLICAS": "has too few replicas and rejects writes",
    "MasterDownError": "is a replica that has lost its primary",
    "MASTERDOWN": "is a replica that has lost its primary",
    "ClusterDownError": "is part of a cluster that is down",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "TryAgainError": "is moving this queue to another node of its cluster",
    "TRYAGAIN": "is moving this queue to another node of its cluster",
    "AskError": "is moving this queue to another node of its cluster",
    "ASK": "is moving this queue to another node of its cluster",
    "UNBLOCKED": "has become a replica",
    "BUSY": "is busy with a script of another client",
}
_FULL: Final = dict.fromkeys(("OutOfMemoryError", "OOM"), "is out of memory: maxmemory is reached")
"""Refusals of what is new, while all else goes on."""
_NOT_THE_ONE: Final = frozenset(
    {
        *("ReadOnlyError", "READONLY", "MasterDownError", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS"),
        *("BusyLoadingError", "LOADING"),
        *("MovedError", "MOVED", "AskError", "ASK", "TryAgainError", "TRYAGAIN", "ClusterDownError", "CLUSTERDOWN"),
    }
)
"""A server says so that it is no primary, or no longer the one of this queue, or may not be for long."""
_WORD = re.compile(r"\b[A-Z]{3,12}\b")


def may_have_moved(kind: str, text: str) -> bool:
    """Whether a server's error says that another one may be the one.  Arguments are as in `explain_refusal`."""
    return not _NOT_THE_ONE.isdisjoint(_words(kind, text))


def explain_refusal(server: str, kind: str, text: str, timeout: float) -> PenstockError:
    """What is raised for an error of the library.

    Args:
        server: which server it is, without a password.
        kind: the name of the error's class.
        text: its message.
        timeout: the seconds that an answer may take.
    """
    words = _words(kind, text)
    for word in words:
        if word in _NOT_ALLOWED:
            return ConfigError(f"{server} {_NOT_ALLOWED[word]}")
    for word in words:
        if word in _FULL:
            return StoreFull(f"{server} {_FULL[word]}")
        if word in _NOT_NOW:
            return StoreUnavailable(f"{server} {_NOT_NOW[word]}")
    if kind == "TimeoutError":
        return StoreUnavailable(f"{server} did not respond within {timeout:g} s")
    if kind == "ConnectionError":
        return StoreUnavailable(f"cannot connect to {server}: {text}")
    return StoreUnavailable(f"{server} reported an error: {text}")


def _words(kind: str, text: str) -> tuple[str, ...]:
    return (kind, *_WORD.findall(text))
