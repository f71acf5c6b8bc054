"""Prove in a fresh process that an artifact answers as its model did, whatever happens to that process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import msgspec

from penstock.artifact.fresh_process import carry_out
from penstock.artifact.probes import recorded_files
from penstock.artifact.recorded import MadeRows, Recorded, RefusedRow
from penstock.artifact.replay_messages import CHECK, FAR, MADE, REFUSED_ROWS, CheckRows, ProofOrder, Proved


@dataclass(frozen=True)
class Proof:
    """What a proof that succeeded has seen."""

    rows: int
    """How many rows were replayed through each graph: the reference rows, and the validation rows."""
    worst: Mapping[str, float]
    """For each output the greatest difference to what the model answered, of all graphs; 0.0 where all is equal."""


def prove(
    folder: str | os.PathLike[str],
    *,
    check: Recorded | None = None,
    made: MadeRows | None = None,
    formats: tuple[str, ...] | None = None,
    trust: bool = False,
    digest: str | None = None,
    threads: int | None = None,
) -> Proof:
    """Replay the reference rows of the artifact at `folder`, and the rows of `check`, through each of its graphs.

    Args:
        folder: the artifact, or the folder of a draft that is finished.
        check: more rows, which need not be in the artifact.
        made: rows that were made for the proof; they are not counted.
        formats: the graphs to replay; None: all of them.
        trust: lets graphs be opened that can run code.
        digest: the digest that is expected, which is trust too; a draft has its own in `Draft.digest`.
        threads: how many threads each graph uses; None: as many as this process has cores.

    Raises:
        ExportRefused: an answer differs, or the process did not end as it should.
        ArtifactInvalid: the folder is no artifact, or not as it was saved.
        ConfigError: a graph can run code and is not trusted, its library is not installed, or an option is wrong.
    """
    # Rows to check must not stay where this process is killed: their file has no name, and ends with the processes.
    with tempfile.TemporaryFile() as file:
        more = None
        if check is not None or made is not None:
            made = made or MadeRows(None, ())
            parts = {CHECK: check, MADE: made.answered, FAR: made.far}
            _write_rows(file, parts, made.refused)
            more = CheckRows(file.fileno(), *(len(part.rows) if part is not None else 0 for part in parts.values()))
        order = ProofOrder(
            artifact=os.fspath(Path(folder).absolute()),
            check=more,
            formats=formats,
            trust=trust,
            digest=digest,
            threads=threads or len(os.sched_getaffinity(0)),
        )
        result = carry_out(order, descriptors=[file.fileno()])
    assert isinstance(result, Proved)
    return Proof(result.rows, result.worst)


def _write_rows(file: IO[bytes], parts: Mapping[str, Recorded | None], refused: Sequence[RefusedRow]) -> None:
    with ZipFile(file, "w") as archive:
        for folder, recorded in parts.items():
            for path, content in recorded_files(recorded) if recorded is not None else ():
                archive.writestr(f"{folder}/{path}", content)
        archive.writestr(REFUSED_ROWS, msgspec.json.encode(refused))
    file.flush()
