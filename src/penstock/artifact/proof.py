"""Prove in a fresh process that an artifact answers as its model did, whatever happens to that process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import ZipFile

from penstock.artifact.fresh_process import carry_out
from penstock.artifact.probes import recorded_files
from penstock.artifact.recorded import Recorded
from penstock.artifact.replay_messages import CHECK, CheckRows, ProofOrder, Proved


@dataclass(frozen=True)
class Proof:
    """What a proof that succeeded has seen."""

    rows: int
    """How many rows were replayed through each graph: the probes, and the rows to check."""
    worst: Mapping[str, float]
    """For each output the greatest difference to what the model answered, of all graphs; 0.0 where all is equal."""


def prove(
    folder: str | os.PathLike[str],
    *,
    check: Recorded | None = None,
    formats: tuple[str, ...] | None = None,
    trust: bool = False,
    digest: str | None = None,
    threads: int | None = None,
) -> Proof:
    """Replay the probes of the artifact at `folder`, and the rows of `check`, through each of its graphs.

    Args:
        folder: the artifact, or the folder of a draft that is finished.
        check: more rows, which need not be in the artifact.
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
        if check is not None:
            _write_rows(file, check)
        order = ProofOrder(
            artifact=os.fspath(Path(folder).absolute()),
            check=None if check is None else CheckRows(file.fileno(), len(check.rows)),
            formats=formats,
            trust=trust,
            digest=digest,
            threads=threads or len(os.sched_getaffinity(0)),
        )
        result = carry_out(order, descriptors=[file.fileno()])
    assert isinstance(result, Proved)
    return Proof(result.rows, result.worst)


def _write_rows(file: IO[bytes], check: Recorded) -> None:
    with ZipFile(file, "w") as archive:
        for path, content in recorded_files(check):
            archive.writestr(f"{CHECK}/{path}", content)
    file.flush()
