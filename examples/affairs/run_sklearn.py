"""Train on shards in as many processes as you start, publish once: `python run_sklearn.py runs/first models/affairs`.

A task is a shard of the rows, and whoever is free leases the next one.  What a task returns, the coefficients of a
model of its shard, is kept in the run's file.  So no process has to live until the end.  The model that is published
has the averages of all coefficients.
"""

import sys
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import penstock as ps
from data import survey
from penstock import features as f

SHARDS = 12

rows, held_out = survey()
# Fitted on all the rows, in each process: coefficients can be averaged only where they are of the same columns.
features = ps.Features(
    {
        "age": f.Numeric(scale="standard", fill_value=f.MEAN),
        "educ": f.Hashed(buckets=4, one_hot=True, fill_value=f.EMPTY),
        "occupation": f.Vocabulary(max_size=50, one_hot=True, fill_value=f.EMPTY),
    },
    concat_into="x",
).fit(rows)
run = ps.training.Run(sys.argv[1], publish_to=sys.argv[2], lease=5.0)


def train_shard(shard: int) -> dict[str, Any]:
    """The coefficients of a model of every twelfth row: what a task returns is JSON."""
    part = rows.iloc[shard::SHARDS]
    model = LogisticRegression().fit(features.encode(part)["x"], part["affair"].astype(int))
    return {"coef": model.coef_.tolist(), "intercept": model.intercept_.tolist()}


def save() -> dict[str, Any]:
    """The arguments of `ps.export.save`, by whoever gets the save task: all it needs is what the tasks returned."""
    shards = run.results("train")
    model = LogisticRegression()
    model.classes_ = np.array([0, 1])
    model.coef_ = np.mean([shard["coef"] for shard in shards], axis=0)
    model.intercept_ = np.mean([shard["intercept"] for shard in shards], axis=0)
    return {
        "model": model,
        "features": features,
        "name": "affairs",
        "reference_rows": held_out[:16],
        "validation_data": held_out[16:],
    }


if __name__ == "__main__":
    run.plan(train=list(range(SHARDS)))
    print("version", run.work(train=train_shard, save=save))
