"""Read the file of tenants that the option `tenants_file` names."""

from __future__ import annotations

from penstock.core.tenant_rules import NO_RULES, TenantRules, read_rules
from penstock.hosting.small_file import read_small_file

TENANTS_FILE_BYTES = 4 * 1024 * 1024
"""The largest file of tenants, for a thousand of them with fifty keys each; a larger one is the wrong file."""


def read_tenants(path: str | None) -> TenantRules:
    """The rules in the file at `path`; without one, those that bind nobody.

    Raises ConfigError for a file that cannot be read, is no regular one or too large, or says what cannot be.
    """
    if path is None:
        return NO_RULES
    where = f"tenants_file {path!r}"
    return read_rules(read_small_file(path, TENANTS_FILE_BYTES, where), where)
