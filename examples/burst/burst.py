"""Nine requests at once for a service with room for eight and time for four: native, then under gunicorn in Flask."""

import sys
from collections import Counter

from client import Asked, burst
from server import Server
from timelines import COLOURS, Span, draw

WANTED = "1 rejected, 4 ok, 4 errors; health: 2 busy, 2 ready"
PENSTOCK = "penstock serve service:service --port 0 --health-path /health_check"
STATUSES = "--overload-status 400 --queue-timeout-status 500 --run-timeout-status 500"
GUNICORN = "gunicorn mounted:app -k gthread --threads 16 -b 127.0.0.1:0"


def judge(asked: Asked) -> str:
    """What became of a request, in a word."""
    if not asked.number:
        return f"{asked.answer['status']}" if asked.status == 200 else "unhealthy"
    if asked.status == 200:
        return "ok" if asked.answer == {"result": asked.number**2} else "wrong"
    return {400: "rejected", 429: "rejected", 500: "error", 504: "error"}.get(asked.status, "unexpected")


def what(asked: Asked) -> str:
    """What a client was told."""
    if asked.number and asked.status == 200:
        return f"200, {asked.number}² = {asked.answer['result']}"
    return f"{asked.status}, {asked.answer['detail' if asked.number else 'status']}"


def run(title: str, command: str, mount: str = "", program: tuple[str, ...] = (sys.executable, "-m")) -> str:
    """Run a server and the burst, draw what happened, and return it in a line."""
    with Server([*program, *command.split()]) as server:
        start, asked = burst(server.port(), mount)
    asked.sort(key=lambda each: (not each.number, each.number, each.begun))
    spans = [
        Span("server", f"batch {count}", times[0] - start, times[-1] - start, f"of requests {numbers}", "cyan")
        for count, (numbers, times) in enumerate(server.batches().items(), start=1)
    ]
    for each in asked:
        name = f"request {each.number}" if each.number else "health"
        spans.append(
            Span("client", name, each.begun - start, each.ended - start, what(each), COLOURS.get(each.status, "red"))
        )
    draw(f"{title}: {command}", spans)
    seen = Counter(map(judge, asked))
    end = f"{seen['rejected']} rejected, {seen['ok']} ok, {seen['error']} errors; "
    return end + f"health: {seen['busy']} busy, {seen['ready']} ready"


if __name__ == "__main__":
    ended = []
    for place in (("Native", f"{PENSTOCK} {STATUSES}"), ("In Flask", GUNICORN, "/model")):
        ended.append(run(*place))
        print(ended[-1], flush=True)
    sys.exit(ended != [WANTED] * 2)
