"""The hand-written stage: it is sent the numbers that the model takes, and runs the artifact's own ONNX file.

There is no preprocessing, no proof and no names to look up: what an artifact adds to this is what it costs.

    BENCH_MODEL=out/affairs/model.onnx penstock serve export_by_hand:service
"""

from __future__ import annotations

import os

import msgspec
import numpy as np
import onnxruntime

import penstock as ps


class Encoded(msgspec.Struct):
    """A row, encoded by its client."""

    x: list[float]
    occupation: int


class Answer(msgspec.Struct):
    """What the model says of it."""

    probability: float


class ByHand(ps.Stage):
    """Run the model."""

    batch = ps.Batch()

    def setup(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])  # what the worker was given
        self.session = onnxruntime.InferenceSession(os.environ["BENCH_MODEL"], options)

    def predict(self, rows: list[Encoded]) -> list[Answer]:
        x = np.array([row.x for row in rows], np.float32)
        occupation = np.array([row.occupation for row in rows], np.int64)
        (probabilities,) = self.session.run(None, {"x": x, "occupation": occupation})
        return [Answer(probability) for probability in probabilities.tolist()]


service = ps.Service(ps.stage(ByHand), name="by-hand")
