"""The scenes of `large_services.py` on mosec: batches of at most 8, one worker a stage, the shortest wait (1 ms).

Bodies are handed on as they come, without a codec.  Between two stages mosec pickles, as it does by default; its mixins
for shared memory need a Redis or a plasma server.

    python bench/mosec_large.py --scene head --address 127.0.0.1 --port PORT --log-level error
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from mosec import Server, Worker

ANSWER_BYTES = 4096


class Plain(Worker):
    """Bytes in, bytes out."""

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: Any) -> bytes:
        return data  # type: ignore[no-any-return]


class Head(Plain):
    """Give the beginning of each back."""

    def forward(self, data: list[Any]) -> list[bytes]:
        return [bytes(x[:ANSWER_BYTES]) for x in data]


class Inverted(Plain):
    """Give as much back: each byte inverted."""

    def forward(self, data: list[bytes]) -> list[bytes]:
        return [np.invert(np.frombuffer(x, np.uint8)).tobytes() for x in data]


class Passed(Plain):
    """Pass each on as an array."""

    def forward(self, data: list[bytes]) -> list[np.ndarray[Any, Any]]:
        return [np.frombuffer(x, np.uint8) for x in data]


SCENES = {"head": [Head], "inverted": [Inverted], "two": [Passed, Head]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--scene", choices=SCENES, required=True)
    scene = parser.parse_known_args()[0].scene  # the other arguments are read by mosec
    server = Server()
    for worker in SCENES[scene]:
        server.append_worker(worker, num=1, max_batch_size=8, max_wait_time=1)
    server.run()
