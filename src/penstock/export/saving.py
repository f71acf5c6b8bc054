"""Save a trained model as an artifact, which exists only once it is proved to answer as the model does.

Contract
--------
* Arguments are checked before the model is asked; a wrong one is a `ConfigError`.
* This process records the encoded inputs and what the model itself answers, of the rows given and of rows made of
  them, and which of those it refuses.  A fresh process replays all of that through each graph, and the artifact appears
  at its path by one rename only after it has succeeded.
* A graph answers a row as the model did among all rows.  The model itself is asked about some of them in small batches
  too, and refused where it answers otherwise there.
* Whatever happens before, also Ctrl-C, leaves nothing at the path, and the model as it was.
"""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.artifact.comparing import Deviation, compare_output
from penstock.artifact.drafting import Draft, new_artifact
from penstock.artifact.manifest import GraphEntry
from penstock.artifact.manifest_json import batch_to_entry
from penstock.artifact.proof import Proof, prove
from penstock.artifact.recorded import MadeRows, Recorded, RefusedRow, joined
from penstock.artifact.replaying import BATCH_SIZES
from penstock.config import Batch, check_keywords, checked_keywords
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused, InvalidItem
from penstock.export.boundary_rows import boundary_tables
from penstock.export.exporter import GraphSignature, ModelAnswer, ModelExporter
from penstock.export.made_rows import MadeRow, made_rows
from penstock.export.model_kinds import exporter_for
from penstock.export.naming import describe_outputs, name_outputs
from penstock.export.progress import Progress, progress_shown
from penstock.export.provenance import git_commit, library_versions
from penstock.export.save_options import SaveOptions, check_free_path
from penstock.features.feature_spec import Features
from penstock.features.kinds import Ids
from penstock.features.tensors import TensorSpec
from penstock.hosting.fault_points import hit
from penstock.hosting.host_clock import time_now

EXAMPLE_ROWS: Final = 32
"""With how many rows at most a model is traced."""
LARGEST: Final = 2**31
"""The default of `max_bytes`: the file format of ONNX holds no more."""
LARGEST_TABLE: Final = 2**28
"""The default of `inline_limit`."""
SHARD_BYTES: Final = 2**29
"""The default of `shard_bytes`."""
ROWS_APART: Final = 12
"""How many reference rows, and how many validation rows, the model itself is asked about in small batches: 16 calls."""
ENOUGH_ROWS: Final = 300
"""Rows that leave a doubt no longer: a fault in one row of a hundred is missed by as many once in twenty times."""


@dataclass(frozen=True)
class ExportReport:
    """What `save` has made and seen."""

    path: Path
    """The artifact."""
    digest: str
    """The sha256 of its manifest, which tells it from every other."""
    rows: int
    """How many rows were replayed: the reference rows, the validation rows, and those made of the reference rows."""
    max_difference: Mapping[str, float]
    """For each output, the greatest difference between the model's answer and a graph's."""


