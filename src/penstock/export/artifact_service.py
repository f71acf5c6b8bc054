"""Decide whether an artifact may be served, and make the service of it: one stage, held to the artifact's digest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from penstock.artifact.model_directory import open_found
from penstock.artifact.row_stores import check_rows
from penstock.artifact.trusting import check_trust
from penstock.config import ArtifactOptions, Batch, checked_keywords
from penstock.errors import ConfigError
from penstock.export.artifact_stage import ArtifactStage
from penstock.export.row_answers import MISSING
from penstock.graphs.runtimes import check_library
from penstock.runtime.spec import stage
from penstock.service import Service


@checked_keywords("penstock.export.load")
def load(
    path: str | os.PathLike[str],
    *,
    model_format: str | None = None,
    workers: int = 1,
    batch: Batch | None = None,
    trust_model_code: bool = False,
    model_digest: str | None = None,
    verify_rows: bool = False,
    explain: bool = False,
    name: str | None = None,
    cpus: Sequence[int | Sequence[int] | None] | None = None,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
) -> Service:
    """The service of the trained model in the folder `path`, as `penstock serve PATH` serves it; not started.

    The folder is looked at once: a worker that is restarted loads the same artifact, or fails.  Files are hashed here,
    and in workers only those that are not as they were then.

    Args:
        path: the artifact; or a model directory, whose current version is served as long as this service lives.
        model_format: the graph to run, "onnx", "pt2" or "saved_model"; None: the artifact's first.
        workers: how many processes run it.
        batch: the batch policy; None: the one that it was saved with.
        trust_model_code: whether to open what can run code, pt2 and saved_model.
        model_digest: the digest that the artifact must have, 64 hex digits; one that matches is trust as well.
        verify_rows: whether every byte of the rows of tables outside is checked too, here or, where files were written
            in the last seconds, by each worker.
        explain: whether each answer tells, as `_missing`, how many of its ids tables outside do not have, by table;
            an answer has none where all were found, and where the model has no table outside.
        name: the service's name; None: the one that it was saved with.
        cpus: as for `penstock.stage`.
        env: as for `penstock.stage`.

    Raises:
        ArtifactInvalid: the folder is neither, or not as it was saved, or has another digest.
        ConfigError: an argument has a value it cannot have, the artifact has no such format, the format can run code
            and is not trusted, its library is not installed, or an output has the name that `explain` needs.
    """
    options = ArtifactOptions(
        model_format=model_format,
        trust_model_code=trust_model_code,
        model_digest=model_digest,
        verify_rows=verify_rows,
        explain=explain,
    )
    found, artifact = open_found(
        path,
        options.model_digest,
        trust=options.trust_model_code or options.model_digest is not None,
        verify_rows=options.verify_rows,
    )
    entry = artifact.program(options.model_format)["model"]
    check_trust(entry.format, trusted=artifact.trusted)
    check_library(entry.format)
    if options.explain and any(tensor.name == MISSING for tensor in entry.outputs):
        raise ConfigError(
            f"{artifact.path} has an output {MISSING!r}, which is the name that explain needs: leave explain out"
        )
    check_rows(artifact, contents=options.verify_rows)
    label = artifact.manifest.name if name is None else name
    model = stage(
        ArtifactStage,
        name=label,
        setup={
            "path": str(artifact.path),
            "digest": artifact.digest,
            "format": entry.format,
            "seen": artifact.seen,
            "trust": artifact.trusted,
            "verify_rows": options.verify_rows,
            "explain": options.explain,
        },
        workers=workers,
        batch=batch,
        cpus=cpus,
        env=env,
    )
    service = Service(model, name=label, version=artifact.digest)
    service.model_version = found.version
    return service
