"""The echo behind LitServe with `enable_async=True`, at once or after a wait.

python litserve_waiting.py PORT SECONDS
"""

from __future__ import annotations

import asyncio
import signal
import sys

import litserve as ls


class Echo(ls.LitAPI):
    """Give each list back, after some seconds where there are any."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        self.seconds = float(sys.argv[2])

    # Without an annotation: by one, LitServe takes it for a parameter of the query.
    async def decode_request(self, request):  # type: ignore[no-untyped-def]
        return request

    async def predict(self, x: list[float]) -> list[float]:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return x

    async def encode_response(self, output: list[float]) -> list[float]:
        return output


if __name__ == "__main__":
    # By itself it leaves its processes behind when it is terminated, but not at a Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = ls.LitServer(Echo(enable_async=True), accelerator="cpu", devices=1, workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="warning", generate_client_file=False
    )