@checked_keywords("penstock.export.save")
def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    features: Features,
    reference_rows: Any,
    validation_data: Any = None,
    name: str = "model",
    outputs: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    batch: Batch = Batch(),  # noqa: B008  # frozen
    formats: Sequence[str] | None = None,
    tolerance: tuple[float, float] = (1e-5, 1e-5),
    max_bytes: int = LARGEST,
    inline_limit: int = LARGEST_TABLE,
    outside: Sequence[str] = (),
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Save `model` as an artifact at `path`, proved to answer there as it does here.

    Args:
        model: a `torch.nn.Module`, a `keras.Model`, an estimator or pipeline of scikit-learn, or what
            `penstock.embeddings.offload` returned.
        path: the folder to make, which must not exist.
        features: the fitted spec that the model was trained with.
        reference_rows: rows, as a table, that ship in the artifact: they prove it, warm it up and are its examples.
        validation_data: more rows that are compared once, here, and do not ship; best all that were held out.
        name: the name of the service that it becomes.
        outputs: the names of the outputs, where the model does not name them itself.
        classes: what the places of an output with a number for each class stand for.
        batch: how the rows of requests are gathered when it is served.
        formats: the formats to write; None: the first that the framework has.
        tolerance: absolute and relative: a graph may differ by the first, and by the second times the value.
        max_bytes: the most bytes that all graphs may have together.
        inline_limit: the most bytes of one embedding table that was trained outside of the model and is put into the
            graph.  A larger one, or one whose ids are any, stays outside of it: in shards, which servers map.
        outside: the paths of layers whose tables stay outside whatever their size.
        shard_bytes: the most bytes of one shard.
        metadata: whatever else the manifest is to say, as JSON.

    Raises:
        ConfigError: an argument is wrong, or the model cannot be asked with these features.
        ExportRefused: the model cannot be written in a format, or what was written does not answer as it does.
    """
    target = check_free_path(path)
    options = SaveOptions(
        name=name,
        outputs=outputs,
        classes=classes,
        batch=batch,
        formats=formats,
        tolerance=tolerance,
        max_bytes=max_bytes,
        inline_limit=inline_limit,
        outside=outside,
        shard_bytes=shard_bytes,
        metadata={} if metadata is None else metadata,
    )
    return _save(model, target, features, (reference_rows, validation_data), options)


def save_for_run(path: str | os.PathLike[str], run: str, arguments: Mapping[str, Any]) -> ExportReport:
    """As `save`, for a training run, whose id the manifest says.

    Args:
        path: the folder to make.
        run: the id.
        arguments: those of `save` by their names, all but `path`.

    Raises:
        ConfigError: one of them is not known, is missing or is wrong.
        ExportRefused: as by `save`.
    """
    signature = inspect.signature(save)
    known = [name for name in signature.parameters if name != "path"]
    check_keywords("penstock.export.save", arguments, known)
    try:
        bound = signature.bind(path=path, **arguments)
    except TypeError as error:
        raise ConfigError(f"penstock.export.save: {error}") from error
    bound.apply_defaults()
    given = dict(bound.arguments)
    target = check_free_path(given.pop("path"))
    model, features = given.pop("model"), given.pop("features")
    tables = given.pop("reference_rows"), given.pop("validation_data")
    given["metadata"] = {} if given["metadata"] is None else given["metadata"]
    return _save(model, target, features, tables, SaveOptions(**given, run=run))


def _save(model: Any, target: Path, features: Features, tables: tuple[Any, Any], options: SaveOptions) -> ExportReport:
    if not isinstance(features, Features):
        raise ConfigError(f"features must be a penstock.Features, got {features!r}")
    if not features.fitted:
        raise ConfigError("features are not fitted: pass the return value of features.fit(table)")
    exporter = exporter_for(model, features)
    with progress_shown() as progress:
        return save_exported(exporter, target, features, tables, options, progress)


def save_exported(
    exporter: ModelExporter,
    target: Path,
    features: Features,
    tables: tuple[Any, Any],
    options: SaveOptions,
    progress: Progress,
) -> ExportReport:
    """Save what `exporter` exports, as `save` does.

    Args:
        exporter: the model.
        target: where the artifact is to be.
        features: the fitted spec.
        tables: the reference rows, and the validation rows or None.
        options: the rest.
        progress: hears of every step.
    """
    formats = options.chosen_formats(exporter.formats, exporter.libraries[0])
    exporter.check_inputs(features.inputs)
    exporter.place_tables(options.inline_limit, options.outside)
    with new_artifact(target, name=options.name) as draft:
        progress.step("running the model")
        asked = _ask(exporter, features, tables, options)
        _tell_what_ships(features, asked.probes, progress)
        _tell_what_is_unseen(exporter.doubt, asked, progress)
        example = {name: array[:EXAMPLE_ROWS] for name, array in asked.probes.inputs.items()}
        signature = GraphSignature(features.inputs, asked.outputs, example)
        made = None
        if exporter.refuses_rows:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):  # of rows that nobody has
                made = ask_made(exporter, features, asked)
        elif asked.probes.ids:
            made = MadeRows(None, (), _ask_far(exporter, features, asked))
        graphs: list[GraphEntry] = []
        with exporter.materialized():
            for format_ in formats:
                progress.step(f"writing {format_}")
                graphs += exporter.write_graphs(format_, draft.folder, signature)
                _check_size(draft.folder, options.max_bytes, format_)
        created = time_now()
        shards = exporter.write_tables(draft.folder, created, options.shard_bytes)
        _ask_again(exporter, asked.probes, options.tolerance)
        hit("half_written")
        draft.finish(
            features=features,
            probes=asked.probes,
            graphs=graphs,
            batch=batch_to_entry(options.batch),
            tolerance=(float(options.tolerance[0]), float(options.tolerance[1])),
            classes=asked.classes,
            libraries=library_versions(exporter.libraries),
            created=created,
            git=git_commit(),
            metadata=options.metadata,
            run=options.run,
            tables=shards,
        )
        hit("synced")
        proof = _prove(draft, asked, made, progress)
        _ask_apart(exporter, asked, options.tolerance)  # last: where the graph is wrong too, the proof tells of it
        hit("verified")
        return _publish(draft, proof, progress, options.run)


@dataclass(frozen=True)
class _Asked:
    """What the model itself answered in this process."""

    probes: Recorded
    check: Recorded | None
    derived: Sequence[Recorded]
    """Rows that were made of the reference rows, in parts."""
    outputs: tuple[TensorSpec, ...]
    classes: Sequence[Any] | None


def _ask(exporter: ModelExporter, features: Features, tables: tuple[Any, Any], options: SaveOptions) -> _Asked:
    """Ask the model about the reference rows, and about the validation rows.

    Raises:
        ConfigError: a row, `outputs=` or `classes=` does not fit, or the model cannot be asked.
        ExportRefused: it answers NaN.
    """
    probes = _encode(features, tables[0], "reference_rows")
    if probes is None:
        raise ConfigError("reference_rows has no rows: the artifact is verified with the rows that it ships")
    check = _encode(features, tables[1], "validation_data") if tables[1] is not None else None
    answer = exporter.answer(probes.inputs)
    names = name_outputs(answer, options.outputs)
    outputs = describe_outputs(names, answer.arrays, len(probes.rows))
    classes = agreed_classes(options.classes, exporter.classes, outputs)
    probes = _recorded(probes, names, answer)
    if check is not None:
        check = _recorded(check, names, _same_shape(exporter.answer(check.inputs), outputs))
    _refuse_nan(probes, 0)
    if check is not None:
        _refuse_nan(check, len(probes.rows))
    derived = _ask_derived(exporter, features, boundary_tables(features, tables[0]), outputs)
    return _Asked(probes, check, derived, outputs, classes)


def _ask_derived(
    exporter: ModelExporter, features: Features, tables: Sequence[Any], outputs: Sequence[TensorSpec]
) -> list[Recorded]:
    """Ask the model about tables of rows that nobody gave; those to which it has no answer are left out."""
    found = []
    for table in tables:
        asked = _encode(features, table, "a row made of reference rows")
        if asked is None:
            continue
        found.append(_answered(exporter, asked, outputs))
    return found


def ask_made(exporter: ModelExporter, features: Features, asked: _Asked) -> MadeRows:
    """Ask the model about rows that are made of the given ones: which it answers, and which it rejects.

    Rows that the features refuse are left out, for they come to no graph.
    """
    given = [*asked.probes.rows, *(asked.check.rows if asked.check is not None else ())]
    rows = made_rows(features, given)
    return MadeRows(*_ask_rows(exporter, features, rows, asked.outputs, lambda one: one.is_compared))


def _ask_far(exporter: ModelExporter, features: Features, asked: _Asked) -> Recorded | None:
    """Ask the model about made rows with ids that no float32 holds; those that it refuses are left out."""
    rows = [one for one in made_rows(features, asked.probes.rows) if one.has_far_id]
    answered, _ = _ask_rows(exporter, features, rows, asked.outputs, lambda one: one.has_far_id)
    return answered


def _ask_rows(
    exporter: ModelExporter,
    features: Features,
    rows: Sequence[MadeRow],
    outputs: Sequence[TensorSpec],
    is_compared: Callable[[MadeRow], bool],
) -> tuple[Recorded | None, list[RefusedRow]]:
    """The answers to rows that are compared, or None where there are none; and the rows that are refused."""
    encoded = features.encode_rows([one.row for one in rows])
    kept = [rows[place] for place in encoded.kept]
    made = Recorded([one.row for one in kept], encoded.inputs, {})
    refused = _refused(exporter, made)
    answered = [place for place, one in enumerate(kept) if is_compared(one) and place not in refused]
    recorded = _answered(exporter, made.of_rows(answered), outputs) if answered else None
    return (
        recorded if recorded is not None and recorded.rows else None,
        [RefusedRow(kept[place].row, reason) for place, reason in refused.items()],
    )


def _refused(exporter: ModelExporter, made: Recorded) -> dict[int, str]:
    """The rows that the model refuses, by their places, with its words: each half of what it refuses is asked again."""
    refused: dict[int, str] = {}
    waiting = [range(len(made.rows))] if made.rows else []
    while waiting:
        places = waiting.pop()
        try:
            exporter.answer(made.of_rows(places).inputs)
        except ConfigError as error:
            if len(places) == 1:
                refused[places[0]] = str(error)
            else:
                half = len(places) // 2
                waiting += [places[half:], places[:half]]
    return refused


def _answered(exporter: ModelExporter, asked: Recorded, outputs: Sequence[TensorSpec]) -> Recorded:
    """The rows that nobody gave, with the model's answers; those to which it has no number are left out."""
    answer = _same_shape(exporter.answer(asked.inputs), outputs)
    recorded = _recorded(asked, [tensor.name for tensor in outputs], answer)
    good = np.ones(len(recorded.rows), bool)
    for array in recorded.outputs.values():
        if array.dtype.kind == "f":
            good &= np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return recorded.of_rows(np.flatnonzero(good).tolist())


