"""The tenants of a service: who a request is from, what each of them may have, and what it has now.  Pure.

Contract
--------
* A name is always the same tenant while it has anything in hand or waits for anything.
* At most `MOST_TENANTS` names are kept.  Those that the rules name are among them, always.
* Any other is forgotten once it has had nothing for `IDLE_SECONDS`, and its bucket is full again: a name that comes
  back finds what a new one finds.  Looked for when there is a new name.
* Where nobody can be forgotten, a new name is served as "".
* Who has no name, "", has the terms of all others, as one tenant.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.core.token_bucket import TokenBucket
from penstock.errors import ConfigError

BEST_URGENCY: Final = 0
WORST_URGENCY: Final = 7
USUAL_URGENCY: Final = 3
"""The urgency of a request that says nothing, as in RFC 9218."""
MOST_TENANTS: Final = 1000
"""Most tenants with a name that a service keeps at a time."""
IDLE_SECONDS: Final = 60.0
"""How long a tenant that has nothing is kept."""

TENANT_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_tenant_name(name: object) -> None:
    """Raise ConfigError for what is the name of no tenant; "" is that of nobody."""
    if name != "" and (not isinstance(name, str) or TENANT_NAME.fullmatch(name) is None):
        raise ConfigError(f"a tenant's name must have 1 to 64 letters, digits and `._-`, got {name!r}")


class TenantTerms(NamedTuple):
    """What one tenant may have."""

    weight: float = 1.0
    """Its part of what a full service does, beside the weights of the others."""
    max_queued: int | None = None
    """Most items in hand; None: no bound of its own."""
    rate: float | None = None
    """Items a second; None: as many as there is room for."""
    burst: float = 1.0
    """How many items may come at once after a rest, where there is a rate."""
    urgency: int = BEST_URGENCY
    """The best urgency that it may ask for."""


FREE: Final = TenantTerms()
"""The terms of whoever no file says anything about."""


class TenantNumbers(NamedTuple):
    """What was counted of a tenant, or of several."""

    accepted: int = 0
    """Items that were ever accepted."""
    refused: int = 0
    """Items that were refused; a client batch that is refused at its head counts as one."""
    waited: float = 0.0
    """Seconds that items lay in the queues of the stages, together."""


NONE_COUNTED: Final = TenantNumbers()


def add_numbers(a: TenantNumbers, b: TenantNumbers) -> TenantNumbers:
    """What was counted of both."""
    return TenantNumbers(a.accepted + b.accepted, a.refused + b.refused, a.waited + b.waited)


class Tenant:
    """One tenant: its name, what it may have, and what it has in hand now."""

    __slots__ = (
        "accepted", "best_urgency", "bucket", "items", "limited", "max_queued", "name", "refused",
        "requests", "shown_from", "told", "waited", "weight",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        weight: float = 1.0,
        best_urgency: int = BEST_URGENCY,
        *,
        max_queued: int | None = None,
        bucket: TokenBucket | None = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.best_urgency = best_urgency
        self.max_queued = max_queued
        self.bucket = bucket
        self.limited = bucket is not None or max_queued is not None
        """Whether `Quotas` has anything to say of it."""
        self.requests = 0
        """Requests that are not answered yet."""
        self.items = 0
        """Items in hand."""
        # See `TenantNumbers`.
        self.accepted = 0
        self.refused = 0
        self.waited = 0.0
        self.shown_from: TenantNumbers | None = None
        """What was counted before metrics showed it by name; None while they do not.  See `ShownTenants`."""
        self.told = NONE_COUNTED
        """What metrics have told of it among the others."""

    @property
    def numbers(self) -> TenantNumbers:
        """What was counted so far."""
        return TenantNumbers(self.accepted, self.refused, self.waited)

    @property
    def has_room(self) -> bool:
        """Whether it may have one more item by its own bound."""
        return self.max_queued is None or self.items < self.max_queued


def tenant_of(name: str, terms: TenantTerms) -> Tenant:
    """A tenant that has nothing yet."""
    bucket = None if terms.rate is None else TokenBucket(terms.rate, terms.burst)
    return Tenant(name, terms.weight, terms.urgency, max_queued=terms.max_queued, bucket=bucket)


ANYONE: Final = Tenant("")
"""The tenant of requests that are made without a service, as tests do."""


class Tenants:
    """The tenants of one service by name.  `named` are the terms of those that the rules name, `others` of all else."""

    def __init__(self, named: Mapping[str, TenantTerms] | None = None, others: TenantTerms = FREE) -> None:
        self.anyone = tenant_of("", others)
        """Who names no tenant."""
        self._others = others
        self._listed = {name: tenant_of(name, terms) for name, terms in (named or {}).items()}
        self._known = dict(self._listed)
        self._idle: OrderedDict[Tenant, float] = OrderedDict()
        """Those that may have nothing, and since when, the longest first; none that the rules name."""
        self.gone = NONE_COUNTED
        """What was counted of those that are forgotten, while metrics did not show them by name."""

    @property
    def in_use(self) -> bool:
        """Whether any tenant has a name."""
        return bool(self._known)

    def known(self) -> list[Tenant]:
        """Every tenant, the nameless one first."""
        return [self.anyone, *self._known.values()]

    def find(self, name: str, now: float) -> Tenant:
        """The tenant called `name`."""
        if not name:
            return self.anyone
        tenant = self._known.get(name)
        if tenant is not None:
            return tenant
        self.forget_idle(now)
        if len(self._known) >= MOST_TENANTS:
            return self.anyone
        tenant = self._known[name] = tenant_of(name, self._others)
        self._idle[tenant] = now
        return tenant

    def sum_weights(self) -> float:
        """The weights of all tenants with items in hand."""
        return sum([tenant.weight for tenant in self.known() if tenant.items])

    def answered(self, tenant: Tenant, now: float) -> None:
        """Note that the last request of `tenant` was answered."""
        if tenant.name and tenant.name not in self._listed:
            self._idle[tenant] = now
            self._idle.move_to_end(tenant)

    def forget_idle(self, now: float) -> None:
        """Forget who has had nothing for long."""
        while self._idle:
            tenant, since = next(iter(self._idle.items()))
            if now < since + IDLE_SECONDS:
                return
            del self._idle[tenant]
            if tenant.requests:
                continue  # `answered` will tell of it
            if tenant.bucket is not None and not tenant.bucket.is_full(now):
                self._idle[tenant] = now
                continue
            del self._known[tenant.name]
            counted = tenant.numbers if tenant.shown_from is None else tenant.shown_from
            self.gone = add_numbers(self.gone, counted)
