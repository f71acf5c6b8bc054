"""Bytes: 600 KB in, the first 4 KB out, one worker, everything at its defaults.

The size of an image.  What is measured is how often its bytes are copied on their way to the worker.

    penstock serve raw_bytes:service
"""

from __future__ import annotations

import penstock as ps

ANSWER_BYTES = 4096


class Head(ps.Stage):
    """Give the beginning of each back."""

    batch = ps.Batch()

    def predict(self, xs: list[bytes]) -> list[bytes]:
        return [x[:ANSWER_BYTES] for x in xs]


service = ps.Service(ps.stage(Head), name="bytes")