def _prove(draft: Draft, asked: _Asked, made: MadeRows | None, progress: Progress) -> Proof:
    progress.step("replaying all rows through the saved graphs, in a fresh process")
    besides = [part for part in (asked.check, *asked.derived) if part is not None and part.rows]
    try:
        return prove(draft.folder, check=joined(besides) if besides else None, made=made, digest=draft.digest)
    except ArtifactInvalid as error:  # as a graph that its own runtime cannot open
        raise ExportRefused(f"the saved graphs cannot be used: {error}") from error


def _publish(draft: Draft, proof: Proof, progress: Progress, run: str | None) -> ExportReport:
    path = draft.publish()
    worst = ", ".join(f"{name} {difference:.3g}" for name, difference in proof.worst.items())
    done = f"saved {path}" if run is None else "verified the model"  # a run's stage is gone before anybody could look
    progress.note(f"{done}: the graphs match the model on {proof.rows} rows, greatest difference {worst}")
    return ExportReport(path=path, digest=draft.digest, rows=proof.rows, max_difference=dict(proof.worst))


def _encode(features: Features, table: Any, what: str) -> Recorded | None:
    """The rows of a table with their encoded inputs, and no outputs yet; None for a table without rows."""
    rows = features.to_rows(table)
    if not rows:
        return None
    try:
        return Recorded(rows, features.encode(table), {})
    except InvalidItem as error:
        raise ConfigError(f"{what}: {error}") from error


