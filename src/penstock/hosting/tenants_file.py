"""Read the file of tenants that the option `tenants` names."""

from __future__ import annotations

from pathlib import Path

from penstock.core.tenant_rules import NO_RULES, TenantRules, read_rules
from penstock.errors import ConfigError

TENANTS_FILE_BYTES = 4 * 1024 * 1024
"""The largest file of tenants, for a thousand of them with fifty keys each; a larger one is the wrong file."""


def read_tenants(path: str | None) -> TenantRules:
    """The rules in the file at `path`; without one, those that bind nobody.

    Raises ConfigError for a file that cannot be read, is too large, or says what cannot be.
    """
    if path is None:
        return NO_RULES
    where = f"tenants {path!r}"
    try:
        with Path(path).open("rb") as file:
            data = file.read(TENANTS_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    if len(data) > TENANTS_FILE_BYTES:
        raise ConfigError(f"{where} is larger than {TENANTS_FILE_BYTES} bytes")
    return read_rules(data, where)
