"""A device-side assert in one item of 32: it fails alone, and its worker is replaced."""

from __future__ import annotations

import json
import time

from part import Part
from serving import Server

ROWS = 1000
BAD = 17


def run(part: Part) -> None:
    """Send 31 good items and a bad one, all in one batch, then another."""
    waits = []
    with Server.penstock("trouble_services:lose", part.folder / "lose.log").ready(part.seconds_left() - 5) as server:
        for count in (1, 2):
            if count > 1 and part.seconds_left() < 15:
                break
            started = time.monotonic()
            rows = list(range(32))
            rows[BAD] = ROWS + 5
            status, body = server.ask(rows, "/batch")
            outcomes = json.loads(body).get("outcomes", []) if status in (200, 207) else []
            right = sum(outcome.get("result") == 2 * row for row, outcome in zip(rows, outcomes, strict=False))
            bad = outcomes[BAD] if len(outcomes) == 32 else {}
            words = str(bad.get("error", {}).get("detail", ""))
            part.check(f"the 31 others are right ({count})", right == 31, f"{right} are right")
            part.check(f"the bad one fails alone ({count})", "error" in bad, words[:300])
            part.check(f"the next request is right ({count})", server.answer(7) == 14)
            waits.append(time.monotonic() - started)
            restarts = sum(worker["restarts"] for worker in server.workers())
            part.check(f"at most two workers are replaced ({count})", restarts <= 2 * count, f"{restarts} so far")
            part.figure("from the assert to the next right answer", "s", waits)
        lost = server.metric("penstock_stage_devices_lost_total")
        stages = server.health()["lose"]["stages"].values()
        shown = sum(stage["devices_lost"] for stage in stages)
        part.check("/health and the counter say so", lost == shown >= 1, f"{shown} in /health, {lost:.0f} counted")
        part.check("the log says so", "device lost" in server.output)
