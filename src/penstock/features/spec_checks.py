"""Check the features of a spec against each other, before anything is fitted or encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from penstock.errors import ConfigError
from penstock.features.encoding import columns_of
from penstock.features.kind_checks import checked_name
from penstock.features.kinds import Bucketized, Crossed, Feature, Hashed, Ids, Numeric, Vocabulary, has_weights
from penstock.features.values import shown_value
from penstock.spelling import nearest


def check_spec(kinds: Mapping[str, Feature], concat_into: str | None) -> None:
    """That the features can stand in one spec.

    Raises:
        ConfigError: there is none, two have one name, a cross has a key that it cannot have, or two read one column
            in different ways.
    """
    if not kinds:
        raise ConfigError("a spec needs at least one feature")
    for name, kind in kinds.items():
        checked_name("the name of a feature", name)
        if not isinstance(kind, get_args(Feature)):
            raise ConfigError(
                f"the feature {name!r} must be a kind, such as penstock.features.Numeric(), got {shown_value(kind)}"
            )
    for name, kind in kinds.items():
        if isinstance(kind, Crossed):
            _check_keys(name, kind, kinds)
    _check_cross_only(kinds)
    _check_input_names(kinds, concat_into)
    _check_columns(kinds)


def _check_keys(name: str, kind: Crossed, kinds: Mapping[str, Feature]) -> None:
    for key in kind.keys:
        if key not in kinds:
            near = nearest(key, kinds, 0.6)
            hint = "" if near is None else f"; did you mean {near!r}?"
            raise ConfigError(f"{name!r} is crossed with {key!r}, which is not a feature{hint}")
        found = kinds[key]
        if not isinstance(found, (Bucketized, Hashed, Vocabulary, Ids)):
            raise ConfigError(
                f"{name!r} cannot be crossed with {key!r}, which is {type(found).__name__}: a key must be "
                "Bucketized, Hashed, Vocabulary or Ids; declare one for its column, with cross_only=True"
            )
        if found.max_length is not None:
            raise ConfigError(
                f"{name!r} cannot be crossed with {key!r}, which has many values a row: leave out max_length="
            )


def _check_cross_only(kinds: Mapping[str, Feature]) -> None:
    keys = {key for kind in kinds.values() if isinstance(kind, Crossed) for key in kind.keys}
    for name, kind in kinds.items():
        if getattr(kind, "cross_only", False) and name not in keys:
            raise ConfigError(f"{name!r} has cross_only=True, but no cross has it as a key")


def _check_input_names(kinds: Mapping[str, Feature], concat_into: str | None) -> None:
    """That no two inputs of the model have one name."""
    joined = [name for name, kind in kinds.items() if is_float(kind)]
    names = [(name, f"the feature {name!r}") for name, kind in kinds.items() if not getattr(kind, "cross_only", False)]
    names += [(f"{name}_weight", f"the weights of {name!r}") for name, kind in kinds.items() if has_weights(kind)]
    _check_names_once(names)
    if concat_into is not None:
        checked_name("concat_into", concat_into)
        if not joined:
            raise ConfigError(
                f"concat_into={concat_into!r} has nothing to concatenate: no feature is a number or one-hot"
            )
        apart = [(name, what) for name, what in names if name not in joined]
        _check_names_once([*apart, (concat_into, f"concat_into={concat_into!r}")])


def _check_names_once(names: Sequence[tuple[str, str]]) -> None:
    taken: dict[str, str] = {}
    for name, what in names:
        if name in taken:
            raise ConfigError(f"{taken[name]} and {what} would both be the input {name!r} of the model")
        taken[name] = what


def is_float(kind: Feature) -> bool:
    """Whether the feature gives one float32 input: only such can be joined."""
    return isinstance(kind, Numeric) or getattr(kind, "one_hot", False)


def _check_columns(kinds: Mapping[str, Feature]) -> None:
    """That the features which read one column take the same form of it: a value, a list, or weights."""
    forms: dict[str, tuple[str, str]] = {}
    for name, kind in kinds.items():
        for place, column in enumerate(columns_of(name, kind)):
            form = "weights" if place else "a value" if getattr(kind, "max_length", None) is None else "a list"
            other, first = forms.setdefault(column, (name, form))
            if form != first:
                raise ConfigError(f"the column {column!r} is {first} for {other!r} and {form} for {name!r}")
