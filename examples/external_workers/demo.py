"""Workers attach to a running server; one is killed, another comes, one leaves.  Every answer must be right."""

import json
import re
import signal
import sys
import tempfile
from contextlib import ExitStack

from attaching import Worker, until
from callers import Callers
from server import Server
from telling import tell

RETRIED = r'^penstock_stage_retried_items_total\{.*"square"\} (\d+)'


def health(server: Server) -> None:
    """Tell of each worker what `/health` has of it."""
    tell("demo", "/health: " + "; ".join(f"{w['language']}, pid {w['pid']}, {w['state']}" for w in server.workers()))


def demo(stack: ExitStack) -> bool:
    """All of it; whether every answer was right."""
    path = stack.enter_context(tempfile.TemporaryDirectory()) + "/workers.sock"
    server = stack.enter_context(Server(path))
    tell("demo", f"/readyz: {json.loads(server.ask('/readyz')[1])['detail']}")

    def attached(language: str) -> Worker:
        worker = Worker(language, path)
        stack.callback(worker.close)
        until(lambda: worker.state(server) in ("idle", "busy"))
        return worker

    python, node = attached("Python"), attached("Node")
    with Callers(server) as callers:
        callers.go_on(1.5)
        health(server)
        until(lambda: python.state(server) == "busy")
        tell("demo", f"kills (-9) {python.name}, amid a batch")
        python.end(signal.SIGKILL)
        callers.go_on(0.5)
        again = re.search(RETRIED, server.ask("/metrics")[1].decode(), re.MULTILINE)
        tell("demo", f"{again[1] if again else 'no'} of its items were run again by another worker")
        health(server)
        attached("Python")
        callers.go_on(1.0)
        health(server)
        tell("demo", f"asks {node.name}, to leave")
        tell("demo", f"it has answered what it held, and ended with status {node.end(signal.SIGTERM)}")
        callers.go_on(1.0)
    tell("callers", "; ".join(callers.wrong[:10]) or f"all {callers.right} answers were right")
    return not callers.wrong


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        sys.exit(not demo(stack))
