"""Train with Keras, then export: `python train_keras.py out/affairs`."""

import sys
from typing import Any

import keras

import penstock as ps
from data import survey
from penstock import features as f


def train() -> dict[str, Any]:
    """The arguments of `save`."""
    keras.utils.set_random_seed(0)
    rows, held_out = survey()
    features = ps.Features(
        {
            "age": f.Numeric(scale="standard", fill_value=f.MEAN),
            # A string tensor has no other way to say that a value is missing than a string.
            "educ": f.Hashed(buckets=4, one_hot=True, fill_value=f.EMPTY, missing_values=("",)),
            "occupation": f.Vocabulary(max_size=50, fill_value="none", missing_values=("",)),
        },
        concat_into="x",
    ).fit(rows)
    x = keras.Input((5,), name="x")
    occupation = keras.Input((), name="occupation", dtype="int64")
    embedded = keras.layers.Embedding(features.sizes["occupation"], 8)(occupation)
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()([x, embedded]))
    probability = keras.layers.Reshape(())(keras.layers.Dense(1, activation="sigmoid")(hidden))
    model = keras.Model({"x": x, "occupation": occupation}, {"probability": probability})
    model.compile(optimizer=keras.optimizers.Adam(0.005), loss={"probability": "binary_crossentropy"})
    batches = features.tf_dataset(rows, label="affair", batch_size=64)
    model.fit(batches, epochs=5, shuffle=False, verbose=0)
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
