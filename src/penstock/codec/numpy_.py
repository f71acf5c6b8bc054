"""numpy arrays on the wire: as nested lists, and as `.npy`.  The only file of the package that imports numpy.

* An array is read from lists whose leaves are all numbers, at one depth, in rows of equal length.
* A declared dtype is kept to: a value it cannot represent is refused, never truncated, wrapped or turned into infinity.
* The header of a `.npy` payload is not trusted: the length it names is compared with the payload's before an array is
  made, no object dtype is read, and nothing in it is evaluated.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from math import prod
from typing import Annotated, Any, get_args

import msgspec
import numpy as np

from penstock.codec.annotations import expand_alias
from penstock.codec.invalid import UnreadablePart, explain
from penstock.codec.text import cut_middle
from penstock.core.payload import Buffer

MAX_AXES = 32
"""Deepest nesting that is read as an array.  numpy's own limit was 32 up to 1.26 and is 64 now."""
MAX_NPY_HEADER = 10_000
"""Longest `.npy` header read, in bytes; `numpy.load` has the same limit."""
MAX_EMPTY = 65_536
"""Most rows an array without elements may claim: they take no bytes, but walking them takes time."""
_SHAPE_BYTES = 200
"""Most of a shape that a refusal repeats."""
_LAST_POINT = np.uint32(0x10FFFF)
_FIRST_SURROGATE, _SURROGATES = np.uint32(0xD800), np.uint32(0x800)

_DEFAULTS: dict[type, type] = {
    np.floating: np.float64,
    np.inexact: np.float64,
    np.integer: np.int64,
    np.signedinteger: np.int64,
    np.unsignedinteger: np.uint64,
    np.complexfloating: np.complex128,
}
_NARROW = frozenset(map(np.dtype, (np.float16, np.float32, np.complex64)))
"""Dtypes for which a Python float can be too large."""
_ABSTRACT = frozenset({*_DEFAULTS, np.generic, np.number, np.flexible, np.character})


class DeclaredDtype(msgspec.Struct, frozen=True):
    """What an annotation says about an array's dtype."""

    kind: type[np.generic]
    """An array is right as it is if its dtype is of this kind."""
    default: Any
    """The `numpy.dtype` to make of other numbers, or None to take what comes."""

    def allows(self, dtype: np.dtype[Any]) -> bool:
        """Whether an array of `dtype` is right as it is."""
        return issubclass(dtype.type, self.kind)

    @property
    def name(self) -> str:
        """The dtype by the name users write."""
        return self.kind.__name__


ANYTHING = DeclaredDtype(np.generic, None)  # type: ignore[type-abstract]  # only compared with


@lru_cache(maxsize=256)
def declared_dtype(type_: Any) -> DeclaredDtype:
    """What the annotation (``np.ndarray``, ``NDArray[np.float32]``) says about the dtype."""
    for argument in get_args(expand_alias(type_))[1:]:
        for kind in get_args(argument):
            if kind in _ABSTRACT:
                default = _DEFAULTS.get(kind)
                return DeclaredDtype(kind, np.dtype(default) if default else None)
            if isinstance(kind, type) and issubclass(kind, np.generic):
                return DeclaredDtype(kind, np.dtype(kind))
    return ANYTHING


def read_array(value: Any, type_: Any) -> np.ndarray[Any, Any]:
    """The array that nested lists of numbers stand for; an array is taken as it is, or cast.

    Raises:
        UnreadablePart: not lists of numbers, rows of unequal length, or numbers that the declared dtype cannot
            represent.
    """
    declared = declared_dtype(type_)
    if isinstance(value, np.ndarray):
        return as_declared(value, declared)
    depth = _depth(value)
    try:
        numbers = msgspec.convert(value, _nested(depth, declared.default))
    except msgspec.ValidationError as exc:
        raise UnreadablePart(*explain(exc)) from None
    try:
        with np.errstate(over="ignore"):
            array = np.array(numbers, dtype=declared.default)
    except OverflowError:
        raise UnreadablePart(f"number out of range for `{declared.name}`") from None
    except ValueError:
        raise UnreadablePart("expected rows of equal length") from None
    if array.dtype.kind not in "biufc":
        raise UnreadablePart("number out of range for an array")
    if array.dtype in _NARROW and not np.isfinite(array).all():
        _refuse_overflow(np.array(numbers, dtype=np.float64), array)
    return array


def read_scalar(value: Any, kind: Any) -> Any:
    """The numpy scalar of class `kind` that a number stands for.  Raises UnreadablePart."""
    if isinstance(value, kind):
        return value
    try:
        return read_array([value], np.ndarray[Any, np.dtype[kind]])[0]
    except UnreadablePart as exc:  # without its path, which is that of the first number in a list
        raise UnreadablePart(exc.reason) from None


