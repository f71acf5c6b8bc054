"""Read what a file of tenants says.  Pure: it is given the file's bytes and the words that name it.

Contract
--------
* The file is TOML with one table, `tenants`, which has a table for each tenant by its name; that of `*` is for all who
  have none, those without a name included.
* Whatever the file has that a tenant cannot have is a ConfigError that names the file and the key, as
  ``tenants.gold.weight``.  No message repeats a digest, and each is one line, of what is long only the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.core.tenants import BEST_URGENCY, FREE, MOST_TENANTS, TENANT_NAME, WORST_URGENCY, TenantTerms
from penstock.errors import ConfigError

OTHERS = "*"
"""The name of the table for all tenants that have none of their own."""
LEAST, MOST = 1e-6, 1e9
"""The least and the most of a weight, a rate and a burst; the most of `max_queued`, too.

What is beyond is a slip, and would lose its precision.
"""
DIGEST_DIGITS = 64
SHOWN_CHARACTERS = 100
"""How much of a name or a value a message repeats; of a text, before its line breaks and the like are escaped."""
MOST_SHOWN = 10**SHOWN_CHARACTERS


class TenantRules:
    """What is said of the tenants of a service: `named` by name, `others` of all else, and whose key is whose.

    `keys` has a name for the SHA-256 of each listed key.
    """

    def __init__(
        self,
        named: Mapping[str, TenantTerms] | None = None,
        others: TenantTerms = FREE,
        keys: Mapping[bytes, str] | None = None,
    ) -> None:
        self.named = dict(named or {})
        self.others = others
        self.keys = dict(keys or {})

    def of(self, name: str) -> TenantTerms:
        """The terms of the tenant called `name`."""
        return self.named.get(name, self.others)

    @property
    def rated(self) -> bool:
        """Whether any tenant has a rate."""
        return any(terms.rate is not None for terms in (*self.named.values(), self.others))


NO_RULES = TenantRules()
"""The rules of a service without a file of tenants."""

_KEYS = ("key_sha256", "weight", "max_queued", "rate", "burst", "urgency")


def read_rules(data: bytes, where: str) -> TenantRules:
    """The rules in `data`, the content of the file that `where` names.  Raises ConfigError: see the contract."""
    import tomllib  # few programs have such a file

    try:
        document = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8: byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not TOML: {str(error)[: 2 * SHOWN_CHARACTERS]}") from None
    _refuse_unknown(where, "", document, ("tenants",))
    tables = document.get("tenants", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{where}: tenants must be a table with a table for each tenant")
    named: dict[str, TenantTerms] = {}
    keys: dict[bytes, str] = {}
    for name, table in tables.items():
        path = f"tenants.{_key(name)}"
        if name != OTHERS and TENANT_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{where}: {path}: a tenant's name must have 1 to 64 letters, digits and `._-`, or be `*`"
            )
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: {path} must be a table")
        _refuse_unknown(where, f"{path}.", table, _KEYS)
        named[name] = _terms(where, path, table)
        for digest in _digests(where, path, table):
            if name == OTHERS:
                raise ConfigError(f"{where}: {path}.key_sha256 is not allowed: a key must belong to a named tenant")
            if digest in keys:
                both = f"in tenants.{keys[digest]} and in {path}" if keys[digest] != name else f"twice in {path}"
                raise ConfigError(f"{where}: {path}.key_sha256: the same key is {both}")
            keys[digest] = name
    others = named.pop(OTHERS, FREE)
    if len(named) > MOST_TENANTS:
        raise ConfigError(f"{where}: tenants must be at most {MOST_TENANTS}, got {len(named)}")
    return TenantRules(named, others, keys)


def _key(name: str) -> str:
    """A key of a table as messages repeat it."""
    return name if TENANT_NAME.fullmatch(name) else _shown(name)


def _shown(value: Any) -> str:
    """A value as messages repeat it.  Python writes no integer of thousands of digits."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, int) and not -MOST_SHOWN < value < MOST_SHOWN:
        return f"an integer of more than {SHOWN_CHARACTERS} digits"
    if isinstance(value, str) and len(value) > SHOWN_CHARACTERS:
        return f"{value[:SHOWN_CHARACTERS]!r}..."
    return repr(value)


def _refuse_unknown(where: str, path: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: {path}{_key(key)} is not a key of this table; its keys are {', '.join(known)}")


def _terms(where: str, path: str, table: Mapping[str, Any]) -> TenantTerms:
    rate = _number(where, f"{path}.rate", table.get("rate"), LEAST)
    burst = _number(where, f"{path}.burst", table.get("burst"), 1)
    if burst is not None and rate is None:
        raise ConfigError(f"{where}: {path}.burst needs a rate")
    weight = _number(where, f"{path}.weight", table.get("weight"), LEAST)
    return TenantTerms(
        weight=1.0 if weight is None else weight,
        max_queued=_whole(where, f"{path}.max_queued", table.get("max_queued"), 1, int(MOST)),
        rate=rate,
        burst=max(1.0, rate or 1.0) if burst is None else burst,
        urgency=_whole(where, f"{path}.urgency", table.get("urgency"), BEST_URGENCY, WORST_URGENCY) or BEST_URGENCY,
    )


def _number(where: str, path: str, value: Any, least: float) -> float | None:
    if value is None:
        return None
    # What is not a number at all is not between the two either.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= MOST:
        raise ConfigError(f"{where}: {path} must be a number from {least:g} to {MOST:g}, got {_shown(value)}")
    return float(value)


def _whole(where: str, path: str, value: Any, least: int, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{where}: {path} must be a whole number from {least} to {most}, got {_shown(value)}")
    return value


def _digests(where: str, path: str, table: Mapping[str, Any]) -> list[bytes]:
    given = table.get("key_sha256", [])
    if not isinstance(given, list):
        raise ConfigError(f"{where}: {path}.key_sha256 must be a list of strings of {DIGEST_DIGITS} hex digits")
    found = []
    for number, text in enumerate(given):
        # Not repeated: a key itself may have been written here.
        if not isinstance(text, str) or len(text) != DIGEST_DIGITS or set(text.lower()) - set("0123456789abcdef"):
            raise ConfigError(
                f"{where}: {path}.key_sha256[{number}] must be {DIGEST_DIGITS} hex digits, the SHA-256 of a key"
            )
        found.append(bytes.fromhex(text))
    return found
