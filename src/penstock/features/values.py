"""One raw value: what it stands for, or why it is refused.

A reader takes a value of a row and gives what the kind of a feature counts with: a float, an integer, or a string.  It
gives None for a value that is missing, and raises `ValueRefused` for one that is not of the kind.

* Missing is what is None, NaN, pandas' NA and NaT, and what equals one of `missing_values`.
* A numpy scalar counts as the Python value that it holds, a float16 or float32 as its shortest decimal.  A boolean is
  no number; as a category it is its JSON text.
* Nothing is rounded: an integer that a float cannot hold exactly, and a float that is no integer, are refused.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
import numpy as np

from penstock.codec.numpy_ import is_narrow, widen
from penstock.codec.text import cut_middle
from penstock.features.narrow_floats import largest_whole

LARGEST_WHOLE_FLOAT: Final = 2.0**53
"""From here on not every integer is a float, so a larger float is no integer."""
FLOAT_BITS: Final = 53
"""How many bits, from the first to the last that is set, an integer may have that a float holds exactly."""
LARGEST_EXPONENT: Final = 1024
"""How many bits the integer part of a float may have."""
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
"""The one way to write an integer; no int64 has more digits."""
_SHOWN = 100
"""Most characters of a value that a reason repeats."""

T = TypeVar("T")


class ValueRefused(ValueError):
    """The value is not of the kind that the feature takes."""


def shown_value(value: Any) -> str:
    """The value as a reason names it: its type, and its beginning and end."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python refuses to print more than 4300 digits
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # the class is the caller's; and a list may have an integer too long to print
        text = "that cannot be shown"
    return cut_middle(text, _SHOWN)


def missing_objects() -> tuple[Any, ...]:
    """The objects that stand for a missing value, besides NaN.

    pandas is not imported: where nobody has, there is no value of it.
    """
    pandas = sys.modules.get("pandas")
    ours = (None, msgspec.UNSET)
    return ours if pandas is None else (*ours, pandas.NA, pandas.NaT)


def plain(value: Any) -> Any:
    """The value without numpy: a scalar as Python's, None where it is missing, anything else as it is."""
    kind = type(value)
    if kind is str or kind is int:
        return value
    if isinstance(value, np.generic):
        if value.dtype.kind in "mM" and np.isnat(value):
            return None
        value = _from_numpy(value)
    if isinstance(value, float):
        return None if value != value else float(value)  # noqa: PLR0124  # NaN is the value that is not itself
    return None if any(value is gone for gone in missing_objects()) else value


def _from_numpy(value: np.generic) -> Any:
    if value.dtype.kind not in "biufU":
        return value  # `item()` of a time in nanoseconds is an integer
    if isinstance(value, np.floating) and is_narrow(value.dtype):
        return widen(value)
    if isinstance(value, np.longdouble):
        narrow = float(value)
        return narrow if narrow == value or narrow != narrow else value  # noqa: PLR0124  # NaN
    return value.item()


