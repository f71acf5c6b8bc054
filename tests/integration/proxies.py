"""A real HAProxy or nginx with a file that `penstock generate` has written, as a user who is not root, in a folder.

Everything that it writes must be in its folder.  It listens on a Unix socket there, so that no test needs a free port,
unless it is told another address.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from programs import END_LIMIT, MarkedProgram
from served import PATIENCE_SECONDS
from waiting import until_now

from penstock.cli.main import command_arguments, run_command

PROXIES = ("haproxy", "nginx")
NOBODY = 65534
SYSTEM_PROGRAMS = "/usr/sbin:/sbin"
"""Where Debian has both, which is not on the path of everybody."""


def proxy_program(name: str) -> str | None:
    """The program, or None where it is not installed."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PROGRAMS}")


def needs_program(name: str) -> pytest.MarkDecorator:
    """Skips a test, and names the program, where it is not installed."""
    return pytest.mark.skipif(proxy_program(name) is None, reason=f"{name} is not installed: make proxies")


def unprivileged() -> dict[str, object]:
    """The arguments of `Popen` for a program without the rights of root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that whoever runs the proxy may write to, with a short path, for sockets; removed in the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


def free_port() -> int:
    """A port that nobody has now, and that the system gives to nobody who asks for any port.

    Each connection and each test that listens on port 0 asks so: a port that was theirs could be theirs again before a
    proxy has it.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [port for port in range(10_000, 65_536) if not first <= port <= last]
    while True:
        port = random.SystemRandom().choice(others)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def check_command(name: str, file: Path) -> list[str]:
    """What says whether a file is one."""
    program = proxy_program(name)
    assert program is not None
    if name == "haproxy":
        return [program, "-c", "-f", str(file)]
    return [program, "-t", "-e", "stderr", "-p", str(file.parent), "-c", str(file)]


class Proxy(MarkedProgram):
    """A proxy that runs."""

    def __init__(self, name: str, folder: Path, *arguments: str, listen: str | None = None) -> None:
        self.name = name
        self.folder = folder
        self.listen = listen or f"unix:{folder}/front.sock"
        self.file = folder / f"{name}.conf"
        flags = ["--listen", self.listen, *arguments, "--output", str(self.file), "--force"]
        # In this process: half a second less for each of many tests.  That the command is one is shown elsewhere.
        arguments = command_arguments(["generate", name, *flags])
        assert run_command(lambda: arguments.run(arguments)) == 0
        program = proxy_program(name)
        assert program is not None
        start = {"haproxy": ["-f"], "nginx": ["-e", "stderr", "-p", str(folder), "-c"]}[name]
        super().__init__(
            [program, *start, str(self.file)], folder, dict(os.environ), start_new_session=True, **unprivileged()
        )
        until_now(self._answers, f"{name} to listen", context=lambda: self.output)

    def _connect(self) -> socket.socket:
        if self.listen.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            address: object = self.listen.removeprefix("unix:")
        else:
            host, _, port = self.listen.rpartition(":")
            sock = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
            address = (host.strip("[]"), int(port))
        sock.settimeout(PATIENCE_SECONDS)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            raise
        return sock

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.output
        with contextlib.suppress(OSError), self._connect():
            return True
        return False

    @contextmanager
    def client(self, scheme: str = "http", **options: object) -> Iterator[httpx.Client]:
        """A client of the proxy."""
        unix = self.listen.startswith("unix:")
        transport = httpx.HTTPTransport(uds=self.listen.removeprefix("unix:"), **options) if unix else None
        base = f"{scheme}://localhost" if unix else f"{scheme}://{self.listen}"
        with httpx.Client(
            base_url=base, transport=transport, timeout=PATIENCE_SECONDS, trust_env=False, **({} if unix else options)
        ) as client:
            yield client

    def connection(self) -> socket.socket:
        """A connection of one's own."""
        return self._connect()

    @property
    def log(self) -> str:
        """What it has written of requests so far."""
        return self.output if self.name == "haproxy" else (self.folder / "access.log").read_text()

    def stop(self) -> None:
        """End it as its supervisor would; it must end well."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(END_LIMIT)
        assert status in (0, 128 + signal.SIGTERM, -signal.SIGTERM), self.output


@contextmanager
def proxying(name: str, folder: Path, *arguments: str, listen: str | None = None) -> Iterator[Proxy]:
    """A proxy that runs with the file of `penstock generate NAME` with these flags, until it is left."""
    proxy = Proxy(name, folder, *arguments, listen=listen)
    try:
        yield proxy
        proxy.stop()
    finally:
        proxy.destroy()
