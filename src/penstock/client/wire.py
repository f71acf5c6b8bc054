"""The seam between a client and HTTP: what is sent, and who carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.client.replies import NoReply, Reply


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """One try, as it is sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class Wire(Protocol):
    """Carries requests to one server.  What is cancelled has its connection closed."""

    async def send(self, request: OutgoingRequest) -> Reply | NoReply:
        """The answer, once it is here as a whole."""

    async def close(self) -> None:
        """Close every connection."""
