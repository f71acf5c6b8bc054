"""Nine requests at once, and four looks at the health meanwhile."""

import http.client
import json
import threading
import time
from typing import Any, NamedTuple

LOOKS = (0.5, 1.5, 2.5, 3.5)
"""When the health is asked, in seconds after the burst."""


class Asked(NamedTuple):
    """One request and its answer; `number` is 0 for a look at the health."""

    number: int
    begun: float
    ended: float
    status: int
    answer: Any


def ask(port: int, path: str, number: int = 0) -> Asked:
    """POST a number, or GET where there is none."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps({"data": number}) if number else None
    connection.request("POST" if number else "GET", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return Asked(number, begun, time.monotonic(), response.status, answer)


def burst(port: int, mount: str) -> tuple[float, list[Asked]]:
    """Send the burst to the service at `mount`; when it was, and what came of it, in the order of the answers."""
    while ask(port, mount + "/health_check").answer["status"] != "ready":
        time.sleep(0.05)
    asked: list[Asked] = []
    at_once = threading.Barrier(9)

    def infer(number: int) -> None:
        at_once.wait()
        asked.append(ask(port, mount + "/predict", number))

    threads = [threading.Thread(target=infer, args=(number,)) for number in range(1, 10)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for look in LOOKS:
        time.sleep(max(0.0, start + look - time.monotonic()))
        asked.append(ask(port, mount + "/health_check"))
    for thread in threads:
        thread.join()
    return start, asked
