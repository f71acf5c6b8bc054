"""Measure the clients: against a server that causes faults on purpose, and twenty of them against one that is full.

    python bench/clients.py                     # five rounds of everything
    python bench/clients.py --only flow --rounds 3
    python bench/clients.py --plain             # the sources of the server, not what an install compiles

In each round every client plays every scene once, one after the other, and the order turns from round to round.  The
client in TypeScript is run by Node over what `npm ci && npm run build` makes in clients/typescript; where either is not
there, it is left out, and the run says so.

The exit status is 1 when a limit is missed, 2 when nothing could be measured, or an answer was wrong.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime

import msgspec

from builds import COMPILED, HERE, ROOT, SOURCES, Build
from client_figures import CLIENTS, FIGURES, ClientRound, ClientRun, summarise
from client_load import ClientsSeen, Plan
from loadgen import LoadFailed, run_load
from payload import Exchange
from procfs import machine_busy
from report import keep
from run import machine
from scene_arguments import scene_arguments
from servers import Server, ServerFailed, Subject, penstock_command

CHAOS = "seed=1,error=0.03,drop=0.03,kill=0.002,delay=0.05:0.2"
CHAOS_CALLS = 5000
MOST_QUEUED = 64
CAPACITY_CONNECTIONS = 48
"""Less than there is room for, so that none is refused, and more than three batches, so that the stage never waits."""
CAPACITY_SECONDS = 3.0
WARMUP_SECONDS, SECONDS = 3.0, 8.0
"""Behind the warm-up every client has found its limit."""
LONGEST_SECONDS = 300.0
ONE = Exchange(b"21", b"42")
"""Item and answer, for whoever sends always the same."""
SCENES = tuple(dict.fromkeys(figure.scene for figure in FIGURES))
PACKAGE = ROOT / "clients" / "typescript"
PROGRAMS = {
    "python": [sys.executable, str(HERE / "client_load.py")],
    "typescript": ["node", str(HERE / "client_load.mjs")],
}


def lacking() -> str | None:
    """What the TypeScript client lacks to be measured, or None."""
    if shutil.which("node") is None:
        return "Node is not installed: make node"
    if not (PACKAGE / "dist" / "esm" / "index.js").exists():
        return f"it is not built: npm ci && npm run build in {PACKAGE}"
    return None


def play(client: str, plan: Plan) -> tuple[ClientsSeen, float]:
    """What a client sees that does what is planned, and how many cores were busy meanwhile, all of the machine."""
    begin, busy = time.monotonic(), machine_busy()
    command = [*PROGRAMS[client], msgspec.json.encode(plan).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
    cores = (machine_busy() - busy) / (time.monotonic() - begin)
    if done.returncode:
        raise LoadFailed(f"the load generator of the {client} client ended with {done.returncode}:\n{done.stderr}")
    seen = msgspec.json.decode(done.stdout, type=ClientsSeen)
    if seen.wrong or not seen.right:
        raise LoadFailed(f"the {client} client had {seen.wrong} wrong answers and {seen.right} right ones")
    return seen, cores


def measure_chaos(client: str, number: int, server: Server) -> ClientRound:
    """5 000 calls through one client."""
    plan = Plan(f"http://127.0.0.1:{server.port}", retry_unsafe=True, requests=CHAOS_CALLS)
    return take("chaos", client, number, plan, server)


def measure_flow(scene: str, client: str, number: int, server: Server) -> ClientRound:
    """Twenty clients of fifty callers, and the capacity just before and just after."""
    plan = Plan(
        f"http://127.0.0.1:{server.port}",
        clients=20,
        flow_control=scene == "flow",
        warmup=WARMUP_SECONDS,
        seconds=SECONDS,
    )
    before = capacity(server)
    taken = take(scene, client, number, plan, server)
    return msgspec.structs.replace(taken, capacity=(before + capacity(server)) / 2)


def take(scene: str, client: str, number: int, plan: Plan, server: Server) -> ClientRound:
    """One scene through one client."""
    begin, before = time.monotonic(), server.cpu_seconds()
    seen, cores = play(client, plan)
    server_cores = (server.cpu_seconds() - before) / (time.monotonic() - begin)
    return ClientRound(scene, client, number, seen, max(0.0, cores - seen.cores - server_cores))


def capacity(server: Server) -> float:
    """Answers a second of the stage that always has a full batch to run."""
    return run_load(
        server.port, "/predict", connections=CAPACITY_CONNECTIONS, seconds=CAPACITY_SECONDS, warmup=1.0, exchange=ONE
    ).rps


def subjects(build: Build) -> tuple[Subject, Subject]:
    """The server that is full, and that in chaos."""
    common = {"worker_mark": "penstock.worker", "build": build, "exchange": ONE}
    slow = penstock_command("client_services:slow", "--max-in-flight", str(MOST_QUEUED))
    return (
        Subject("slow", slow, **common),
        Subject("chaos", penstock_command("client_services:quick", "--chaos", CHAOS), **common),
    )


def arguments() -> argparse.Namespace:
    return scene_arguments(
        "Measure the clients in chaos, and before a full server.",
        SCENES,
        rounds="measurements of each scene",
        plain="run the sources of the server, not the compiled build",
    )


def take_all(chosen: argparse.Namespace, clients: list[str]) -> list[ClientRound]:
    """Every round of every scene asked for."""
    taken = []
    with ExitStack() as stack:
        servers = {}
        for subject in subjects(SOURCES if chosen.plain else COMPILED):
            servers[subject.name] = server = Server(subject)
            stack.callback(server.stop)
            server.wait_ready()
        plays = [(scene, client) for scene in chosen.only for client in clients]
        for number in range(chosen.rounds):
            turn = number % len(plays)
            for scene, client in plays[turn:] + plays[:turn]:
                if scene == "chaos":
                    one = measure_chaos(client, number, servers["chaos"])
                else:
                    one = measure_flow(scene, client, number, servers["slow"])
                taken.append(one)
                print(f"round {number + 1}/{chosen.rounds}  {one.line()}", file=sys.stderr, flush=True)
    return taken


def main() -> int:
    chosen = arguments()
    missing = lacking()
    if missing is not None:
        print(f"bench: the TypeScript client is left out: {missing}", file=sys.stderr)
    clients = [client for client in CLIENTS if client != "typescript" or missing is None]
    try:
        taken = take_all(chosen, clients)
    except (LoadFailed, ServerFailed, subprocess.TimeoutExpired) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    build = {"build": "plain" if chosen.plain else "compiled"}
    run = ClientRun(datetime.now(UTC), build | machine("httpx"), {"rounds": chosen.rounds}, taken)
    met = summarise(run)
    print(f"Everything that was measured: {keep(run, f'clients-{run.when:%Y%m%d-%H%M%S}')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