def _recorded(asked: Recorded, names: Sequence[str], answer: ModelAnswer) -> Recorded:
    outputs = dict(zip(names, answer.arrays, strict=True))
    return Recorded(asked.rows, asked.inputs, outputs, answer.ids, answer.rows)


def _same_shape(answer: ModelAnswer, tensors: Sequence[TensorSpec]) -> ModelAnswer:
    """An answer to other rows; ConfigError where its outputs are not of the shapes and dtypes that they were of."""
    if len(answer.arrays) != len(tensors):
        raise ConfigError(
            f"the model returns {len(tensors)} outputs for the reference rows, "
            f"but {len(answer.arrays)} for validation_data"
        )
    for tensor, array in zip(tensors, answer.arrays, strict=True):
        (found,) = describe_outputs([tensor.name], [array], len(array) if array.ndim else 0)
        if found != tensor:
            raise ConfigError(
                f"output {tensor.name!r} is {tensor.dtype}{list(tensor.shape)} a row for the reference rows, "
                f"but {found.dtype}{list(found.shape)} for validation_data: a graph has one shape"
            )
    return answer


def agreed_classes(
    given: Sequence[Any] | None, known: Sequence[Any] | None, outputs: Sequence[TensorSpec]
) -> Sequence[Any] | None:
    """The classes of the model, as it knows them or as the user says.

    Raises:
        ConfigError: the two differ, or no output has as many values a row; for two classes one value will do.
    """
    if given is None:
        return known
    if known is not None and list(given) != list(known):
        raise ConfigError(f"classes={list(given)!r}, but the model was fitted with the classes {list(known)!r}")
    fits = any(tensor.shape[-1:] == (len(given),) for tensor in outputs)
    if not fits and not (len(given) == 2 and any(tensor.shape in ((), (1,)) for tensor in outputs)):
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in outputs)
        raise ConfigError(f"classes has {len(given)} entries, but no output has as many values a row: {shapes}")
    return given


