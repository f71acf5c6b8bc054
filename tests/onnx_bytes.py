"""Tiny ONNX models as bytes, without the library `onnx`: as much of protobuf as they take.

The numbers are the fields' numbers of onnx.proto3.
"""

from __future__ import annotations

import numpy as np

ELEMENTS = {"float32": 1, "int32": 6, "int64": 7, "str": 8, "bool": 9, "float64": 11}
Value = tuple[str, str, tuple[int | str, ...]]
"""An input or an output: name, dtype, and its axes; an axis of any length has a name."""


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def node(operator: str, inputs: list[str], outputs: list[str], **attributes: int) -> bytes:
    found = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    found += field(4, operator)
    for name, value in attributes.items():
        found += field(5, field(1, name) + field(3, value) + field(20, 2))
    return field(1, found)


def weights(name: str, array: np.ndarray, *, file: str = "") -> bytes:
    """A constant; with `file`, one whose bytes are said to be in another file."""
    found = b"".join(field(1, size) for size in array.shape) + field(2, ELEMENTS[array.dtype.name]) + field(8, name)
    if file:
        found += field(13, field(1, "location") + field(2, file)) + field(14, 1)
    else:
        found += field(9, array.tobytes())
    return field(5, found)


def value(number: int, name: str, dtype: str, axes: tuple[int | str, ...]) -> bytes:
    shape = b"".join(field(1, field(1, axis) if isinstance(axis, int) else field(2, axis)) for axis in axes)
    tensor = field(1, ELEMENTS[dtype]) + field(2, shape)
    return field(number, field(1, name) + field(2, field(1, tensor)))


def model(parts: list[bytes], inputs: list[Value], outputs: list[Value], *, opset: int = 17) -> bytes:
    graph = b"".join(parts) + field(2, "tiny")
    graph += b"".join(value(11, *one) for one in inputs) + b"".join(value(12, *one) for one in outputs)
    return field(1, 8) + field(7, graph) + field(8, field(2, opset))


def identity_named(name: str, dtype: str) -> bytes:
    """The input comes back, one value a row."""
    return model([node("Identity", [name], ["out"])], [(name, dtype, ("n",))], [("out", dtype, ("n",))])


def sums_graph() -> bytes:
    """The sum and the difference of `left` and `right`; the inputs and outputs have an order and names of their own."""
    parts = [node("Sub", ["left", "right"], ["a"]), node("Add", ["left", "right"], ["b"])]
    pairs = ("n", 2)
    return model(
        parts,
        [("right", "float32", pairs), ("left", "float32", pairs)],
        [("b", "float32", pairs), ("a", "float32", pairs)],
    )


def embedding(table: np.ndarray, slope: np.ndarray) -> bytes:
    """`id` picks a row of `table`, `x` is multiplied by it and by `slope`: a sigmoid comes out as `squeezed`."""
    return model(
        [
            weights("table", table),
            weights("slope", slope),
            node("Gather", ["table", "id"], ["row"]),
            node("Mul", ["row", "x"], ["scaled"]),
            node("MatMul", ["scaled", "slope"], ["sum"]),
            node("Sigmoid", ["sum"], ["squeezed"]),
        ],
        [("x", "float32", ("n", table.shape[1])), ("id", "int64", ("n",))],
        [("squeezed", "float32", ("n",))],
    )