def as_declared(array: np.ndarray[Any, Any], declared: DeclaredDtype) -> np.ndarray[Any, Any]:
    """The array itself if its dtype is right, or a cast one that has the same numbers.

    Raises:
        UnreadablePart: the dtype cannot represent them.
    """
    if declared.allows(array.dtype):
        return array
    wanted = declared.default
    kinds = array.dtype.kind + ("?" if wanted is None else wanted.kind)
    castable = wanted is not None and np.can_cast(array.dtype, wanted, "same_kind")
    if not set(kinds) <= set("biufc") or not (castable or set(kinds) <= set("iu")):
        raise UnreadablePart(f"expected an array of `{declared.name}`, got `{array.dtype}`")
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if kinds[1] in "iu" and not np.array_equal(cast, array):
        raise UnreadablePart(f"number out of range for `{wanted}`")
    if kinds[1] in "fc":
        _refuse_overflow(array, cast)
    return cast


def check_dtype(array: Any, type_: Any) -> None:
    """Raise UnreadablePart unless `array` is an array of exactly the declared dtype."""
    declared = declared_dtype(type_)
    if not isinstance(array, np.ndarray):
        raise UnreadablePart(f"expected `ndarray`, got `{type(array).__name__}`")
    if not declared.allows(array.dtype):
        raise UnreadablePart(f"expected an array of `{declared.name}`, got `{array.dtype}`")


def plain_numbers(value: Any) -> Any:
    """The numbers of an array or a numpy scalar as Python's own: lists, ints, floats.

    Raises:
        TypeError: a scalar that Python has no number for.
    """
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.floating):  # longdouble.item() would give a longdouble again
        return float(value)
    item = value.item()
    if isinstance(item, np.generic):
        raise TypeError(f"`{type(value).__name__}` cannot be written as JSON or MessagePack")
    return item


def widen(number: np.floating[Any]) -> float:
    """The float64 of a number's shortest decimal.  No print option of numpy changes it, as it would change `str`."""
    return float(np.format_float_scientific(number))


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype are float16 or float32, in either byte order."""
    return dtype.type in (np.float16, np.float32)


def json_type(kind: type[np.generic]) -> str:
    """What JSON calls a numpy scalar of class `kind`."""
    if issubclass(kind, np.bool_):
        return "boolean"
    if issubclass(kind, np.integer):
        return "integer"
    return "string" if issubclass(kind, (np.character, np.datetime64)) else "number"


def is_finite(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array of numbers has neither NaN nor infinity; False for arrays of anything else."""
    return array.dtype.kind in "biufc" and bool(np.isfinite(array).all())


def read_npy(payload: Buffer, type_: Any) -> np.ndarray[Any, Any]:
    """The array in a `.npy` payload: a view of it, unless the declared dtype asks for a cast.

    Raises:
        UnreadablePart: not a `.npy`, an object or structured dtype, a header that claims another size than the payload
            has, or text that is not Unicode.
    """
    view = memoryview(payload)
    text, start = _npy_header(view)
    dtype, fortran_order, shape = _parse_npy_header(text)
    claimed = prod(shape) * dtype.itemsize
    if claimed != len(view) - start:  # a number of thousands of digits cannot even be made text
        size = str(claimed) if claimed < 2**63 else "2**63 or more"
        raise UnreadablePart(f"the header announces {size} bytes of array data, the payload has {len(view) - start}")
    if claimed == 0 and prod(n or 1 for n in shape) > MAX_EMPTY:
        raise UnreadablePart(f"an array without elements has the shape {cut_middle(str(shape), _SHAPE_BYTES)}")
    if dtype.kind == "U":
        _refuse_no_unicode(view[start:], dtype)
    try:
        array: np.ndarray[Any, Any] = np.ndarray(
            shape, dtype, buffer=view[start:] if claimed else None, order="F" if fortran_order else "C"
        )
    except ValueError as exc:  # more axes than numpy has
        raise UnreadablePart(str(exc)) from None
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    return as_declared(array, declared_dtype(type_))


