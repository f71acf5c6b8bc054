"""A server as its user runs it: a folder with a module, `penstock serve` in a process of its own, real sockets.

When a server ends, nothing it started may be left, and neither may a socket file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from programs import END_LIMIT, MarkedProgram
from prometheus_client.parser import text_string_to_metric_families
from waiting import until_now

ORDERS = Path(__file__).parent / "program" / "orders.py"
"""The services that most of these tests serve."""
NOTES_AND_GATES = Path(__file__).parent / "notes_and_gates.py"
PENSTOCK = (sys.executable, "-m", "penstock")
START_LIMIT = 40.0
PATIENCE_SECONDS = 20.0
"""Seconds; only a broken test waits this long."""
CHANGED_SETTINGS = """
import faulthandler, gc, multiprocessing, os, signal, socket, sys, tempfile, threading, warnings

socket.setdefaulttimeout(0.01)
tempfile.tempdir = os.path.join(os.path.dirname(os.path.abspath(__file__)), "temporary")
os.makedirs(tempfile.tempdir, exist_ok=True)
os.umask(0o777)
warnings.simplefilter("error")
sys.setswitchinterval(1e-6)
threading.stack_size(256 * 1024)
gc.disable()
faulthandler.enable()
multiprocessing.set_start_method("fork")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
"""
"""What a user's module may change for its whole process and what may reach what is ours, but for `LAST_SETTING`."""
LAST_SETTING = "sys.setrecursionlimit(90)"
"""So few that nothing is imported after it."""


class Program(MarkedProgram):
    """A command in a folder, without this process's own options."""

    def __init__(
        self, folder: Path, *command: str, env: dict[str, str] | None = None, pass_fds: tuple[int, ...] = ()
    ) -> None:
        self.folder = folder
        self.signalled = False
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        super().__init__(
            command,
            folder,
            {**inherited, **(env or {})},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that a test can signal the whole group, as a terminal does
            pass_fds=pass_fds,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, pattern: str, limit: float = START_LIMIT) -> re.Match[str]:
        """The first match of `pattern` in the output, now or later."""
        return super().wait_for(pattern, limit)

    def signal(self, number: int) -> None:
        self.signalled = True
        self.process.send_signal(number)

    def wait(self, limit: float = END_LIMIT) -> int:
        """Wait for the end, which leaves nothing running; the exit status."""
        status = self.process.wait(limit)
        self.leave_nothing()
        self.read_to_end()
        return status

    def serve_and_stop(self) -> str:
        """Wait until it serves, and end it as it should end; all that it has written."""
        try:
            self.wait_for("ready on")
            self.signal(signal.SIGTERM)
            assert self.wait() == 0
        finally:
            self.destroy()
        return self.output


class Answer:
    """One answer as it came: header names in lower case."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.headers}, {self.body[:500]!r})"


class Wire:
    """One connection, byte by byte: what is sent is sent now, answers are read when the test wants them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(PATIENCE_SECONDS)
        self._kept = b""

    def send(self, data: bytes) -> Wire:
        self.sock.sendall(data)
        return self

    def post(self, path: str, body: bytes | str | Any, **headers: str) -> Wire:
        """Send a request: bytes as they are, anything else as JSON."""
        return self.send(request("POST", path, body, **headers))

    def answer(self, *, to_head: bool = False) -> Answer:
        """The next answer; one `to_head` has no body."""
        head = self._until(b"\r\n\r\n")
        status_line, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = 0 if to_head else int(headers.get("content-length", 0))
        while len(self._kept) < length:
            self._read()
        body, self._kept = self._kept[:length], self._kept[length:]
        return Answer(int(status_line.split(" ")[1]), headers, body)

    def ended(self) -> bool:
        """Whether the server ends the connection, without another byte."""
        try:
            return not self._kept and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def drop(self) -> None:
        """Leave at once, as a client that crashes: no goodbye, what was unread is lost."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def _until(self, end: bytes) -> bytes:
        while end not in self._kept:
            self._read()
        at = self._kept.index(end) + len(end)
        found, self._kept = self._kept[:at], self._kept[at:]
        return found

    def _read(self) -> None:
        piece = self.sock.recv(1 << 20)
        assert piece, f"the connection ended instead of an answer; before that came {self._kept[:300]!r}"
        self._kept += piece


def request(method: str, path: str, body: bytes | Any = b"", **headers: str) -> bytes:
    """The bytes of a request; underscores in names of fields stand for dashes."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(payload)}\r\n{fields}\r\n"
    return head.encode() + payload


