"""An input of a stage with the answer that it must have, and whether an answer is the one that is wanted.

Contract
--------
* Floats are compared within a tolerance; what is no number has to be equal.  NaN equals NaN.
* Arrays and tensors, of whatever library, are compared as lists, and lists and tuples are alike.
* Objects of one class are compared field by field where the class tells its fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.codec.text import cut_middle
from penstock.config import checked_fields
from penstock.errors import ConfigError

RELATIVE: Final = 1e-5
"""How far a float may be from what is wanted, as a part of it, where an example does not say."""
SHOWN_BYTES: Final = 300
"""Most bytes of each value that an error shows."""
BYTES_KINDS: Final = (bytes, bytearray, memoryview)


class WrongAnswer(Exception):
    """A stage answered an example otherwise than it must."""


@checked_fields
@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """An input of a stage and the output that it must have, among the `examples` of the stage.

    A worker that answers otherwise does not become ready.  Without a `tolerance` the output has to be equal, floats
    within 1e-5 of their value.  With one, a float may differ by the tolerance, or by that part of its value if this is
    more; 0 is exactly equal.

    Raises:
        ConfigError: `tolerance` is no number of at least 0.
    """

    input: Any
    output: Any
    tolerance: float | None = None

    def __post_init__(self) -> None:
        given = self.tolerance
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if given is not None and not (number and 0 <= given < math.inf):
            raise ConfigError(f"the tolerance of an Example must be None or a number of at least 0, got {given!r}")


def input_of(example: Any) -> Any:
    """The input of one of a stage's `examples`, which may have an answer beside it."""
    return example.input if type(example) is Example else example


def inputs_of(examples: Iterable[Any]) -> list[Any]:
    """The inputs of a stage's `examples`."""
    return [input_of(example) for example in examples]


def check_answer(example: Any, came: Any, what: str) -> None:
    """Raise WrongAnswer where `example`, which an error calls `what`, must not have the answer `came`."""
    if type(example) is Example:
        words = difference(example.output, came, example.tolerance)
        if words:
            raise WrongAnswer(f"{what}: {words}")


def difference(wanted: Any, came: Any, tolerance: float | None) -> str:
    """The wanted value and the one that came, at the first place where they differ; "" where they do not."""
    found = _differ(wanted, came, tolerance, "$")
    if found is None:
        return ""
    where = "" if found.path == "$" else f" at `{found.path}`"
    words = f"expected {_shown(found.wanted)}, got {_shown(found.came)}{where}"
    if tolerance is None and _are_numbers(found.wanted, found.came):
        words += f"; floats may differ by {RELATIVE:g} of their value; set `tolerance=` of the Example to change it"
    return words


class _Difference(NamedTuple):
    path: str
    wanted: Any
    came: Any


def _differ(wanted: Any, came: Any, tolerance: float | None, path: str) -> _Difference | None:
    one, other = _plain(wanted), _plain(came)
    if _are_numbers(one, other):
        return None if _close(one, other, tolerance) else _Difference(path, one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        pairs = [(f"{path}.{key}", one[key], other[key]) for key in one]
    elif type(one) is type(other) and (names := _fields(one)) is not None:
        pairs = [(f"{path}.{name}", getattr(one, name, None), getattr(other, name, None)) for name in names]
    else:
        return None if one is other or one == other else _Difference(path, one, other)
    for place, a, b in pairs:
        found = _differ(a, b, tolerance, place)
        if found is not None:
            return found
    return None


def _plain(value: Any) -> Any:
    """Bytes as bytes, and arrays, tensors and their numbers as those of Python; every library calls it `tolist`."""
    kind = type(value)
    if issubclass(kind, BYTES_KINDS):
        return bytes(value)
    if hasattr(kind, "tolist"):
        return value.tolist()
    return _plain(value.numpy()) if hasattr(kind, "numpy") else value  # TensorFlow's have no `tolist`


def _fields(value: Any) -> list[str] | None:
    """The names of the fields of `value`, as its class tells them; None where it does not."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.compare]
    if hasattr(kind, "__struct_fields__"):  # msgspec
        return list(kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    if hasattr(kind, "__pydantic_fields__"):
        return list(kind.__pydantic_fields__)
    return None


def _are_numbers(one: Any, other: Any) -> bool:
    """Whether both are numbers, and one of them a float."""
    kinds = type(one), type(other)
    return float in kinds and all(kind in (int, float) for kind in kinds)


def _close(wanted: float, came: float, tolerance: float | None) -> bool:
    if wanted == came or (wanted != wanted and came != came):  # noqa: PLR0124  # NaN; an int may be too large for isnan
        return True
    relative, absolute = (RELATIVE, 0.0) if tolerance is None else (tolerance, tolerance)
    try:
        return abs(came - wanted) <= max(relative * abs(wanted), absolute) < math.inf
    except OverflowError:  # an int that no float can be
        return False


def _shown(value: Any) -> str:
    return cut_middle(repr(value), SHOWN_BYTES)
