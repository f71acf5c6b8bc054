"""The encoder behind LitServe, in batches of 64.

GPU_MODEL=BERT-base PART_DEVICE=cuda python litserve_server.py PORT
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import litserve as ls
import numpy as np
from encoders import DEVICE, as_ids, make_encoder, served_shape
from fastapi import Response
from texts import open_tokenizer

SHAPE = served_shape()


class Embed(ls.LitAPI):
    """Text to the bytes of a `.npy`."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        self.tokenizer = open_tokenizer(os.environ["GPU_TOKENIZER"], SHAPE.tokens)
        self.encoder = make_encoder(SHAPE, DEVICE)
        self.predict(["The gate lets the water in."] * 64)

    # Without an annotation: by one, LitServe takes it for a parameter of the query.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return request

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, x: list[str]) -> Any:
        ids = [as_ids(found.ids) for found in self.tokenizer.encode_batch(x)]
        return self.encoder.encode(ids)

    def unbatch(self, output: Any) -> Any:
        return list(output)

    def encode_response(self, output: Any) -> Response:
        written = io.BytesIO()
        np.save(written, output)
        return Response(written.getvalue(), media_type="application/x-npy")


if __name__ == "__main__":
    server = ls.LitServer(
        Embed(max_batch_size=64, batch_timeout=0.001), accelerator=DEVICE, devices=1, workers_per_device=1
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="warning", generate_client_file=False
    )
