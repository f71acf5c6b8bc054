"""The tenants of a service: who a request is from, and what each of them may have.  Pure."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import ConfigError

BEST_URGENCY: Final = 0
WORST_URGENCY: Final = 7
USUAL_URGENCY: Final = 3
"""The urgency of a request that says nothing, as in RFC 9218."""


TENANT_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_tenant_name(name: object) -> None:
    """Raise ConfigError for what is the name of no tenant; "" is that of nobody."""
    if name != "" and (not isinstance(name, str) or TENANT_NAME.fullmatch(name) is None):
        raise ConfigError(f"a tenant's name is of 1 to 64 letters, digits and `._-`, got {name!r}")


class Tenant:
    """One tenant: its name, what it may have, and what it has in hand now."""

    __slots__ = ("best_urgency", "items", "name", "weight")

    def __init__(self, name: str, weight: float = 1.0, best_urgency: int = BEST_URGENCY) -> None:
        self.name = name
        self.weight = weight
        self.best_urgency = best_urgency
        self.items = 0
        """Items in hand."""


ANYONE: Final = Tenant("")
"""The tenant of requests that are made without a service, as tests do."""


class Tenants:
    """The tenants of one service by name."""

    def __init__(self) -> None:
        self.anyone = Tenant("")
        """Who names no tenant."""
        self._known: dict[str, Tenant] = {}

    def find(self, name: str) -> Tenant:
        """The tenant called `name`."""
        if not name:
            return self.anyone
        tenant = self._known.get(name)
        if tenant is None:
            tenant = self._known[name] = Tenant(name)
        return tenant
