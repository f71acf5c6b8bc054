"""Runs the examples as a user would: real commands in real processes, asked over real HTTP.

Whatever is started here is marked in its environment, and so are its children: when it ends, nothing with that mark
may be left.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from read_process import ReadProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
PENSTOCK = Path(sys.executable).parent / "penstock"
MARK = "PENSTOCK_ACCEPTANCE_RUN"
START_LIMIT = 50.0  # seconds; generous, since the machine may be busy with other tests
STOP_LIMIT = 20.0


class Program(ReadProcess):
    """A command in an example's folder; its output, both streams together, is read as it comes."""

    def __init__(self, folder: str, command: list[str], env: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        process = subprocess.Popen(
            command,
            cwd=EXAMPLES / folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.read(process)

    def wait_for(self, pattern: str, limit: float = START_LIMIT) -> re.Match[str]:
        """The first match of `pattern` in the output, now or later."""
        return super().wait_for(pattern, limit)

    def end(self, with_signal: int | None = None, limit: float = STOP_LIMIT) -> int:
        """Wait for the exit, having asked for it if `with_signal`; the exit status."""
        if with_signal is not None and self.process.poll() is None:
            self.process.send_signal(with_signal)
        status = self.process.wait(limit)
        left = self.survivors()
        assert not left, f"processes left behind: {left}\n{self.output}"
        return status

    def survivors(self) -> list[str]:
        """What still runs of this program: itself, its children, theirs."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
            except OSError:  # it ended meanwhile, or belongs to somebody else
                continue
        return found

    def destroy(self) -> None:
        """Leave nothing running, whatever the test found."""
        for line in self.survivors():
            with_pid = int(line.split(":")[0])
            try:
                os.kill(with_pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(STOP_LIMIT)
        self.read_to_end(STOP_LIMIT)
        assert self.process.stdout is not None
        self.process.stdout.close()


Run = Callable[..., AbstractContextManager[Program]]
Serve = Callable[..., AbstractContextManager[httpx.Client]]


@contextmanager
def _running(folder: str, *command: str, env: dict[str, str] | None = None) -> Iterator[Program]:
    program = Program(folder, list(command), env or {})
    try:
        yield program
    finally:
        program.destroy()


@contextmanager
def _serving(folder: str, target: str, *options: str, uds: Path | None = None) -> Iterator[httpx.Client]:
    where = ["--port", "0"] if uds is None else ["--uds", str(uds)]
    with _running(folder, str(PENSTOCK), "serve", target, *where, *options) as program:
        if uds is None:
            url = program.wait_for(r"http://127\.0\.0\.1:\d+").group()
            client = httpx.Client(base_url=url, timeout=START_LIMIT)
        else:
            program.wait_for(re.escape(str(uds)))
            transport = httpx.HTTPTransport(uds=str(uds))
            client = httpx.Client(transport=transport, base_url="http://penstock", timeout=START_LIMIT)
        with client:
            assert client.get("/readyz").status_code == 200
            yield client
        assert program.end(signal.SIGTERM) == 0, program.output


@pytest.fixture(scope="session")
def running() -> Run:
    """``with running(folder, *command, env=None) as program``: a command in an example's folder."""
    return _running


@pytest.fixture(scope="session")
def serving() -> Serve:
    """``with serving(folder, "module:service", *options, uds=None) as client``: `penstock serve`, ready.

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
