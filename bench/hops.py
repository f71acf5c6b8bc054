"""Where a microsecond goes: each hop of the echo through the real code, alone and warm, in one process.

    python bench/hops.py              # the hops
    python bench/hops.py --loaded     # and, to compare, what a request costs in a running server

A hop's figure is the least it costs: the caches are warm and nothing interrupts.  System calls, the event loop and
the garbage collector are in none of the hops.  With --loaded, the kernel's share is what system calls cost, and the
rest is the event loop, the collector, and caches that are colder than here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import uvloop

from loadgen import LoadFailed, run_load
from report import show
from scenes import SCENES
from servers import SUBJECTS, Server, ServerFailed
from watch import Watch

LAPS = 40

# Hop, the file it is in, and the piece of a scene that is its figure.
COORDINATOR = (
    ("read the request; its head was seen before", "server/http1/connection", "read, repeated head"),
    ("judge the head: id, route, formats, room", "server/app", "admit"),
    ("pass the body to the engine", "server/protocols/predict", "handle"),
    ("accept: request, item, deadline, queue", "runtime/flow", "submit"),
    ("cut the batch and write its frame", "runtime/stage_driver", "cut and send"),
    ("read the frame of answers", "transport/framing", "coordinator reads"),
    ("settle the item", "runtime/flow", "settle"),
    ("make the response", "server/protocols/predict", "answer"),
    ("write the response", "server/http1/connection", "write"),
    ("count it", "server/app", "count"),
)
WORKER = (
    ("read the frame of items", "transport/framing", "worker reads"),
    ("decode and validate", "codec/decode", "decode"),
    ("predict", "(the echo's own)", "predict"),
    ("encode", "codec/encode", "encode"),
    ("keep items apart, write the frame of answers", "worker/runner", "runner"),
)


async def walk(laps: int) -> dict[str, float]:
    """Microseconds per request of every piece."""
    watch = Watch()
    for _ in range(laps):
        for scene in SCENES:
            await scene(watch)
    found = watch.best
    found["runner"] = found["worker in all"] - found["decode"] - found["predict"] - found["encode"]
    return found


def loaded(name: str, seconds: float) -> list[tuple[float, float]]:
    """CPU per request of the coordinator and of the workers of a running server, in microseconds: all, kernel."""
    subject = SUBJECTS[name]
    server = Server(subject)
    try:
        server.wait_ready()
        before = server.costs()
        load = run_load(server.port, subject.path, connections=256, seconds=seconds)
        after = server.costs()
    finally:
        server.stop()
    scale = 1e6 / load.completed
    return [
        ((late.cpu - early.cpu) * scale, (late.kernel - early.kernel) * scale)
        for late, early in zip(after, before, strict=True)
    ]


def show_hops(found: dict[str, float]) -> tuple[float, float]:
    """Print the hops; the sums of the coordinator's and of the worker's."""
    sums = []
    for title, hops in (("coordinator", COORDINATOR), ("worker", WORKER)):
        total = sum(found[piece] for _, _, piece in hops)
        rows = [(what, file, f"{found[piece]:.2f}") for what, file, piece in hops]
        show((f"{title}, us per request", "file", ""), [*rows, ("together", "", f"{total:.2f}")])
        sums.append(total)
    show(
        ("beside them, us per request", ""),
        [
            ("read a request whose head is new, instead of the first hop", f"{found['read, new head']:.2f}"),
            ("the coordinator's hops in one go, from bytes to frame", f"{found['way in']:.2f}"),
            ("and from frame to bytes", f"{found['way out']:.2f}"),
            ("all that the floor does: parse and write", f"{found['floor']:.2f}"),
        ],
    )
    return sums[0], sums[1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure each hop of a request.")
    parser.add_argument("--laps", type=int, default=LAPS, help=f"how often each is timed (default: {LAPS})")
    parser.add_argument("--loaded", action="store_true", help="compare with running servers")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each is loaded (default: 3)")
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(walk(max(1, chosen.laps)))
    coordinator, worker = show_hops(found)
    if chosen.loaded:
        try:
            seen = [*loaded("floor", chosen.seconds)[:1], *loaded("penstock", chosen.seconds)]
        except (LoadFailed, ServerFailed) as failure:
            print(f"bench: {failure}", file=sys.stderr)
            return 2
        show(
            ("under load, us of CPU per request", "all", "kernel", "hops", "the rest"),
            [
                (what, f"{cpu:.1f}", f"{kernel:.1f}", f"{hops:.1f}", f"{cpu - kernel - hops:.1f}")
                for what, (cpu, kernel), hops in zip(
                    ("floor", "coordinator", "worker"),
                    seen,
                    (found["floor"], coordinator, worker),
                    strict=True,
                )
            ],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
