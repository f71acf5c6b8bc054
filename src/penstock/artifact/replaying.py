"""Replay rows through the feature spec and a graph, in batches of several sizes, as serving will.

Each row comes as the text that a client writes, in Python's form, and its encoding also in that of JavaScript.

A graph has to answer alike whatever the size of its batch: one that was exported with a fixed size, or whose answer to
a row depends on the rows beside it, is found here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from penstock.artifact.comparing import Deviation, compare_output, mismatch, worst_of
from penstock.artifact.lookups import Lookups
from penstock.artifact.recorded import Recorded, RefusedRow
from penstock.artifact.served_model import ServedModel
from penstock.codec.decode import ItemDecoder
from penstock.codec.formats import Codec
from penstock.embeddings.row_store import RowStore
from penstock.errors import ExportRefused, InvalidItem
from penstock.features.feature_spec import Features
from penstock.features.values import LARGEST_WHOLE_FLOAT

WHAT_TO_SET: Final = (
    "have the model answer such a row, as handle_unknown='ignore' does in an encoder, and MinMaxScaler(clip=True) "
    "before a step that makes a number too large, or the features refuse it, as Vocabulary with num_oov_indices=0 and "
    "Ids with size= do"
)
MOST_SHOWN: Final = 10
"""Ids that a message shows."""
BATCH_SIZES: Final = (1, 3)
"""Besides all rows at once.  Where there are fewer rows, they are repeated."""


def replay(
    model: ServedModel, recorded: Recorded, *, tolerance: tuple[float, float], first_row: int = 0
) -> list[Deviation]:
    """How far the graph's answers are from the recorded ones: the worst of all batch sizes, for each output.

    Args:
        model: the features that encode the rows, and the graph that answers.
        recorded: the rows, and what the model answered to them.
        tolerance: absolute and relative.
        first_row: the number of the first row, for messages and deviations.

    Raises:
        ExportRefused: a row is not valid, an input is not what was recorded, or the graph raised something.
    """
    found: dict[str, list[Deviation]] = {tensor.name: [] for tensor in model.outputs}
    rows = len(recorded.rows)
    recorded = _enough(recorded)
    decoder = ItemDecoder(model.features.item_type())
    items = _items(decoder, recorded.rows, json.dumps)
    sizes = list(dict.fromkeys((*BATCH_SIZES, rows)))
    for size in sizes:
        answers: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in found}
        for start, inputs in _encoded_batches(model.features, items, size, first_row):
            _check_inputs(inputs, recorded.inputs, start, first_row)
            with graph_asked(model.format, rows=len(next(iter(inputs.values()))), row=first_row + start):
                looked_up = model.lookups.look_up(inputs) if model.lookups is not None else None
                given = model.run(inputs, looked_up)
            if model.lookups is not None and looked_up is not None:
                is_all = size == rows == len(recorded.rows)
                _check_ids(model.lookups, looked_up.ids, recorded, slice(start, start + size), first_row, is_all=is_all)
            for name, array in zip(found, given, strict=True):
                answers[name].append(array)
        for name, arrays in answers.items():
            found[name].append(_compare(name, recorded.outputs[name], arrays, size, tolerance, first_row))
    others = _items(decoder, recorded.rows, javascript_text)
    for start, inputs in _encoded_batches(model.features, others, rows, first_row):
        _check_inputs(inputs, recorded.inputs, start, first_row)
    return [_of_rows(_worst_of_sizes(deviations, sizes), rows, first_row) for deviations in found.values()]


def replay_rows(store: RowStore, recorded: Recorded) -> None:
    """See that a store has the rows that the model has looked up, bit for bit.

    Raises:
        ExportRefused: it has others.
    """
    found = store.fetch({table: rows.ids for table, rows in recorded.looked_up.items()})
    for table, rows in recorded.looked_up.items():
        if not _same_bits(found[table].rows, rows.rows):
            wrong = (found[table].rows.view(np.uint32) != rows.rows.view(np.uint32)).any(axis=1)
            place = int(wrong.argmax())
            got, expected = found[table].rows[place].tolist(), rows.rows[place].tolist()
            raise ExportRefused(
                f"table {table!r}: the row of id {rows.ids[place]} is {got}, but was {expected} in training",
                expected=expected,
                got=got,
            )


def _check_ids(
    lookups: Lookups,
    ids: Mapping[str, np.ndarray[Any, Any]],
    recorded: Recorded,
    batch: slice,
    first_row: int,
    *,
    is_all: bool,
) -> None:
    """Hold the ids of each lookup to those that the model has looked up; `is_all`: the batch is all that it had."""
    for table in lookups.tables:
        for lookup in table.lookups:
            if lookup.ids not in recorded.ids or not (lookup.by_row or is_all):
                continue
            wanted, got = recorded.ids[lookup.ids], ids[lookup.ids]
            wanted = wanted[batch] if lookup.by_row else wanted
            if got.dtype != wanted.dtype or got.shape != wanted.shape or not _same_bits(got, wanted):
                raise ExportRefused(
                    f"table {table.name!r}: {lookup.ids!r} has the ids {_shown_ids(got)} in the rows from "
                    f"{first_row + batch.start}, but in training it had {_shown_ids(wanted)}",
                    row=first_row + batch.start,
                )


def _shown_ids(ids: np.ndarray[Any, Any]) -> str:
    shown = ids.reshape(-1)[:MOST_SHOWN].tolist()
    return f"{ids.dtype}{list(ids.shape)} {shown}{' and more' if ids.size > MOST_SHOWN else ''}"


def _worst_of_sizes(deviations: Sequence[Deviation], sizes: Sequence[int]) -> Deviation:
    """The worst of one output's deviations, one for each size of batch; it tells the sizes if only some are wrong."""
    worst = worst_of(deviations)
    wrong = [size for size, deviation in zip(sizes, deviations, strict=True) if deviation.problem]
    if not wrong or len(wrong) == len(sizes):
        return worst
    right = [size for size in sizes if size not in wrong]
    words = (
        f"only in batches of {_listed(wrong)}, and not of {_listed(right)}: the output must not "
        "depend on the batch size"
    )
    return replace(worst, problem=f"{worst.problem}; {words}")


