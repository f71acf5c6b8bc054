"""Serve the model on 127.0.0.1, and say how to call it as soon as it answers."""

from __future__ import annotations

import os
import threading
import time
from urllib.error import URLError
from urllib.request import urlopen

from service import EXAMPLE, service

HOST = "127.0.0.1"
PORT = int(os.environ.get("PENSTOCK_PORT", "8000"))


def announce() -> None:
    """Print the line to try, once the server is ready."""
    url = f"http://{HOST}:{PORT}"
    while True:
        try:
            urlopen(f"{url}/readyz").close()
            break
        except URLError:  # not listening yet, or 503 while the model loads
            time.sleep(0.1)
    print(
        f"\nReady.  In another terminal:\n\n"
        f"  curl -s {url}/predict -H 'content-type: application/json' -d '\"{EXAMPLE}\"'\n\n"
        f"Documentation: {url}/docs   Metrics: {url}/metrics   Ctrl-C stops it.",
        flush=True,
    )


if __name__ == "__main__":
    threading.Thread(target=announce, daemon=True).start()
    service.serve(host=HOST, port=PORT)
