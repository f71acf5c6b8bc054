"""The batcher that people write by hand: FastAPI, a queue, and a task that runs whatever lies in it.

GPU_MODEL=BERT-base PART_DEVICE=cuda python fastapi_batcher.py PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import uvicorn
from encoders import DEVICE, as_ids, make_encoder, served_shape
from fastapi import Body, FastAPI, Response
from texts import open_tokenizer

SHAPE = served_shape()
LARGEST = 64

queue: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()
device_thread = ThreadPoolExecutor(1)


def encode(texts: list[str]) -> Any:
    """Tokenize and compute, in the one thread that has the device."""
    ids = [as_ids(found.ids) for found in tokenizer.encode_batch(texts)]
    return encoder.encode(ids)


async def run_batches() -> None:
    """Take what is there, at most 64 texts, and answer each with its row."""
    loop = asyncio.get_running_loop()
    while True:
        batch = [await queue.get()]
        while len(batch) < LARGEST and not queue.empty():
            batch.append(queue.get_nowait())
        try:
            rows = await loop.run_in_executor(device_thread, encode, [text for text, _ in batch])
        except Exception as error:  # noqa: BLE001
            for _, future in batch:
                future.set_exception(error)
            continue
        for (_, future), row in zip(batch, rows, strict=True):
            if not future.done():
                future.set_result(row)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run the batches for as long as it serves."""
    task = asyncio.create_task(run_batches())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(text: str = Body()) -> Response:
    """The vector of a text, as `.npy`."""
    future = asyncio.get_running_loop().create_future()
    queue.put_nowait((text, future))
    written = io.BytesIO()
    np.save(written, await future)
    return Response(written.getvalue(), media_type="application/x-npy")


if __name__ == "__main__":
    tokenizer = open_tokenizer(os.environ["GPU_TOKENIZER"], SHAPE.tokens)
    encoder = make_encoder(SHAPE, DEVICE)
    encode(["The gate lets the water in."] * LARGEST)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