def _listed(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, sizes))


def _enough(recorded: Recorded) -> Recorded:
    """The rows, repeated where there are too few of them for a batch of each size."""
    rows, wanted = len(recorded.rows), max(BATCH_SIZES)
    if rows >= wanted:
        return recorded
    return recorded.of_rows([place % rows for place in range(wanted)])


def _of_rows(deviation: Deviation, rows: int, first_row: int) -> Deviation:
    """A deviation that counts a repeated row once, and as the row that it is."""
    row = first_row + (deviation.row - first_row) % rows
    return replace(deviation, row=row, outside=min(deviation.outside, rows))


def refuse_outside(deviations: Sequence[Deviation], *, format: str) -> None:  # noqa: A002  # the word users know
    """Refuse a graph that is outside of the tolerance.

    Raises:
        ExportRefused: with the output of the greatest difference, and its worst row.
    """
    outside = [deviation for deviation in deviations if deviation.problem]
    if outside:
        worst = max(outside, key=lambda deviation: deviation.difference)
        raise ExportRefused(
            f"format {format!r}, output {worst.output!r}, row {worst.row}: {worst.problem} "
            f"(rows outside of the tolerance: {worst.outside})",
            format=format,
            output=worst.output,
            row=worst.row,
            expected=worst.expected,
            got=worst.got,
        )


def replay_made(model: ServedModel, made: Recorded, *, tolerance: tuple[float, float]) -> None:
    """See that rows which were made are answered as the model answered them.

    Raises:
        ExportRefused: one is not; the message has the row, which nobody gave.
    """
    try:
        refuse_outside(replay(model, made, tolerance=tolerance), format=model.format)
    except ExportRefused as error:
        row = made.rows[error.row or 0]
        raise ExportRefused(
            f"of the rows that the proof makes of yours, {msgspec.json.encode(row).decode()}: {error}",
            format=error.format,
            output=error.output,
            expected=error.expected,
            got=error.got,
        ) from error


def replay_ids(model: ServedModel, lookups: Lookups, far: Recorded) -> None:
    """See that rows with ids that no float32 holds have the ids looked up that the model has looked up for them.

    Raises:
        ExportRefused: others are; the message has the row, which nobody gave.
    """
    decoder = ItemDecoder(model.features.item_type())
    # Alone and repeated: a runtime may compute two ids at once.
    batches = [[place] * size for place in range(len(far.rows)) for size in BATCH_SIZES]
    for some in map(far.of_rows, batches):
        row, items = msgspec.json.encode(some.rows[0]).decode(), _items(decoder, some.rows, json.dumps)
        try:
            for start, inputs in _encoded_batches(model.features, items, len(items), 0):
                with graph_asked(model.format, rows=len(items)):
                    ids = lookups.look_up(inputs).ids
                _check_ids(lookups, ids, some, slice(start, start + len(items)), 0, is_all=False)
        except ExportRefused as error:
            raise ExportRefused(
                f"of the rows that the proof makes of yours, {row}: {error}; compute the ids otherwise, or with the "
                "features",
                format=model.format,
            ) from error