def _tell_what_ships(features: Features, probes: Recorded, progress: Progress) -> None:
    progress.note(
        f"{len(probes.rows)} reference rows are stored in the artifact: everyone with access to it can read them"
    )
    free = [name for name, kind in features.features.items() if isinstance(kind, Ids) and kind.size is None]
    if free and not probes.ids:  # ids that are looked up outside of the graph are checked there
        progress.note(
            f"Ids without size are not checked when they are served: {', '.join(free)}; an id that the model does not "
            "know can get the answer of another"
        )


def _tell_what_is_unseen(doubt: str, asked: _Asked, progress: Progress) -> None:
    rows = len(asked.probes.rows) + (len(asked.check.rows) if asked.check else 0)
    if doubt and rows < ENOUGH_ROWS:
        progress.note(
            f"{rows} rows are compared, which is few for this model: {doubt}; pass all held-out rows as "
            f"validation_data, at least {ENOUGH_ROWS}"
        )
    if not _differ(asked.probes) and (asked.check is None or not _differ(asked.check)):
        progress.note(
            "every replayed batch repeats one row, so outputs that depend on other rows of the batch "
            "cannot be detected: give at least two different rows, as reference_rows or as validation_data"
        )


def _differ(recorded: Recorded) -> bool:
    """Whether two of the rows differ for the model."""
    return any(bool((array[1:] != array[:1]).any()) for array in recorded.inputs.values())


def _check_size(folder: Path, max_bytes: int, format: str) -> None:  # noqa: A002  # the word users know
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > max_bytes:
        raise ExportRefused(
            f"format {format!r}: the graphs have {size} bytes, more than max_bytes ({max_bytes}): raise "
            "max_bytes, or make the tables of the model smaller",
            format=format,
        )


