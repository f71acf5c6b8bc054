"""Findings of a store about its own setup: the seam between the stores and `penstock jobs doctor`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class Advice(msgspec.Struct, frozen=True):
    """One thing that a store looked at in its own setup."""

    what: str
    """What was looked at, by the name that its documentation gives it."""
    found: str
    """How it is."""
    wrong: bool = False
    """Whether jobs may be lost, or the queue may stop, as long as it stays so."""
    remedy: str = ""
    """What to do where it is wrong, or what to know where it is not."""


@runtime_checkable
class Advisable(Protocol):
    """A store that can tell how it is set up."""

    def advice(self) -> list[Advice]:
        """Everything that was looked at, right or wrong.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """


def find_advice(store: object) -> list[Advice]:
    """What `store` tells of its setup; a store that tells nothing is not wrong.

    Raises:
        StoreUnavailable: the store cannot be reached.
    """
    if isinstance(store, Advisable):
        return store.advice()
    return [Advice("store", type(store).__name__, remedy="this store reports no diagnostics")]