def is_text(value: str) -> bool:
    """Whether the string can be written in UTF-8: half of a surrogate pair cannot."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def fits(number: int) -> bool:
    """Whether a float holds the integer exactly."""
    size = abs(number)
    if size >> FLOAT_BITS == 0:
        return True
    trailing = (size & -size).bit_length() - 1
    return size.bit_length() - trailing <= FLOAT_BITS and size.bit_length() <= LARGEST_EXPONENT


def _instead(number: int) -> str:
    """How to send an integer that no float is.  It may be an id, so it is not rounded unless somebody says so."""
    try:
        rounded = float(number)
    except OverflowError:
        return ""
    return f": write {rounded!r} if it may be rounded, and give an id as text, to Ids or Vocabulary"


def whole(value: float) -> int | None:
    """The integer that the float is, or None where it is none."""
    return int(value) if -LARGEST_WHOLE_FLOAT <= value <= LARGEST_WHOLE_FLOAT and value.is_integer() else None


class ValueReader(ABC, Generic[T]):
    """Reads the values of one feature.  Each subclass reads one kind."""

    wanted: ClassVar[str]
    """What the values are, as the reasons say it."""

    def __init__(self, missing_values: tuple[Any, ...] = ()) -> None:
        self.ignored_values = frozenset(missing_values)
        self.ignored = frozenset(token for value in missing_values if (token := self._token_of(value)) is not None)
        """What the ignored values stand for, where they are of the kind."""

    def read(self, value: Any) -> T | None:
        """What the value stands for; None where it is missing.

        Raises:
            ValueRefused: it is not of the kind.
        """
        found = plain(value)
        if found is None or (isinstance(found, (str, int, float)) and self._is_ignored(found)):
            return None
        token = self.parse(found)
        if token in self.ignored:
            return None
        if found is not value:
            self.check_scalar(value)
        return token

    @abstractmethod
    def parse(self, value: Any) -> T:
        """What a plain value stands for that is not missing."""

    def check_scalar(self, value: Any) -> None:
        """Raise ValueRefused where a scalar of numpy does not say what it stands for."""

    def _is_ignored(self, value: str | float) -> bool:
        return value in self.ignored_values and not isinstance(value, bool)  # True equals 1

    def _token_of(self, value: Any) -> T | None:
        try:
            return self.parse(value)
        except ValueRefused:
            return None

    def refuse(self, value: Any) -> ValueRefused:
        """The error that says what was expected."""
        return ValueRefused(f"expected {self.wanted}, got {type(value).__name__} {shown_value(value)}")


class WholeReader(ValueReader[T]):
    """Reads what counts by its integer, where it is a float."""

    def check_scalar(self, value: Any) -> None:
        """Raise ValueRefused for a float16 or float32 beyond its largest whole number."""
        if isinstance(value, np.floating) and is_narrow(value.dtype) and abs(value) > largest_whole(value.dtype):
            raise ValueRefused(
                f"beyond {largest_whole(value.dtype):.0f} a {value.dtype} cannot represent every integer, so "
                f"{widen(value)!r} is ambiguous"
            )


class CategoryReader(WholeReader[str]):
    """Reads a category, as a string.  An integer or whole float is its decimal string, a boolean "true" or "false"."""

    wanted = "a string, an integer or a boolean"

    def parse(self, value: Any) -> str:
        """The category as a string."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            if not is_text(value):
                raise ValueRefused(f"{shown_value(value)} has half of a surrogate pair, which is not valid text")
            return str.__str__(value)
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return int.__str__(value)
            except ValueError:
                raise ValueRefused(f"expected a category, got {shown_value(value)}") from None
        if isinstance(value, float):
            number = whole(value)
            if number is None:
                raise ValueRefused(
                    f"a category is a string, an integer, or a whole float of at most 2**53, got {value!r}"
                )
            return str(number)
        raise self.refuse(value)


class TextReader(ValueReader[str]):
    """Reads a string, as it is."""

    wanted = "a string"

    def parse(self, value: Any) -> str:
        """The string itself."""
        if not isinstance(value, str):
            raise self.refuse(value)
        if not is_text(value):
            raise ValueRefused(f"{shown_value(value)} has half of a surrogate pair, which is not valid text")
        return str.__str__(value)


class IdReader(WholeReader[int]):
    """Reads an id: an int64, a whole float, or the decimal string of an int64."""

    wanted = "an integer or its decimal string"

    def parse(self, value: Any) -> int:
        """The id as an integer."""
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = int(value)
        elif isinstance(value, float):
            number = whole(value)
        elif isinstance(value, str) and _DECIMAL.fullmatch(value):
            number = int(value)
        if number is None:
            raise self.refuse(value)
        if not -(2**63) <= number < 2**63:
            raise ValueRefused(f"{shown_value(number)} is outside of int64")
        return number


class NumberReader(ValueReader[float]):
    """Reads a finite number, as float64.  An integer must be one that a float holds exactly."""

    wanted = "a number"

    def __init__(self, missing_values: tuple[Any, ...] = ()) -> None:
        super().__init__(missing_values)
        self.ignored_floats = np.array(
            [
                float(value)
                for value in missing_values
                if isinstance(value, float) or (isinstance(value, int) and fits(value))
            ]
        )

    def parse(self, value: Any) -> float:
        """The number as a float."""
        if isinstance(value, float):
            if value in (float("inf"), float("-inf")):
                raise ValueRefused(f"expected a finite number, got {value!r}")
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            if not fits(value):
                raise ValueRefused(f"{shown_value(value)} cannot be represented exactly as float64{_instead(value)}")
            return float(value)
        raise self.refuse(value)
