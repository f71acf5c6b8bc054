"""The same model and training in Keras: `python train_keras.py runs/keras models/identifiers-keras`."""

import sys
from typing import Any

import keras
import numpy as np

import penstock as ps
from data import LONGEST, PACKAGES, files
from penstock import embeddings as emb
from penstock import features as f

BUCKETS, PARTS, EPOCHS = 2**17, 24, 4

keras.utils.set_random_seed(0)
learnt, held_out = files(every=int(sys.argv[3]) if len(sys.argv) > 3 else 1)
features = ps.Features({"identifiers": f.Hashed(buckets=BUCKETS, max_length=LONGEST)}).fit(learnt)
run = ps.training.Run(sys.argv[1], publish_to=sys.argv[2], lease=5.0)

identifiers = keras.Input((LONGEST,), dtype="int64", name="identifiers")
weight = keras.Input((LONGEST,), name="identifiers_weight")
with emb.placeholders():
    bag = keras.layers.Embedding(BUCKETS, 16)(identifiers)
many = keras.ops.maximum(keras.ops.sum(weight, axis=1, keepdims=True), 1)
total = keras.ops.sum(bag * keras.ops.expand_dims(weight, -1), axis=1) / keras.ops.sqrt(many)
scores = keras.layers.Dense(len(PACKAGES))(keras.layers.Dense(32, activation="relu")(total))
model = keras.Model([identifiers, weight], {"scores": scores})
rows = emb.offload(model, f"shared:{run.folder}/rows", optimizer=emb.Adagrad(lr=0.1), dense="shared")
model.compile(keras.optimizers.Adam(0.005), keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train(task: list[int]) -> None:
    """Pass over one part; `task` is the epoch and the part."""
    taken = learnt[task[1] :: PARTS]
    packages = np.array([row["package"] for row in taken])
    model.fit(features.encode(taken), packages, batch_size=32, verbose=0)


def accuracy(_: None) -> float:
    """The share of held-out files whose package has the highest score."""
    rows.refresh()
    scores = model.predict(features.encode(held_out), verbose=0)["scores"]
    return float(np.mean(scores.argmax(axis=1) == [row["package"] for row in held_out]))


def save() -> dict[str, Any]:
    """The arguments of `ps.export.save`, by whichever process gets the save task: it may have trained nothing."""
    checks = {"reference_rows": held_out[:16], "validation_data": held_out[16:]}
    return {"model": rows, "features": features, "name": "identifiers", **checks}


if __name__ == "__main__":
    places = range(min(PARTS, len(learnt)))
    run.plan(train=[[epoch, place] for epoch in range(EPOCHS) for place in places], evaluate=[None])
    version = run.work(train=train, evaluate=accuracy, save=save)
    print(f"version {version}, accuracy {run.results('evaluate')[0]:.2f}")