def _refuse_nan(recorded: Recorded, first_row: int) -> None:
    for name, array in recorded.outputs.items():
        if array.dtype.kind == "f" and (rows := np.isnan(array).reshape(len(array), -1).any(axis=1)).any():
            row = first_row + int(rows.argmax())
            raise ExportRefused(
                f"the model itself returns NaN: output {name!r}, row {row}; NaN is not a valid output",
                output=name,
                row=row,
                expected=math.nan,
            )


def _ask_again(exporter: ModelExporter, recorded: Recorded, tolerance: tuple[float, float]) -> None:
    """Refuse a model whose answers change from one call to the next, as no graph could answer like it."""
    for (name, before), after in zip(recorded.outputs.items(), exporter.answer(recorded.inputs).arrays, strict=True):
        found = compare_output(name, before, after, tolerance=tolerance)
        if found.problem:
            raise _otherwise(
                found,
                "the model is not deterministic: a second run with the same row has another output. Check "
                f"for a clock, random numbers, or rows in a store that is in training: output {name!r}, row "
                f"{found.row}: first {found.expected!r}, then {found.got!r}",
            )


def _ask_apart(exporter: ModelExporter, asked: _Asked, tolerance: tuple[float, float]) -> None:
    """Refuse a model that answers a row otherwise in a small batch than among all rows: a graph has one answer to it.

    PyTorch and Keras follow a branch on the size of the batch as many rows take it, and write that for every size.
    """
    first_row = 0
    for recorded in filter(None, (asked.probes, asked.check)):
        for places in small_batches(len(recorded.rows)):
            _compare_apart(exporter, recorded, places, tolerance, first_row)
        first_row += len(recorded.rows)


def small_batches(rows: int) -> list[list[int]]:
    """The batches, of so many rows, that the model itself is asked about: the places of their rows.

    They have the sizes that the proof has, and rows from the first to the last, evenly spread.  Where there are fewer
    rows than in a batch, they are repeated.
    """
    places = list(dict.fromkeys(place * (rows - 1) // (ROWS_APART - 1) for place in range(ROWS_APART)))
    return [
        [places[place % len(places)] for place in range(start, start + size)]
        for size in BATCH_SIZES
        for start in range(0, len(places), size)
    ]


def _compare_apart(
    exporter: ModelExporter, recorded: Recorded, places: Sequence[int], tolerance: tuple[float, float], first_row: int
) -> None:
    answer = _answer_apart(exporter, recorded, places)
    for (name, among_all), apart in zip(recorded.outputs.items(), answer.arrays, strict=True):
        found = compare_output(name, among_all[places], apart, tolerance=tolerance)
        if found.problem:
            found = replace(found, row=first_row + places[found.row])
            raise _otherwise(
                found,
                f"the output of the model for a row depends on the batch: in a batch of {len(places)} it "
                f"differs from that among {len(recorded.rows)} rows, and its graph has one output for it: "
                f"output {name!r}, row {found.row}: {found.expected!r} among all, {found.got!r} in the small "
                "batch; no output may depend on the size of the batch, or on other rows in it",
            )


def _answer_apart(exporter: ModelExporter, recorded: Recorded, places: Sequence[int]) -> ModelAnswer:
    """The model's answer to the rows at `places`.

    Raises:
        ExportRefused: it fails on so few, or has other outputs for them.
    """
    sizes = f"batches of {len(recorded.rows)}, and not of {len(places)}"
    try:
        answer = exporter.answer({name: array[places] for name, array in recorded.inputs.items()})
    except ConfigError as error:
        raise ExportRefused(f"the model accepts {sizes}: {error}") from error
    if len(answer.arrays) != len(recorded.outputs) or answer.names not in {None, tuple(recorded.outputs)}:
        raise ExportRefused(f"the model has the outputs {', '.join(recorded.outputs)} for {sizes}")
    return answer


def _otherwise(found: Deviation, words: str) -> ExportRefused:
    return ExportRefused(words, output=found.output, row=found.row, expected=found.expected, got=found.got)
