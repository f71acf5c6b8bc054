"""Replaces two replicas one after the other, behind HAProxy and behind nginx: no request fails, and none runs twice."""

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from judging import Outcome
from node_callers import missing
from proxy import NOBODY, program
from replacing import roll
from replica import Replica
from telling import tell, until

PROXIES = ("haproxy", "nginx")


def demo(names: list[str], stack: ExitStack) -> int:
    """All of it; the exit status."""
    without = [f"{name} is not installed: make proxies" for name in names if program(name) is None]
    names = [name for name in names if program(name) is not None]
    if not names:
        raise SystemExit("; ".join(without))
    if no_node := missing():
        without.append(f"Python alone: {no_node}")
    for what in without:
        tell("demo", what)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rolling-")))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    runs = folder / "runs"
    replicas = [Replica(name, folder, runs) for name in ("a", "b")]
    for close in (Replica.close, Replica.ask_to_end):  # both are asked before one is waited for
        for replica in replicas:
            stack.callback(close, replica)
    for replica in replicas:
        until(replica.ready, lambda: "demo      two replicas start")
    outcomes = [roll(name, folder, replicas, runs, not no_node) for name in names]
    total = Outcome(sum(each.failed for each in outcomes), sum(each.twice for each in outcomes))
    print(total, *(f"({what})" for what in without), flush=True)
    return int(total != Outcome(0, 0))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        sys.exit(demo(sys.argv[1:] or list(PROXIES), stack))
