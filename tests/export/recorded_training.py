"""Run a trainer of examples/affairs as its user does, and then write down what its model itself answers.

    python recorded_training.py TRAINER ARTIFACT RECORD

The model is asked in the process that trained it, with what it is called in its framework: nothing that `save` recorded
is read.  RECORD gets `rows.json`, the held-out rows as a client would send them, and one .npy file for each output.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLE = Path(__file__).parents[2] / "examples" / "affairs"


def torch_answers(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch

    model.eval()
    with torch.no_grad():
        answers = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return {name: tensor.numpy() for name, tensor in answers.items()}


def keras_answers(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(model.predict(inputs, verbose=0))


def sklearn_answers(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"label": model.predict(inputs["x"]), "probabilities": model.predict_proba(inputs["x"])}


ANSWERS = {"train_torch": torch_answers, "train_keras": keras_answers, "train_sklearn": sklearn_answers}


def main(trainer: str, artifact: str, record: Path) -> None:
    sys.path.insert(0, str(EXAMPLE))
    import penstock as ps
    from data import survey

    saved: dict[str, Any] = {}
    save = ps.export.save

    def remembered(**arguments: Any) -> Any:
        saved.update(arguments)
        return save(**arguments)

    ps.export.save = remembered
    sys.argv = [f"{trainer}.py", artifact]
    runpy.run_path(str(EXAMPLE / f"{trainer}.py"), run_name="__main__")

    _, held_out = survey()
    features = saved["features"]
    record.mkdir()
    (record / "rows.json").write_text(json.dumps(features.to_rows(held_out), allow_nan=False))
    for name, array in ANSWERS[trainer](saved["model"], features.encode(held_out)).items():
        np.save(record / f"{name}.npy", array, allow_pickle=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
