"""Decide who a request is from: which keys open a service, and which tenant a key or a header names.

Contract
--------
* Each service has the tenants of its own file.  Who sends a key that the file lists is that tenant; else
  `tenant_header` names it; else it is "".
* A service whose file lists keys is opened by those, and by those of `api_key_file`.  Another one is opened by those of
  `api_key_file`; if there is no such file, by any key that the server knows.
* A page is opened by any key that the server knows.
* Where the server knows no key, nobody needs one.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.tenant_rules import TenantRules
from penstock.core.tenants import TENANT_NAME
from penstock.server.auth import ApiKeys


class Identities:
    """The keys and the tenants of one server.  `rules` are those of each service, by its name."""

    def __init__(
        self, rules: Mapping[str, TenantRules], tenant_header: str | None, file_keys: ApiKeys | None = None
    ) -> None:
        self.rules = dict(rules)
        self.header = None if tenant_header is None else tenant_header.lower().encode()
        self._all: ApiKeys | None = None
        self._of: dict[str, ApiKeys | None] = {}
        self.use_file_keys(file_keys)

    def use_file_keys(self, file_keys: ApiKeys | None) -> None:
        """Hold each request from now on to these keys, besides those of the tenants."""
        every: dict[bytes, str] = {}
        for rules in self.rules.values():
            every |= rules.keys
        self._all = _joined(file_keys, every)
        self._of = {
            name: _joined(file_keys, rules.keys) or self._anonymous(every) for name, rules in self.rules.items()
        }

    def _anonymous(self, every: Mapping[bytes, str]) -> ApiKeys | None:
        """Any key, of nobody: for a service that names no key, beside others that do."""
        return _joined(None, dict.fromkeys(every, ""))

    @property
    def guarded(self) -> bool:
        """Whether the server knows any key."""
        return self._all is not None

    @property
    def asks(self) -> bool:
        """Whether there is anything to look at in a request."""
        return self._all is not None or self.header is not None

    @property
    def rated(self) -> bool:
        """Whether any tenant of any service has a rate."""
        return any(rules.rated for rules in self.rules.values())

    def key_holder(self, headers: Mapping[bytes, bytes], service: str) -> str | None:
        """The tenant whose key was sent, "" for nobody's, None where an accepted key is missing.

        `service` is whose path was asked for, or "" for a page.
        """
        keys = self._of.get(service) if service else self._all
        return "" if keys is None else keys.find(headers)

    def named(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The tenant that the header names, "" if it names none; None where that can be nobody's name."""
        given = None if self.header is None else headers.get(self.header)
        if given is None:
            return ""
        name = given.decode("latin-1")
        return name if TENANT_NAME.fullmatch(name) is not None else None

    def shown_urgency(self, service: str, tenant: str, urgency: int) -> int:
        """The urgency that a request of `tenant` is served with, which asked for `urgency`."""
        rules = self.rules.get(service)
        return urgency if rules is None else max(urgency, rules.of(tenant).urgency)


def _joined(file_keys: ApiKeys | None, tenants: Mapping[bytes, str]) -> ApiKeys | None:
    if file_keys is not None:
        return file_keys.with_tenants(tenants)
    return ApiKeys((), tenants) if tenants else None
