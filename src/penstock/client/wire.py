"""The seam between a client and HTTP: what is sent, and who carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.client.replies import NoReply, Reply

LARGEST_PAGE_BYTES: Final = 1 << 20
"""Most bytes of an answer that is no result: of an error, a page of the server, a job."""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """One try, as it is sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    largest: int
    """Most bytes of a success."""


class Wire(Protocol):
    """Carries requests to one server.  What is cancelled has its connection closed."""

    async def send(self, request: OutgoingRequest) -> Reply | NoReply:
        """The answer, once it is here as a whole."""

    async def close(self) -> None:
        """Close every connection."""
