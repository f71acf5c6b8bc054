"""Decide when leases are renewed, and until when a holder may rely on one.

Contract
--------
* A lease counts from before its claim or its renewal was sent: the answer may have taken long.
* Past that moment a holder begins nothing new with the job until a renewal has said OK.  It is no proof that the job is
  lost: only the fence decides that.
* What is held is renewed each third of the lease, give or take a fifth, so that the consumers of a fleet that were
  started together do not call together.  A renewal that failed is tried again sooner, so that several fit into a lease.
"""

from __future__ import annotations

from typing import Final

SPREAD: Final = 0.2
"""How far a renewal may be from each third of the lease, as a part of that third."""
LONGEST_RETRY_SECONDS: Final = 2.0
"""After so long everybody has tried to renew what it holds once more."""
LONGEST_CALL_SECONDS: Final = 5.0
"""How long a store's server may take to connect, and how long to answer a call."""


def renewal_delay(lease: float, draw: float) -> float:
    """The seconds from one renewal to the next; `draw` is drawn evenly between 0 and 1."""
    return lease / 3 * (1 - SPREAD + 2 * SPREAD * draw)


def longest_call(lease: float) -> float:
    """The seconds that a call to a store's server may take: one that is never answered must leave time for another."""
    return min(lease / 3, LONGEST_CALL_SECONDS)


def retry_delay(lease: float, draw: float) -> float:
    """The seconds from a renewal that failed to the next try."""
    return min(lease / 15, LONGEST_RETRY_SECONDS) * (0.5 + 0.5 * draw)


def reconnect_delay(failures: int, draw: float) -> float:
    """The seconds until a store that did not answer so many times in a row is asked again: 0.1 doubling to 5."""
    return min(0.1 * 2.0 ** min(failures - 1, 16), 5.0) * (0.5 + 0.5 * draw)
