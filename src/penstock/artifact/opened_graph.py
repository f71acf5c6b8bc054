"""Open the graph of an artifact, where it may be opened."""

from __future__ import annotations

from penstock.artifact.opened_artifact import Artifact
from penstock.artifact.trusting import check_trust
from penstock.graphs.graph import Graph
from penstock.graphs.runtimes import open_graph


def open_model(artifact: Artifact, format: str | None = None, *, threads: int = 1) -> Graph:  # noqa: A002  # the word users know
    """The model of an artifact, ready to run.

    Args:
        artifact: what `open_artifact` returned.
        format: of the graph; None: the first.
        threads: how many threads one run uses.

    Raises:
        ConfigError: there is no such graph, it can run code and is not trusted, or its library is not installed.
        ArtifactInvalid: the graph is not what the manifest says.
    """
    entry = artifact.graph(format)
    check_trust(entry.format, trusted=artifact.trusted)
    is_file = entry.path in artifact.manifest.files
    source = artifact.read(entry.path) if is_file else artifact.path / entry.path
    return open_graph(entry.format, source, inputs=entry.inputs, outputs=entry.outputs, threads=threads)
