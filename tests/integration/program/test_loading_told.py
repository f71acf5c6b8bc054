"""While a model loads, the pages, the log or the terminal tell which one, and since when."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys
import time

import pytest
from served import PATIENCE_SECONDS, PENSTOCK, START_LIMIT, Program, Wire, request, serving, write_module
from terminal_programs import Terminal
from waiting import until_now

SLOW = """
from pathlib import Path

import penstock as ps
from notes_and_gates import wait_for


class M(ps.Stage):
    def setup(self) -> None:
        wait_for(Path("half"))
        print("half of it")
        wait_for(Path("open"))

    def predict(self, x: float) -> float:
        return x


service = ps.Service(M, name="mine")
"""
OFTEN = """
from penstock.hosting import load_lines
from model import service

load_lines.LOG_INTERVAL_SECONDS = 0.1

if __name__ == "__main__":
    service.serve(uds="socket", log_format={log_format!r})
"""


@pytest.fixture
def loading(tmp_path):
    """A server that loads until its gate is opened, on a Unix socket."""
    with serving(tmp_path, source=SLOW, where=("--uds", "socket"), ready=False) as server:
        server.wait_for("starting mine")
        (tmp_path / "half").touch()
        until_now(lambda: _is_listened_at(tmp_path / "socket"))
        server.address = f"unix:{tmp_path / 'socket'}"
        yield server
        server.open_gate()
        server.wait_for("ready on")


def test_the_pages_and_refusals_tell_what_loads_and_since_when(loading):
    words = r"M is loading, [0-9]+ s"
    until_now(lambda: re.fullmatch(words, loading.health()["services"]["mine"]["reason"]))
    ready = loading.http.get("/readyz")
    assert ready.status_code == 503
    assert re.fullmatch(rf"mine is starting: {words}", ready.json()["detail"])
    refused = loading.http.post("/predict", json=1.0)
    assert refused.status_code == 503
    assert re.fullmatch(rf"service 'mine' is starting: {words}", refused.json()["detail"])
    until_now(lambda: "M is loading, 1 s" in loading.http.get("/readyz").text)  # it goes on


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_without_a_terminal_the_log_tells_again_and_again(tmp_path, log_format):
    write_module(tmp_path, SLOW)
    (tmp_path / "half").touch()
    (tmp_path / "often.py").write_text(OFTEN.format(log_format=log_format))
    program = Program(tmp_path, sys.executable, "often.py")
    try:
        program.wait_for(r"(?s)service 'mine': M is loading, 0 s.*service 'mine': M is loading, 1 s")
        (tmp_path / "open").touch()
        program.wait_for("ready on")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    finally:
        program.destroy()
    assert "\x1b" not in program.output
    told = [line for line in program.output.splitlines() if "is loading" in line]
    if log_format == "json":
        assert all(line.startswith("{") and '"logger":"penstock.loading"' in line for line in told)
    else:
        assert all(" INFO penstock.loading: service 'mine': M is loading" in line for line in told)


@pytest.fixture
def on_terminal(tmp_path):
    write_module(tmp_path, SLOW)
    with contextlib.ExitStack() as opened:

        def start(*options, **more):
            command = (*PENSTOCK, "serve", "model:service", "--uds", "socket", *options)
            terminal = Terminal(tmp_path, *command, **more)
            opened.callback(terminal.end)
            return terminal

        yield start


def test_on_a_terminal_one_line_changes_and_no_other_is_garbled(on_terminal, tmp_path):
    terminal = on_terminal()
    line = rb"penstock: mine: M is loading, [0-9]+ s"
    until_now(
        lambda: len(set(re.findall(line, terminal.written))) >= 2,
        context=lambda: str(terminal.rows),
        patience=START_LIMIT,
    )
    assert len(terminal.rows) == 3, "it is one line, behind the version and the start"
    (tmp_path / "half").touch()  # the worker prints, in a process of its own
    until_now(lambda: "half of it" in terminal.rows, context=lambda: str(terminal.rows))
    until_now(lambda: "is loading" in terminal.rows[-1], context=lambda: str(terminal.rows))
    terminal.process.send_signal(signal.SIGUSR1)  # many lines come above it
    until_now(
        lambda: any("SIGUSR1: health" in row for row in terminal.rows) and "is loading" in terminal.rows[-1],
        context=lambda: str(terminal.rows),
    )
    (tmp_path / "open").touch()
    until_now(lambda: any("ready on" in row for row in terminal.rows), context=lambda: str(terminal.rows))
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(PATIENCE_SECONDS) == 0
    until_now(lambda: "penstock: stopped" in terminal.rows, context=lambda: str(terminal.rows))
    assert [row for row in terminal.rows if "is loading" in row and "health" not in row] == []
    assert "penstock: ready on unix:" in "\n".join(row for row in terminal.rows if row.startswith("penstock: ready"))
    assert terminal.rows[1].startswith("penstock: starting mine")


@pytest.mark.parametrize(
    ("options", "env"), [(("--log-format", "json"), {}), ((), {"TERM": "dumb"})], ids=["json", "a dumb terminal"]
)
def test_no_line_changes_where_none_can_or_may(on_terminal, options, env, tmp_path):
    terminal = on_terminal(*options, env=env)
    until_now(lambda: b"starting mine" in terminal.written, patience=START_LIMIT)
    until_now(lambda: _is_listened_at(tmp_path / "socket"))
    began = time.monotonic()
    until_now(lambda: _told_seconds(tmp_path) >= 2, context=lambda: f"{time.monotonic() - began} s")
    (tmp_path / "half").touch()
    (tmp_path / "open").touch()
    until_now(lambda: b"ready on" in terminal.written)
    assert b"\x1b" not in terminal.written


def _is_listened_at(path):
    """Whether somebody listens at a Unix socket: its file is there a moment earlier."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock, contextlib.suppress(OSError):
        sock.connect(str(path))
        return True
    return False


def _told_seconds(folder):
    """How long the model loads, as the server says."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(PATIENCE_SECONDS)
        sock.connect(str(folder / "socket"))
        detail = Wire(sock).send(request("GET", "/readyz")).answer().json()["detail"]
    found = re.search(r"is loading, ([0-9]+) s", detail)
    return int(found[1]) if found else 0
