"""Check the options of one kind of feature, and bring them into the one form in which they are kept.

Sequences become tuples, numpy's scalars Python's, categories strings, numbers floats.  Every check raises a
`ConfigError` that names the option and has its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from penstock.errors import ConfigError
from penstock.features.values import CategoryReader, ValueReader, ValueRefused, is_text, plain, shown_value

T = TypeVar("T")

LARGEST_COUNT = 2**63 - 1
"""Ids are int64."""


def store(kind: Any, **options: Any) -> None:
    """Keep the options in their one form: the dataclass is frozen, and this is its birth."""
    for name, value in options.items():
        object.__setattr__(kind, name, value)


def checked_count(what: str, value: Any, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """An integer within its limits."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise ConfigError(f"{what} must be an integer of at least {least} and at most {most}, got {shown_value(value)}")
    return int(number)


def checked_flag(what: str, value: Any) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} must be True or False, got {shown_value(value)}")
    return value


def checked_name(what: str, value: Any) -> str:
    """The name of a feature or a column."""
    if not isinstance(value, str) or not value or not is_text(value):
        raise ConfigError(f"{what} must be a name, got {shown_value(value)}")
    return str.__str__(value)


def checked_items(what: str, value: Any) -> tuple[Any, ...]:
    """A sequence of any kind as a tuple.  A string is none, and neither is a set, which has no order."""
    if isinstance(value, (str, bytes, Mapping, set, frozenset)) or not isinstance(value, Iterable):
        raise ConfigError(f"{what} must be a sequence, as a tuple or a list, got {shown_value(value)}")
    return tuple(value)


def checked_value(what: str, value: Any, reader: ValueReader[T]) -> T:
    """A value as the rows have it, as what it stands for."""
    try:
        token = reader.read(value)
    except ValueRefused as exc:
        raise ConfigError(f"{what}: {exc}") from None
    if token is None:
        raise ConfigError(f"{what} must be a value, but {shown_value(value)} is a missing one")
    return token


def checked_missing_values(value: Any, *, categories: bool = False) -> tuple[str | int | float, ...]:
    """The values that count as missing.  A boolean is none, unless they are categories."""
    return tuple(_missing_value(one, categories) for one in checked_items("missing_values", value))


def _missing_value(value: Any, categories: bool) -> str | int | float:
    """One of them.  None and NaN are missing anyway."""
    found = plain(value)
    if categories and isinstance(found, bool):
        return CategoryReader().parse(found)
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        wanted = "strings, numbers and booleans" if categories else "strings and numbers"
        raise ConfigError(f"missing_values must have {wanted}, got {shown_value(value)}")
    if isinstance(found, str):
        return checked_word("missing_values", found)
    return found if isinstance(found, float) else int(found)


def checked_word(what: str, value: str) -> str:
    """A string that UTF-8 can carry."""
    if not is_text(value):
        raise ConfigError(f"{what} has half of a surrogate pair, which is not valid text: {shown_value(value)}")
    return str.__str__(value)


def check_list_options(kind: Any, *, categories: bool = False) -> None:
    """Options of every kind with ids: `one_hot`, `max_length`, `weights`, `column`, `cross_only`, `missing_values`."""
    store(
        kind,
        one_hot=checked_flag("one_hot", kind.one_hot),
        cross_only=checked_flag("cross_only", kind.cross_only),
        max_length=None if kind.max_length is None else checked_count("max_length", kind.max_length, most=2**31 - 1),
        weights=None if kind.weights is None else checked_name("weights", kind.weights),
        column=None if kind.column is None else checked_name("column", kind.column),
        missing_values=checked_missing_values(kind.missing_values, categories=categories),
    )
    if kind.weights is not None and kind.max_length is None:
        raise ConfigError(f"weights={kind.weights!r} needs max_length=: a single value has no weight")
    if kind.weights is not None and kind.weights == kind.column:
        raise ConfigError(f"the values and their weights cannot both be in the column {kind.column!r}")
    if kind.cross_only and (kind.one_hot or kind.max_length is not None):
        raise ConfigError("cross_only=True creates no input of the model, so leave out one_hot= and max_length='")