def write_npy(value: Any) -> list[Buffer]:
    """An array as `numpy.save` writes it, format 1.0: its header, and its memory without a copy.

    An array that is contiguous neither way is copied.

    Raises:
        TypeError: not an array, or one of objects or records.
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"expected a numpy array, got `{type(value).__name__}`")
    array = np.asarray(value)
    if array.dtype.kind not in "biufcmMSU":
        raise TypeError(f"an array of `{array.dtype}` has no `.npy` form without pickle")
    fortran_order = array.flags.f_contiguous and not array.flags.c_contiguous
    flat = (array.T if fortran_order else np.ascontiguousarray(array)).reshape(-1)
    fields = f"{{'descr': {array.dtype.str!r}, 'fortran_order': {fortran_order}, 'shape': {array.shape!r}, }}"
    padding = -(10 + len(fields) + 1) % 64
    text = (fields + " " * padding + "\n").encode("latin1")
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    return [head, flat.view(np.uint8).data]


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, (list, tuple)) and depth <= MAX_AXES:
        depth += 1
        if not value:
            break
        value = value[0]
    if depth > MAX_AXES:
        raise UnreadablePart(f"an array has at most {MAX_AXES} axes")
    return max(depth, 1)  # a bare number is refused as "expected `array`"


@lru_cache(maxsize=256)
def _nested(depth: int, dtype: np.dtype[Any] | None) -> Any:
    """The msgspec type of lists `depth` deep whose leaves `dtype` can represent.

    The leaves are checked before numpy sees them, for the message and for the memory: numpy would allocate the length
    of the longest string for every element.
    """
    type_: Any
    if dtype is None:
        type_ = int | float | bool
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # msgspec's limits are 64-bit and signed; above them numpy itself raises
        type_ = Annotated[int, msgspec.Meta(ge=int(limits.min), le=min(int(limits.max), 2**63 - 1))]
        if limits.max > 2**63 - 1:
            type_ = Annotated[int, msgspec.Meta(ge=0)]
    elif dtype.kind in "fc":
        type_ = float
    elif dtype.kind == "b":
        type_ = bool
    else:
        raise UnreadablePart(f"an array of `{dtype}` cannot be read from lists")
    for _ in range(depth):
        type_ = list[type_]
    return type_


def _refuse_overflow(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> None:
    """Refuse a cast that made an infinity where there was none."""
    if (np.isinf(after) & np.isfinite(before)).any():
        raise UnreadablePart(f"number out of range for `{after.dtype}`")


def _refuse_no_unicode(data: memoryview, dtype: np.dtype[Any]) -> None:
    """Refuse text whose numbers are no characters: numpy takes it, and then nobody can read or write it."""
    points = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(dtype.byteorder))
    if ((points > _LAST_POINT) | (points - _FIRST_SURROGATE < _SURROGATES)).any():
        raise UnreadablePart(f"an array of `{dtype}` has an invalid Unicode character")


def _npy_header(view: memoryview) -> tuple[str, int]:
    """The header's text, and where the array's bytes start."""
    if bytes(view[:6]) != b"\x93NUMPY" or len(view) < 12:
        raise UnreadablePart("not an .npy file")
    if view[6] == 1:
        start, size = 10, struct.unpack_from("<H", view, 8)[0]
    elif view[6] in (2, 3):
        start, size = 12, struct.unpack_from("<I", view, 8)[0]
    else:
        raise UnreadablePart(f"version {view[6]} of .npy is not supported")
    if size > MAX_NPY_HEADER or start + size > len(view):
        raise UnreadablePart(f"the .npy header has {size} bytes: longer than the payload or than allowed")
    return bytes(view[start : start + size]).decode("latin1").strip(), start + size


_NPY_FIELD = re.compile(
    r"""\s*["'](descr|fortran_order|shape)["']\s*:\s*(?:["']([^"']*)["']|(True|False)|\(([\d,\s]*)\))\s*(?:,|$)\s*"""
)
_NPY_DTYPE = re.compile(r"[<>|=]?[biufcmMSU][1-9]\d{0,5}(\[\d{0,9}[a-zA-Z]{1,2}\])?")
_NPY_LENGTH = re.compile(r"\d{1,18}")


def _parse_npy_header(text: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    """The dtype, the order and the shape, read by a grammar: evaluating the text would let a client run code."""
    fields: dict[str, tuple[str | None, str | None, str | None]] = {}
    inner, position = text[1:-1], 0
    while position < len(inner):
        found = _NPY_FIELD.match(inner, position)
        if found is None:
            break
        name, *values = found.groups()
        fields[name] = (values[0], values[1], values[2])
        position = found.end()
    descr = fields.get("descr", (None,) * 3)[0]
    order = fields.get("fortran_order", (None,) * 3)[1]
    shape = fields.get("shape", (None,) * 3)[2]
    if text[:1] + text[-1:] != "{}" or position < len(inner) or descr is None or order is None or shape is None:
        raise UnreadablePart("the .npy header does not describe a plain array")
    lengths = [part.strip() for part in shape.split(",")]
    if lengths[-1] == "":
        lengths.pop()
    if not all(_NPY_LENGTH.fullmatch(length) for length in lengths):
        raise UnreadablePart("the .npy header has no valid shape")
    return _npy_dtype(descr), order == "True", tuple(map(int, lengths))


def _npy_dtype(descr: str) -> np.dtype[Any]:
    if _NPY_DTYPE.fullmatch(descr) is None:
        raise UnreadablePart(f"the dtype {descr[:40]!r} is not supported in .npy")
    try:
        return np.dtype(descr)
    except (TypeError, ValueError, OverflowError):
        raise UnreadablePart(f"the dtype {descr!r} does not exist") from None
