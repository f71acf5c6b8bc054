"""Keep what a model answered as files: `rows.json`, and an array of each input and output.

Contract
--------
* Numbers are `.npy` files of format 1.0, text is JSON; there is no pickle.  What is read is what was written, bit for
  bit.
* Whatever an input is called, its file is inside the folder.
* Reading trusts nothing: an array is of the expected dtype and shape, and of as many bytes as that takes, or it is an
  `ArtifactInvalid`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.artifact.recorded import Recorded, RecordedRows
from penstock.embeddings.training_store import TableShape
from penstock.errors import ArtifactInvalid
from penstock.features.tensors import TensorSpec
from penstock.hosting.file_names import file_stem

ROWS: Final = "rows.json"
IDS: Final = "ids"
"""The folder with the ids of each lookup."""
LOOKED_UP: Final = "looked_up"
ROWS_IDS: Final = "looked_up/ids"
"""The folders with the rows that were looked up in each table, and with their ids."""

Reader: TypeAlias = Callable[[str], bytes]
"""The content of a file, by its path below some folder."""


def recorded_files(recorded: Recorded) -> Iterator[tuple[str, bytes]]:
    """The files of rows, inputs and outputs: their paths below some folder, and what is in them."""
    yield ROWS, msgspec.json.encode(list(recorded.rows))
    for part, arrays in (("inputs", recorded.inputs), ("outputs", recorded.outputs)):
        for name, array in arrays.items():
            yield path_of(part, name, is_text=array.dtype.kind in "OU"), _to_bytes(array)
    for name, array in recorded.ids.items():
        yield path_of(IDS, name, is_text=False), _to_bytes(array)
    for table, found in recorded.looked_up.items():
        yield path_of(ROWS_IDS, table, is_text=False), _to_bytes(found.ids)
        yield path_of(LOOKED_UP, table, is_text=False), _to_bytes(found.rows)


def write_recorded(folder: Path, recorded: Recorded) -> None:
    """Write rows, inputs and outputs into a new folder."""
    folder.mkdir()
    for path, content in recorded_files(recorded):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def read_recorded(
    read: Reader,
    folder: str,
    *,
    rows: int,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    ids: Iterable[tuple[TensorSpec, bool]] = (),
    tables: Iterable[TableShape] = (),
) -> Recorded:
    """What the files in `folder` hold, where it is of these rows, inputs and outputs.

    Args:
        read: gives a file.
        folder: where they are.
        rows: how many.
        inputs: those of the model.
        outputs: likewise.
        ids: the ids of each lookup, and whether they are by the row.
        tables: the tables whose rows were looked up.

    Raises:
        ArtifactInvalid: it is of others.
    """
    return Recorded(
        rows=_read_rows(read, folder, rows),
        inputs={tensor.name: _read_array(read, f"{folder}/inputs", tensor, rows) for tensor in inputs},
        outputs={tensor.name: _read_array(read, f"{folder}/outputs", tensor, rows) for tensor in outputs},
        ids={
            tensor.name: _read_array(read, f"{folder}/{IDS}", tensor, rows if by_row else None)
            for tensor, by_row in ids
        },
        looked_up={table.name: _read_rows_of(read, folder, table) for table in tables},
    )


def _read_rows_of(read: Reader, folder: str, table: TableShape) -> RecordedRows:
    ids = _read_array(read, f"{folder}/{ROWS_IDS}", TensorSpec(table.name, "int64"), None)
    rows = _read_array(read, f"{folder}/{LOOKED_UP}", TensorSpec(table.name, "float32", (table.width,)), len(ids))
    return RecordedRows(ids, rows)


def path_of(part: str, name: str, *, is_text: bool) -> str:
    """Where the array of an input or an output is, below the folder."""
    return f"{part}/{file_stem(name)}{'.json' if is_text else '.npy'}"


def read_rows(read: Reader, folder: str) -> list[dict[str, Any]]:
    """The rows alone, without the arrays.

    Raises:
        ArtifactInvalid: the file holds something else.
    """
    path = f"{folder}/{ROWS}"
    try:
        return msgspec.json.decode(read(path), type=list[dict[str, Any]])
    except (ValueError, RecursionError) as error:
        raise ArtifactInvalid(f"{path} is no list of rows: {error}", file=path) from error


def _read_rows(read: Reader, folder: str, expected: int) -> list[dict[str, Any]]:
    rows = read_rows(read, folder)
    if len(rows) != expected:
        path = f"{folder}/{ROWS}"
        raise ArtifactInvalid(f"{path} has {len(rows)} rows, and {expected} are expected", file=path)
    return rows


def _to_bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.kind in "OU":
        return msgspec.json.encode(array.tolist())
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _read_array(read: Reader, part: str, tensor: TensorSpec, rows: int | None) -> np.ndarray[Any, Any]:
    path = path_of(part, tensor.name, is_text=tensor.dtype == "str")
    content = read(path)
    try:
        array = _text_array(content) if tensor.dtype == "str" else _number_array(content)
    except (ValueError, RecursionError) as error:
        raise ArtifactInvalid(f"{path} is no array: {error}", file=path) from error
    problem = _misfit(array, tensor, rows)
    if problem:
        raise ArtifactInvalid(f"{path}: {problem}", file=path)
    return array


def _misfit(array: np.ndarray[Any, Any], tensor: TensorSpec, rows: int | None) -> str:
    """Why an array cannot be of `tensor` for so many rows, or for any number; "" where it can."""
    dtype = "str" if array.dtype.kind in "OU" else array.dtype.name
    if dtype != tensor.dtype:
        return f"{tensor.name!r} is {dtype}, and {tensor.dtype} is expected"
    wanted = (rows, *tensor.shape)
    fits = len(array.shape) == len(wanted) and all(
        size is None or size == got for size, got in zip(wanted, array.shape, strict=True)
    )
    return "" if fits else f"{tensor.name!r} has the shape {array.shape}, and {wanted} is expected"


def _text_array(content: bytes) -> np.ndarray[Any, Any]:
    found = msgspec.json.decode(content)
    array = np.array(found, dtype=object)
    if not isinstance(found, list) or not all(isinstance(value, str) for value in array.flat):
        raise ValueError("it holds something besides text, or rows of different lengths")
    return array


def _number_array(content: bytes) -> np.ndarray[Any, Any]:
    # numpy's own reader makes room for whatever shape a header claims, before it looks for the bytes.
    shape, is_fortran, dtype, start = _read_header(content)
    body = content[start:]
    if is_fortran or dtype.hasobject or dtype.names is not None or not dtype.isnative:
        raise ValueError(f"it is of {dtype}, or its axes are not in order")
    if any(isinstance(axis, bool) for axis in shape):  # to numpy's reader they are integers
        raise ValueError(f"its shape is {shape}")
    size = dtype.itemsize
    for axis in shape:
        size *= axis
    if size != len(body) or min(shape, default=0) < 0:
        raise ValueError(f"it has {len(body)} bytes, and {shape} of {dtype} takes {size}")
    return np.frombuffer(body, dtype=dtype).reshape(shape)


def _read_header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("its format is not 1.0")
    try:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # numpy parses it as Python: there are errors of the tokenizer, of `ast`, of its own
        raise ValueError(f"its header cannot be read: {error}") from error
    return shape, is_fortran, dtype, file.tell()
