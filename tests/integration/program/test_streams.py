"""Standard streams that are full, closed, or read by nobody: the server serves and ends as if nothing were amiss."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from served import PATIENCE_SECONDS, PENSTOCK, START_LIMIT, Wire, request

SAME = """
import penstock as ps

def same(x: float) -> float:
    return x

service = ps.Service(same, name="mine")

if __name__ == "__main__":
    service.serve(uds="socket")
"""
COMMANDS = {
    "command": (*PENSTOCK, "serve", "model:service", "--uds", "socket", "--access-log"),
    "program": (sys.executable, "model.py"),
}
REDIRECTED = {
    "a full stderr": "2>/dev/full",
    "a closed stderr": "2>&-",
    "closed outputs": ">&- 2>&-",
    "all closed": "<&- >&- 2>&-",
}


@pytest.fixture
def start(tmp_path):
    """Starts a command in the test's folder with streams as a shell redirects them; killed after the test."""
    (tmp_path / "model.py").write_text(SAME)
    started = []

    def begin(command, redirection="", **more):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
            cwd=tmp_path, env=environ, start_new_session=True, **{"stdin": subprocess.DEVNULL, **more},
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_SECONDS)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Asks the server at the Unix socket, as soon as it is ready."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short

    def ask(process):
        limit = time.monotonic() + START_LIMIT
        while time.monotonic() < limit:
            assert process.poll() is None, f"the server has ended: {process.returncode}"
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect("socket")
                    wire = Wire(sock)
                    if wire.send(request("GET", "/readyz")).answer().status == 200:
                        return wire.post("/predict", 2.5).answer().body
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError("the server was never ready")

    return ask


@pytest.mark.parametrize(
    ("command", "redirection"),
    [
        pytest.param(
            command,
            redirection,
            id=f"{name}-{how}",
            marks=() if (name == "command") == (how in ("a closed stderr", "all closed")) else pytest.mark.night,
        )
        for name, command in COMMANDS.items()
        for how, redirection in REDIRECTED.items()
    ],
)  # each way once by day
def test_a_server_needs_no_standard_streams(start, call, command, redirection):
    server = start(command, redirection)
    assert call(server) == b"2.5"
    server.send_signal(signal.SIGTERM)
    assert server.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_reader_of_one_line_that_leaves_stops_nothing(start, call, command):
    """As `2>&1 | head -1`."""
    server = start(command, "2>&1", stdout=subprocess.PIPE)
    assert server.stdout.readline()
    server.stdout.close()
    assert call(server) == b"2.5"
    assert call(server) == b"2.5"
    server.send_signal(signal.SIGTERM)
    assert server.wait(PATIENCE_SECONDS) == 0


@pytest.mark.smoke
def test_no_socket_takes_the_number_of_a_closed_stream(start, call):
    server = start(COMMANDS["command"], ">&- 2>&-")
    call(server)
    assert {str(Path(f"/proc/{server.pid}/fd/{fd}").readlink()) for fd in (1, 2)} == {"/dev/null"}
    server.send_signal(signal.SIGTERM)
    assert server.wait(PATIENCE_SECONDS) == 0


def test_an_error_that_cannot_be_written_is_exit_1_all_the_same(start):
    for redirection in ("2>/dev/full", "2>&-"):
        assert start((*PENSTOCK, "serve", "nothing:service"), redirection).wait(PATIENCE_SECONDS) == 1
