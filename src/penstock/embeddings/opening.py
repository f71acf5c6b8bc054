"""Open the training store that a URL names."""

from __future__ import annotations

from pathlib import Path

from penstock.embeddings.memory_store import MemoryTrainingStore
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.embeddings.training_store import TrainingStore
from penstock.errors import ConfigError


def open_training_store(url: str) -> TrainingStore:
    """The store that a URL names: `memory:` is one of its own in this process, `shared:DIR` the one in a folder.

    Raises:
        ConfigError: it is no such URL, or what is in the folder is no store of this version.
        EmbeddingError: a file of the store is cut or damaged; RowsUnavailable where it cannot be used now.
    """
    kind, _, folder = url.partition(":") if isinstance(url, str) else ("", "", "")
    if kind == "memory" and url == "memory:":
        return MemoryTrainingStore()
    if kind == "shared" and folder and not folder.startswith("//") and "\0" not in folder:
        return SharedTrainingStore(Path(folder))
    raise ConfigError(
        f"{url!r} is not the URL of a training store: write memory: or shared:DIR, such as shared:runs/ads/rows"
    )
