"""Train with scikit-learn, then export: `python train_sklearn.py out/affairs`."""

import sys
from typing import Any

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import penstock as ps
from data import survey
from penstock import features as f


def train() -> dict[str, Any]:
    """The arguments of `save`."""
    rows, held_out = survey()
    features = ps.Features(
        {
            "age": f.Numeric(fill_value=f.MEAN),
            "educ": f.Hashed(buckets=4, one_hot=True, fill_value=f.EMPTY),
            "occupation": f.Vocabulary(max_size=50, one_hot=True, fill_value=f.EMPTY),
        },
        concat_into="x",
    ).fit(rows)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(features.encode(rows)["x"], rows["affair"].astype(int))
    return {
        "model": model,
        "features": features,
        "name": "affairs",
        "reference_rows": held_out[:16],
        "validation_data": held_out[16:],
    }


if __name__ == "__main__":
    report = ps.export.save(path=sys.argv[1], **train())
    print(f"{report.path}: {report.rows} rows answered alike, digest {report.digest}")