def replay_refused(model: ServedModel, refused: Sequence[RefusedRow], answered: Mapping[str, Any]) -> None:
    """See that rows which the model refuses are refused: each alone, and all together beside one that is answered.

    Args:
        model: what answers.
        refused: the rows, with the words of the model.
        answered: a row that the model answers.

    Raises:
        ExportRefused: the graph answers one, or fails.
    """
    decoder = ItemDecoder(model.features.item_type())
    batches = [[row] for row in refused] + ([[*refused] * 2] if refused else [])
    for batch in batches:
        items = _items(decoder, [answered, *(one.row for one in batch)], json.dumps)
        with graph_asked(model.format, rows=len(items)):
            found = model.predict_rows(items)
        for place, one in enumerate(batch, 1):
            if place not in found.invalid:
                row = msgspec.json.encode(one.row).decode()
                raise ExportRefused(
                    f"format {model.format!r}: the graph accepts a row that the model rejects, {row}, where the "
                    f"model reports: {one.reason}; {WHAT_TO_SET}",
                    format=model.format,
                )
        if 0 in found.invalid:
            raise ExportRefused(
                f"format {model.format!r}: the graph rejects a row that the model accepts: {found.invalid[0]}",
                format=model.format,
            )


def javascript_text(row: Mapping[str, Any]) -> str:
    """A row as `JSON.stringify` writes it: a whole number has no point."""
    return json.dumps({name: _javascript_value(value) for name, value in row.items()})


def _javascript_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_javascript_value(one) for one in value]
    # A zero without its sign would be another number, and of larger numbers JavaScript has other digits
    is_whole = isinstance(value, float) and value.is_integer() and 0 < abs(value) <= LARGEST_WHOLE_FLOAT
    return int(value) if is_whole else value


def _items(
    decoder: ItemDecoder, rows: Sequence[Mapping[str, Any]], write: Callable[[Mapping[str, Any]], str]
) -> list[msgspec.Struct]:
    """The rows as requests bring them: as the text of a client, read as a server reads it."""
    try:
        return [decoder.decode(Codec.JSON, write(row).encode()) for row in rows]
    except InvalidItem as error:
        raise ExportRefused(f"a recorded row would be rejected as a request: {error}") from error


def _encoded_batches(
    features: Features, items: Sequence[msgspec.Struct], size: int, first_row: int
) -> Iterator[tuple[int, Mapping[str, np.ndarray[Any, Any]]]]:
    for start in range(0, len(items), size):
        encoded = features.encode_rows(items[start : start + size])
        for place, problem in encoded.invalid.items():
            row = first_row + start + place
            raise ExportRefused(f"row {row} would be rejected as a request: {problem}", row=row)
        yield start, encoded.inputs


def _check_inputs(
    inputs: Mapping[str, np.ndarray[Any, Any]],
    recorded: Mapping[str, np.ndarray[Any, Any]],
    start: int,
    first_row: int,
) -> None:
    for name, array in inputs.items():
        wanted = recorded[name][start : start + len(array)]
        if array.dtype != wanted.dtype or array.shape != wanted.shape:
            raise ExportRefused(
                f"input {name!r} is encoded as {array.dtype} {array.shape} in batches of {len(array)}, and was "
                f"{wanted.dtype} {wanted.shape} in training",
                row=first_row + start,
            )
        if _same_bits(array, wanted):
            continue
        for place in range(len(array)):
            if not _same_bits(array[place : place + 1], wanted[place : place + 1]):
                row, got, expected = first_row + start + place, array[place].tolist(), wanted[place].tolist()
                raise ExportRefused(
                    f"input {name!r}, row {row}: it is encoded as {got!r}, and was {expected!r} in training",
                    row=row,
                    expected=expected,
                    got=got,
                )


def _same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.dtype.kind == "O":
        return bool((one == other).all())
    return one.tobytes() == other.tobytes()


@contextmanager
def graph_asked(format: str, *, rows: int, row: int = 0) -> Iterator[None]:  # noqa: A002  # the word users know
    """Ask a graph about so many rows, of which the first has the number `row`.

    Raises:
        ExportRefused: it raised something.
    """
    try:
        yield
    except Exception as error:  # the model is the user's, and each runtime has errors of its own
        raise ExportRefused(
            f"format {format!r}: the graph fails on a batch of {rows}, starting with row {row}: "
            f"{type(error).__name__}: {error}",
            format=format,
            row=row,
        ) from error


def _compare(
    name: str,
    expected: np.ndarray[Any, Any],
    answers: Sequence[np.ndarray[Any, Any]],
    size: int,
    tolerance: tuple[float, float],
    first_row: int,
) -> Deviation:
    """All batches of one size at once, or the first of them that is not even of the right shape."""
    for index, answer in enumerate(answers):
        part = expected[index * size : (index + 1) * size]
        if mismatch(part, answer):
            return compare_output(name, part, answer, tolerance=tolerance, first_row=first_row + index * size)
    return compare_output(name, expected, np.concatenate(answers), tolerance=tolerance, first_row=first_row)
