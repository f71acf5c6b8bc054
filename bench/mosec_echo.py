"""The echo on mosec, as its authors would want it measured: the rival of `echo.py`.

The same request and answer, JSON decoded into `list[float]` and encoded by msgspec (mosec's own JSON is the
standard library's, which is slower; its msgspec mixin speaks MessagePack only), one worker, the shortest wait
mosec can be given (1 ms; 0 means its default of 10 ms), and a log level that writes no line per request.  Batches
of 32 are Penstock's default; larger ones suit mosec better, which waits for a batch to come back before it sends
the next, so the bench runs it with 128 too.  The rest of mosec is at its defaults, as Penstock is.

    python bench/mosec_echo.py --batch 32 --address 127.0.0.1 --port PORT --log-level error
"""

from __future__ import annotations

import argparse

import msgspec
from mosec import Server, Worker

DECODE = msgspec.json.Decoder(list[float]).decode
ENCODE = msgspec.json.Encoder().encode


class Echo(Worker):
    """Give each list back."""

    def deserialize(self, data: bytes) -> list[float]:
        return DECODE(data)

    def serialize(self, data: list[float]) -> bytes:
        return ENCODE(data)

    def forward(self, data: list[list[float]]) -> list[list[float]]:
        return data


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    batch = parser.parse_known_args()[0].batch  # the other arguments are read by mosec
    server = Server()
    server.append_worker(Echo, num=1, max_batch_size=batch, max_wait_time=1)
    server.run()
