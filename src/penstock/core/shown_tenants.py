"""Decide which tenants metrics show by name, so that no counter ever goes backwards.  Pure.

Contract
--------
* At most `MOST_SHOWN` names are shown: whenever there is a place, the busiest of those that are not shown yet.  A name
  stays shown until its tenant is forgotten.
* What is counted of a tenant goes to its name while it is shown, and else to `OTHER`.  So a tenant that comes to be
  shown begins at 0: what was counted before stays with the others.
* A tenant that is forgotten while it is shown takes its numbers with it.  Should the name come back, it begins at 0, as
  after a restart.
* A tenant that calls itself `OTHER` is one of the others.
"""

from __future__ import annotations

from penstock.core.tenants import Tenant, TenantNumbers, Tenants, add_numbers

MOST_SHOWN = 100
"""Most tenants that are shown by name."""
OTHER = "other"
"""The label of the rest."""


def shown_rows(tenants: Tenants, now: float) -> list[tuple[str, TenantNumbers]]:
    """A row for each tenant that is shown, and last that of the others; none where no tenant was ever named."""
    tenants.forget_idle(now)
    if not tenants.in_use and tenants.anyone.shown_from is None:
        return []
    known = tenants.known()
    _show_more(known)
    rows: list[tuple[str, TenantNumbers]] = []
    rest = tenants.gone
    for tenant in known:
        before, numbers = tenant.shown_from, tenant.numbers
        if before is None:
            tenant.told = numbers
            rest = add_numbers(rest, numbers)
        else:
            rest = add_numbers(rest, before)
            own = (numbers.accepted - before.accepted, numbers.refused - before.refused, numbers.waited - before.waited)
            rows.append((tenant.name, TenantNumbers(*own)))
    return [*rows, (OTHER, rest)]


def _show_more(known: list[Tenant]) -> None:
    """Show those who are not shown yet and have something to show, as far as there are places."""
    hidden = [t for t in known if t.shown_from is None and t.name != OTHER and (t.accepted or t.refused or not t.name)]
    if not hidden:
        return
    places = MOST_SHOWN - sum([t.shown_from is not None for t in known])
    # The nameless one first: it stays for ever.
    hidden.sort(key=lambda t: (bool(t.name), -t.accepted - t.refused))
    for tenant in hidden[: max(0, places)]:
        tenant.shown_from = tenant.told
