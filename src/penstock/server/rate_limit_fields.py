"""Write what a tenant's rate leaves it as `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).

Both are lists of one structured item, named "items", because that is what is counted: a request to `/predict` is one, a
client batch as many as it has.

* `q`: how many items may come at once after a rest, the burst.
* `w`: in how many seconds so many come back; the most that can be written stands for more.
* `r`: how many may come now.
* `t`: in how many seconds there will be one more; left out where there are as many as there can be.
"""

from __future__ import annotations

from typing import Final

from penstock.core.token_bucket import Allowance

LARGEST: Final = 10**15 - 1
"""The largest integer of a structured field (RFC 9651)."""


def rate_limit_fields(allowance: Allowance) -> tuple[tuple[bytes, bytes], ...]:
    """The two fields."""
    again = b"" if allowance.seconds is None else b";t=%d" % allowance.seconds
    return (
        (b"ratelimit-policy", b'"items";q=%d;w=%d' % (allowance.quota, min(allowance.window, LARGEST))),
        (b"ratelimit", b'"items";r=%d' % allowance.left + again),
    )
