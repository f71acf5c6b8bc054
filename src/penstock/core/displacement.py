"""Decide which item makes way for a newcomer where no item more may be in hand.  Pure.

Contract
--------
* The fair share of a tenant is `max_items`, divided by the weights of all tenants with items in hand, the newcomer's
  included.  It need not be whole.
* A newcomer may claim a place by share, where its tenant holds less than that, or by urgency.  A claim by share takes
  an item of a tenant that holds more than its own share, whatever its urgency.  A claim by urgency takes an item of a
  worse one, whosever it is.  So nothing of one tenant is displaced by what is as urgent, and of the same tenant.
* It is looked for among the items that wait for the first stage and that no worker has begun: first those of the worst
  urgency; of these those of the tenant that is furthest over its share, in items; of these the newest.  The first that
  may be taken is.
* Suspects and what is of BACK are never displaced: `candidates` has none.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.item import Item
from penstock.core.tenants import Tenant


def item_to_displace(
    tenant: Tenant, urgency: int, candidates: Iterable[Item], max_items: int, weights: float
) -> Item | None:
    """The item that makes way for a newcomer of `tenant` with `urgency`, or None where it is refused.

    `candidates` has the newest item of each tenant and urgency, the worst urgencies first; see
    `BatchQueue.newest_unrun`.  `weights` is the sum of the weights of all tenants with items in hand and of `tenant`.
    """
    by_share = tenant.items < max_items * tenant.weight / weights
    found: Item | None = None
    furthest = 0.0
    for item in candidates:
        request = item.request
        if found is not None and request.urgency != found.request.urgency:
            break
        owner = request.tenant
        over = owner.items - max_items * owner.weight / weights
        legal = urgency < request.urgency or (by_share and over > 0)
        if legal and (found is None or over > furthest or (over == furthest and item.id > found.id)):
            found, furthest = item, over
    return found
