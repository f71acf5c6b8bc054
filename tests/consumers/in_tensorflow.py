"""Answer batches by TensorFlow alone, without Penstock and without Keras.

    python in_tensorflow.py WAY SAVED_MODEL SIGNATURE BATCHES ANSWERS

WAY is `plain`, or by which call of its converter TFLite gets the model: `from_concrete_functions`, `from_saved_model`.
BATCHES is a JSON file with the columns of each batch.  ANSWERS is written, with the rows of each, or the message of its
error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow takes Keras along where it can.
sys.modules["penstock"] = sys.modules["keras"] = None  # type: ignore[assignment]

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def plain(loaded: Any, signature: str) -> Callable[..., dict[str, Any]]:
    """The signature itself."""
    call = loaded.signatures[signature]
    return lambda **arrays: call(**{name: tf.constant(array) for name, array in arrays.items()})


def lite(converter: Any, signature: str) -> Callable[..., dict[str, Any]]:
    """The same signature in TFLite."""
    if signature != "model":  # who tries raw features follows the converter's advice
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    return tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()


def main(way: str, saved_model: str, signature: str, batches: Path, answers: Path) -> None:
    loaded = tf.saved_model.load(saved_model)
    if way == "plain":
        call = plain(loaded, signature)
    elif way == "from_concrete_functions":
        functions = [loaded.signatures[signature]]
        call = lite(tf.lite.TFLiteConverter.from_concrete_functions(functions, loaded), signature)
    else:
        call = lite(tf.lite.TFLiteConverter.from_saved_model(saved_model, signature_keys=[signature]), signature)
    specs = loaded.signatures[signature].structured_input_signature[1]
    answered = {}
    for name, columns in json.loads(batches.read_text()).items():
        arrays = {column: np.array(values, specs[column].dtype.as_numpy_dtype) for column, values in columns.items()}
        try:
            (answer,) = call(**arrays).values()
            answered[name] = np.asarray(answer).tolist()
        except (RuntimeError, tf.errors.InvalidArgumentError) as error:
            answered[name] = str(error)
    answers.write_text(json.dumps(answered))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(Path, sys.argv[4:]))