class Server(Program):
    """`penstock serve` in a folder, and the ways to talk to it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        super().__init__(folder, *wrapper, *PENSTOCK, "serve", *arguments, env=env, pass_fds=pass_fds)
        self.address = ""
        self._opened = contextlib.ExitStack()
        self._http: httpx.Client | None = None

    def ready(self) -> Server:
        """Wait until every stage is ready."""
        self.address = self.wait_for(r"ready on (unix:\S+|https?://[^\s\"]+)")[1]
        return self

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def wire(self, *, small_buffer: bool = False) -> Wire:
        """A new connection; closed with the server."""
        unix = self.address.startswith("unix:")
        sock = self._opened.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX if unix else socket.AF_INET)))
        if small_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE_SECONDS)
        sock.connect(self.address.removeprefix("unix:") if unix else ("127.0.0.1", self.port))
        return Wire(sock)

    def client(self, **options: Any) -> httpx.Client:
        """A client for this server; closed with it."""
        unix = self.address.startswith("unix:")
        transport = httpx.HTTPTransport(uds=self.address.removeprefix("unix:"), verify=False) if unix else None
        base = "http://test" if unix else self.address
        options = {"verify": False, "timeout": PATIENCE_SECONDS, "trust_env": False, **options}
        return self._opened.enter_context(httpx.Client(base_url=base, transport=transport, **options))

    @property
    def http(self) -> httpx.Client:
        """The client of a test that needs but one."""
        if self._http is None:
            self._http = self.client()
        return self._http

    def health(self) -> Any:
        return self.http.get("/health").json()

    def workers(self) -> list[int]:
        """The process ids of all workers, in the order of their stages."""
        stages = [stage for service in self.health()["services"].values() for stage in service["stages"].values()]
        return [worker["pid"] for stage in stages for worker in stage["workers"]]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples called `name` with these labels; 0 where there is none."""
        page = self.http.get("/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def until(self, condition: Any, what: str = "", limit: float = PATIENCE_SECONDS) -> Any:
        """What `condition` answers once that is true; the server must run until then."""

        def look() -> Any:
            found = condition()
            assert found or self.process.poll() is None, f"the server has ended:\n{self.output}"
            return found

        return until_now(look, what or str(condition), limit, lambda: self.output)

    def open_gate(self) -> None:
        """Let go of what runs the order "hold"."""
        (self.folder / "open").touch()

    def hang_up(self) -> None:
        """Close every connection a test has opened."""
        self._http = None
        self._opened.close()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the server as an operator does, and see that nothing stays behind."""
        self.signal(number)
        status = self.wait()
        assert status == 0, f"exit status {status}:\n{self.output}"
        if self.address.startswith("unix:"):
            assert not Path(self.address.removeprefix("unix:")).exists()


S = TypeVar("S", bound=Server)


@contextmanager
def serving(
    folder: Path,
    *options: str,
    source: str | None = None,
    services: tuple[str, ...] = ("service",),
    where: tuple[str, ...] = ("--port", "0"),
    env: dict[str, str] | None = None,
    ready: bool = True,
    wrapper: tuple[str, ...] = (),
    kind: type[S] = Server,
) -> Iterator[S]:
    """Serve `services` of module `orders`, or of `source`, on a free port; ends it by SIGTERM, and checks how.

    `wrapper` is a command that is run with that of the server as its arguments, and becomes it.
    A test that sends a signal itself also checks itself what comes of it.
    """
    module = write_module(folder, source)
    server = kind(folder, *(f"{module}:{name}" for name in services), *where, *options, env=env, wrapper=wrapper)
    try:
        if ready:
            server.ready()
        yield server
        server.hang_up()
        if server.signalled:
            server.wait()
        else:
            server.stop()
    finally:
        server.hang_up()
        server.destroy()


def write_module(folder: Path, source: str | None = None, name: str = "model") -> str:
    """Put a module with services into `folder`, and what it may import beside it; the module's name."""
    shutil.copy(NOTES_AND_GATES, folder)
    if source is None:
        shutil.copy(ORDERS, folder / "orders.py")
        return "orders"
    (folder / f"{name}.py").write_text(source)
    return name


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None, limit: float = 40.0) -> tuple[int, str]:
    """Run `penstock` with these arguments to its end: the exit status and what it wrote."""
    program = Program(folder, *PENSTOCK, *arguments, env=env)
    try:
        return program.wait(limit), program.output
    finally:
        program.destroy()
