"""The stage that serves a trained model from its artifact.

A call of `predict` takes these steps for a whole batch: encode the rows, look up rows of tables outside, run the
graph, take the outputs apart.  A row that the features, a table or the graph refuse is `InvalidItem` with its path,
alone; the others go on.  An id outside of its table, of which nobody knows the row, is raised as it is: the batch is
run again in halves, and the item that is left alone with it is told.

A graph may also raise, as at a category or an id that its table does not have, and then says nothing of rows.  The
batch is run again in halves then.  Where a row is left alone, each of its values is put into a reference row: the
graph answers every reference row, so a value with which it fails there is the caller's fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.artifact.manifest_json import batch_from_entry
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.row_stores import check_rows, mapped_rows
from penstock.artifact.served_model import open_model
from penstock.config import Batch
from penstock.embeddings.row_store import RowStore
from penstock.embeddings.rules import Ids
from penstock.embeddings.training_store import Fetched, TableShape
from penstock.errors import InvalidItem
from penstock.export.row_answers import answer_type, row_answers
from penstock.features.values import shown_value
from penstock.worker.counting import count_own
from penstock.worker.declaration import Declaration
from penstock.worker.device_errors import device_is_lost, ran_out_of_memory
from penstock.worker.stage import Stage

MOST_THREADS = 1024
"""More are taken for a slip: a runtime would start them all."""
EXAMPLES = 3
"""How many of the reference rows warm a worker up, and stand in the OpenAPI document."""
MOST_TRIED = 64
"""How many values of a row at which the graph raised are tried in a reference row: each is a run of the graph."""


class CountedRows:
    """A store of rows that counts for `/metrics` what is fetched from it."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def tables(self) -> dict[str, TableShape]:
        """As `RowStore.tables`."""
        return self._store.tables()

    def fetch(self, ids: Mapping[str, Ids], timeout: float | None = None) -> dict[str, Fetched]:
        """As `RowStore.fetch`."""
        begun = time.perf_counter()
        found = self._store.fetch(ids, timeout)
        seconds = time.perf_counter() - begun
        for table, fetched in found.items():
            asked = len(fetched.found)
            count_own("rows_fetched", asked, table=table)
            count_own("rows_missing", asked - int(np.count_nonzero(fetched.found)), table=table)
            count_own("rows_seconds", seconds, table=table)
        return found

    def close(self) -> None:
        """As `RowStore.close`."""
        self._store.close()


class ArtifactStage(Stage):
    """A trained model: the preprocessing, the graph and the classes are those it was trained with."""

    batch = Batch()

    @classmethod
    def declare(cls, *, path: str, digest: str, format: str, explain: bool = False, **_: Any) -> Declaration:  # noqa: A002
        """Types by the features and the outputs of the graph; the first reference rows; its batch policy."""
        described = open_artifact(path, digest=digest, check_files=False)
        manifest = described.manifest
        return Declaration(
            item=described.features.item_type(),
            result=answer_type(
                manifest.name,
                described.program(format)["model"].outputs,
                manifest.classes,
                explained=explain and bool(manifest.outside),
            ),
            examples=described.probe_rows()[:EXAMPLES],
            batch=batch_from_entry(manifest.batch),
        )

    def setup(
        self,
        *,
        path: str,
        digest: str,
        format: str,  # noqa: A002  # the word users know
        trust: bool,
        seen: str = "",
        verify_rows: bool = False,
        explain: bool = False,
    ) -> None:
        """Check every file that is not as the service has seen it, then open the graph, with the threads given."""
        artifact = open_artifact(path, digest=digest, trust=trust, verify_rows=verify_rows, seen=seen)
        if verify_rows and not (seen and artifact.seen == seen):
            check_rows(artifact, contents=True)
        rows = CountedRows(mapped_rows(artifact)) if artifact.manifest.outside else None
        self._model = open_model(artifact, format, threads=threads_given(), rows=rows)
        self._probe = artifact.probe_rows()[0]
        self._explain = explain

    def teardown(self) -> None:
        """Close the graph."""
        self._model.close()

    def predict(self, rows: Sequence[Any]) -> list[Any]:
        """An answer, or an InvalidItem, for each row."""
        try:
            found = self._model.predict_rows(rows, explain=self._explain)
        except InvalidItem:
            raise
        except Exception as error:
            if len(rows) > 1 or ran_out_of_memory(error) or device_is_lost(error):
                raise
            refused = self._value_at_fault(rows[0])
            if refused is None:
                raise
            return [refused]
        given = row_answers(found.values, rows=len(found.kept), missing=found.missing)
        if not found.invalid:
            return given
        results: list[Any] = [found.invalid.get(place) for place in range(len(rows))]
        for place, result in zip(found.kept, given, strict=True):
            results[place] = result
        return results

    def _value_at_fault(self, row: Any) -> InvalidItem | None:
        """Says which value of a row the graph fails at, as far as a single one is at fault."""
        features = self._model.features
        (values,) = features.to_rows([row])
        for column in features.columns[:MOST_TRIED]:
            try:
                self._model.predict_rows([{**self._probe, column: values[column]}])
            except Exception:  # noqa: BLE001  # of the runtime, whatever its class
                shown = shown_value(values[column])
                return InvalidItem(f"{shown} is not a value that the model accepts", path=f"$.{column}")
        return None


def threads_given() -> int:
    """How many threads the graph may use: those that the worker was given, for some runtimes do not ask for them."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(given), MOST_THREADS) if given.isdecimal() and int(given) > 0 else len(os.sched_getaffinity(0))
