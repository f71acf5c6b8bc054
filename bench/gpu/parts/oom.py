"""A batch for which the device has no memory: it is run in halves, every item is right, and the size is remembered."""

from __future__ import annotations

import json
import time

from part import Part
from serving import Server

ITEMS = 64
RATE_SECONDS = 0.4


def run(part: Part) -> None:
    """Send 64 items at once where about 20 fit; then measure the rate against batches of the size that fits."""
    with Server.penstock("trouble_services:shorten", part.folder / "short.log").ready(
        part.seconds_left() - 5
    ) as server:
        part.check("every item of the batch is right", *_right(server))
        short = _shortages(server)
        part.check("it was for want of memory", short >= 1, f"{short:.0f} batches were halved")
        # A shortage halves the size at most, so it takes several until batches fit.
        before = -1.0
        while short != before:
            before = short
            _right(server)
            short = _shortages(server)
        stage = next(iter(server.health()["shorten"]["stages"].values()))
        size = int(stage["max_size"])
        part.check("the size is remembered", 1 <= size < ITEMS, f"at most {size} at once now")
        part.figure("size that is remembered", "items", size)
        log = part.folder / "fitting.log"
        with Server.penstock("trouble_services:shorten", log, GPU_MAX_SIZE=str(size)) as fitting:
            fitting.ready(part.seconds_left() - 3)
            _right(fitting)
            rates: tuple[list[float], list[float]] = ([], [])
            while len(rates[0]) < 9 and part.seconds_left() > 3:
                for one, found in zip((server, fitting), rates, strict=True):
                    found.append(_rate(one))
                part.figure("rate after the shortage", "items/s", rates[0])
                part.figure("rate of batches of that size", "items/s", rates[1])
        ratios = [after / wanted for after, wanted in zip(*rates, strict=True)]
        part.figure("the one by the other", "ratio", ratios)
        middle = sorted(ratios)[len(ratios) // 2] if ratios else 0.0
        if part.on_gpu:
            part.check("the rate is within 5 %", middle >= 0.95, f"{middle:.3f}")
        short_again = _shortages(server) - short
        part.check("no batch was too large again", short_again == 0, f"{short_again:.0f} were")


def _shortages(server: Server) -> float:
    return server.metric("penstock_stage_out_of_memory_total")


def _right(server: Server) -> tuple[bool, str]:
    status, body = server.ask(list(range(ITEMS)), "/batch")
    outcomes = json.loads(body)["outcomes"] if status == 200 else []
    right = sum(outcome.get("result") == x * x for x, outcome in enumerate(outcomes))
    return right == ITEMS, f"{right} of {ITEMS}"


def _rate(server: Server) -> float:
    items, started = 0, time.monotonic()
    while (spent := time.monotonic() - started) < RATE_SECONDS:
        _right(server)
        items += ITEMS
    return items / spent
