"""Runs the examples as a user would: real commands in real processes, asked over real HTTP.

When a command ends, nothing it started may be left.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from programs import END_LIMIT, MarkedProgram

EXAMPLES = Path(__file__).parents[2] / "examples"
PENSTOCK = Path(sys.executable).parent / "penstock"
START_LIMIT = 50.0  # seconds; generous, since the machine may be busy with other tests


class Program(MarkedProgram):
    """A command in an example's folder."""

    def wait_for(self, pattern: str, limit: float = START_LIMIT) -> re.Match[str]:
        """The first match of `pattern` in the output, now or later."""
        return super().wait_for(pattern, limit)

    def end(self, with_signal: int | None = None, limit: float = END_LIMIT) -> int:
        """Wait for the exit, having asked for it if `with_signal`; the exit status."""
        if with_signal is not None and self.process.poll() is None:
            self.process.send_signal(with_signal)
        status = self.process.wait(limit)
        self.leave_nothing()
        return status


Run = Callable[..., AbstractContextManager[Program]]
Serve = Callable[..., AbstractContextManager[httpx.Client]]


@contextmanager
def _running(folder: str, *command: str, env: dict[str, str] | None = None) -> Iterator[Program]:
    program = Program(command, EXAMPLES / folder, {**os.environ, **(env or {})})
    try:
        yield program
    finally:
        program.destroy()


@contextmanager
def _serving(folder: str, target: str, *options: str) -> Iterator[httpx.Client]:
    with _running(folder, str(PENSTOCK), "serve", target, "--port", "0", *options) as program:
        url = program.wait_for(r"http://127\.0\.0\.1:\d+").group()
        with httpx.Client(base_url=url, timeout=START_LIMIT, verify=False) as client:
            assert client.get("/readyz").status_code == 200
            yield client
        assert program.end(signal.SIGTERM) == 0, program.output


@pytest.fixture(scope="session")
def running() -> Run:
    """``with running(folder, *command, env=None) as program``: a command in an example's folder."""
    return _running


@pytest.fixture(scope="session")
def serving() -> Serve:
    """``with serving(folder, "module:service", *options) as client``: `penstock serve`, ready.

    Ends it by SIGTERM, and fails unless it exits with 0 and leaves no process behind.
    """
    return _serving


@pytest.fixture(scope="session")
def curl() -> Callable[[httpx.Client, str, Path], httpx.Response]:
    """``curl(client, line, folder)`` sends what a curl command line of a README would, to `client`'s server."""
    return _curl


def _curl(client: httpx.Client, line: str, folder: Path) -> httpx.Response:
    words = iter(shlex.split(line))
    assert next(words) == "curl"
    path, headers, body = "", {}, b""
    for word in words:
        match word:
            case "-s":
                continue
            case "-H":
                name, _, value = next(words).partition(":")
                headers[name] = value.strip()
            case "-d":
                body = next(words).encode()
            case "--data-binary":
                body = (folder / next(words).removeprefix("@")).read_bytes()
            case "-o":
                next(words)
            case _:
                path = "/" + word.removeprefix("http://").partition("/")[2]
    return client.post(path, content=body, headers=headers)


@pytest.fixture(scope="session")
def reference() -> dict[str, tuple[str, list[float]]]:
    """What the published sentence model answers: a text and its vector, by name."""
    recorded = json.loads((Path(__file__).parent / "data" / "minilm_reference.json").read_text())
    return {entry["name"]: (entry["text"], entry["vector"]) for entry in recorded["texts"]}
