"""Serve the model on 127.0.0.1, and say how to call it as soon as it answers."""

from __future__ import annotations

import os
import sys

from service import EXAMPLE, service

import penstock as ps

HOST = "127.0.0.1"
PORT = int(os.environ.get("PENSTOCK_PORT", "8000"))


def announce(addresses: list[str]) -> None:
    """Print the line to try."""
    url = addresses[0]
    print(
        f"\nReady.  In another terminal:\n\n"
        f"  curl -s {url}/predict -H 'content-type: application/json' -d '\"{EXAMPLE}\"'\n\n"
        f"Documentation: {url}/docs   Metrics: {url}/metrics   Ctrl-C stops it.",
        flush=True,
    )


if __name__ == "__main__":
    try:
        service.serve(host=HOST, port=PORT, on_ready=announce)
    except ps.StartFailed as error:
        sys.exit(f"{error}\nAnother port: PENSTOCK_PORT=8001 make demo")
