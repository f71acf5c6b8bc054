"""Scores users while the store is up, while it is down, and when it is back."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

from service import service_on

USERS = [f"user{number}" for number in range(200)]


def start_store(port: int = 0) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, str(Path(__file__).with_name("store.py")), str(port)]
    store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return store, int(store.stdout.readline())


def stop_store(store: subprocess.Popen) -> None:
    with store:
        store.terminate()


def scores_in(url: str) -> int:
    with urlopen(f"{url}/count") as answer:
        return int(answer.read())


def in_words(outcome: object) -> str:
    """The result of a user is a URL, or what a stage raised."""
    return "scored" if isinstance(outcome, str) else f"failed by {outcome.type_name.rpartition('.')[2]}"


async def main() -> None:
    store, port = start_store()
    url = f"http://127.0.0.1:{port}"
    try:
        async with service_on(url) as service:
            for state in ("up", "down", "back"):
                if state == "down":
                    stop_store(store)
                elif state == "back":
                    store, _ = start_store(port)
                outcomes = await service.predict_many(USERS, return_exceptions=True)
                counts = Counter(map(in_words, outcomes))
                print(f"store {state}:", ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)
        print(f"the store has {scores_in(url)} scores")
    finally:
        stop_store(store)


if __name__ == "__main__":
    asyncio.run(main())
