"""The front in Node of `examples/node_front`: built from a copy, so that the checkout stays as it is, and asked."""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import httpx

from registries import need_node_packages
from typescript_package import copy_clients, run_npm

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICE = """
import os
import sys
import time
from typing import Any, TypedDict

import penstock as ps


class Question(TypedDict):
    data: int | str


class Gated(ps.Stage):
    batch = ps.Batch(max_size=4)

    def predict(self, questions: list[Question]) -> list[Any]:
        asked = [question["data"] for question in questions]
        print(f"batch {asked} begins", file=sys.stderr, flush=True)
        while "hold" in asked and not os.path.exists("gate"):
            time.sleep(0.01)
        if "raise" in asked:
            raise ValueError("not today")
        return [data * data if isinstance(data, int) else data for data in asked]


service = ps.Service(Gated, name="gated")
"""
"""Squares.  A batch with a "hold" lasts until there is a file `gate`."""


def build_front(root: Path) -> Path:
    """Build the front below `root`, unless another process has done so, and give its folder.

    Skips where npm finds no registry at the start.
    """
    need_node_packages()
    folder = root / "node_front" / "examples" / "node_front"
    with (root / "node_front.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            shutil.rmtree(root / "node_front", ignore_errors=True)
            made = shutil.ignore_patterns("node_modules", "dist", "__pycache__")
            for name in ("burst", "node_front"):
                shutil.copytree(EXAMPLES / name, folder.parent / name, ignore=made)
            copy_clients(root / "node_front")
            run_npm(folder, "ci")
            run_npm(folder, "run", "build")
            (folder / "built").touch()
    return folder


def ask(client: httpx.Client, data: Any) -> httpx.Response:
    """What the front answers to `data`."""
    return client.post("/predict", json={"data": data})


def assert_told(answer: httpx.Response, status: int, detail: str = "") -> None:
    """It is a problem of this status, and says when to come again exactly where that may help."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    problem = answer.json()
    assert problem["status"] == status
    assert detail in problem["detail"]
    assert answer.headers.get("retry-after") == (str(problem["retry_after"]) if status in (429, 503) else None)


def send_only(url: str, data: Any) -> socket.socket:
    """A connection on which `data` was sent, and whose answer nobody has read."""
    body = json.dumps({"data": data}).encode()
    parts = httpx.URL(url)
    connection = socket.create_connection((parts.host, parts.port or 80), timeout=20.0)
    head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection
