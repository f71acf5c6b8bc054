"""What a part of a host, besides its services, tells those who ask how it is: the consumer of a queue, for one."""

from __future__ import annotations

from typing import Any, Protocol


class HostPart(Protocol):
    """A part of this process that can be unready or stuck.  Every call is made on the event loop's thread."""

    @property
    def name(self) -> str:
        """What `/health` calls it."""

    @property
    def in_hand(self) -> int:
        """How much it has taken in that has not ended."""

    def unready_because(self) -> str:
        """Why no work should come to this process, or ""."""

    def stuck_because(self) -> str:
        """Why this process will not go on by itself, and should be restarted; or ""."""

    def describe(self) -> dict[str, Any]:
        """What it is doing, as plain data."""
