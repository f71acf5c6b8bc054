"""What systemd does for a service, done by a test: it listens, it is told how things go, and it starts commands.

`Host` has sockets, and starts servers for them.  `Notified` is the socket behind `NOTIFY_SOCKET`.  `as_started` is a
command that becomes another one, with sockets and variables as systemd gives them: the process id in them is that of
the command.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

from served import PATIENCE_SECONDS, PENSTOCK, START_LIMIT, Program, Server

GATED = """
import os
import time
from pathlib import Path

import penstock as ps
from notes_and_gates import wait_for


class M(ps.Stage):
    def setup(self) -> None:
        if Path("gated").exists():
            wait_for(Path("open"))

    def predict(self, x: int) -> int:
        if x == 9:
            Path("held").touch()
            wait_for(Path("let go"))
        return x


class N(ps.Stage):
    def predict(self, x: int) -> int:
        return x


class Seen(ps.Stage):
    def predict(self, x: int) -> list[str]:
        variables = [name for name in os.environ if name.startswith(("NOTIFY", "WATCHDOG", "LISTEN"))]
        links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists() or path.is_symlink()]
        return [*variables, *links]


class Pid(ps.Stage):
    def predict(self, x: int) -> int:
        return os.getppid()


service = ps.Service(M, name="m")
other = ps.Service(N, name="n")
seen = ps.Service(Seen, name="seen")
pid = ps.Service(Pid, name="pid")
"""
BECOME = """
import fcntl, os, sys
numbers = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1].split(",") if number]
for place, number in enumerate(numbers, 3):
    os.dup2(number, place)
    os.close(number)
if numbers:
    os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"] = str(len(numbers)), str(os.getpid())
if "WATCHDOG_USEC" in os.environ:
    os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execvp(sys.argv[2], sys.argv[2:])
"""


def as_started(numbers: Sequence[int] = ()) -> tuple[str, ...]:
    """The words before a command that gets the descriptors `numbers`, which its parent must pass on to it."""
    return (sys.executable, "-c", BECOME, ",".join(map(str, numbers)))


class Notified:
    """A datagram socket at `address`, a path or a name behind an `@`; what comes is kept with its sender."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[list[str]] = []
        self.senders: set[int] = set()
        self._grown = threading.Condition()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            message, ancillary, _, _ = self._sock.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
            if message == b"the test ends":
                return
            ((_, _, credentials),) = ancillary
            with self._grown:
                self.senders.add(struct.unpack("3i", credentials)[0])
                self.messages.append(message.decode().split("\n"))
                self._grown.notify_all()

    def told(self) -> list[str]:
        """All assignments so far, in their order."""
        with self._grown:
            return [assignment for message in self.messages for assignment in message]

    def wait_for(self, pattern: str, *, after: int = 0, limit: float = START_LIMIT) -> int:
        """Wait for an assignment that `pattern` fits; its place among all of them, which is at least `after`."""
        deadline = time.monotonic() + limit
        while True:
            told = self.told()
            for place in range(after, len(told)):
                if re.fullmatch(pattern, told[place]):
                    return place
            with self._grown:
                left = deadline - time.monotonic()
                assert left > 0, f"no {pattern!r} from {after} on: {told}"
                if sum(map(len, self.messages)) == len(told):
                    self._grown.wait(left)

    def close(self) -> None:
        """Be told nothing more."""
        self._sock.sendto(b"the test ends", self._sock.getsockname())
        self._reader.join(PATIENCE_SECONDS)
        self._sock.close()


class Host:
    """Has sockets that listen, and starts servers for them, one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self.sockets = []
        self.programs = []

    def listen(self, family, address):
        sock = socket.socket(family)
        self.sockets.append(sock)
        sock.bind(address)
        sock.listen(128)
        return sock

    @property
    def tcp(self):
        """A socket of TCP, made when it is first asked for."""
        return next((each for each in self.sockets if each.family == socket.AF_INET), None) or self.listen(
            socket.AF_INET, ("127.0.0.1", 0)
        )

    @property
    def numbers(self):
        return tuple(sock.fileno() for sock in self.sockets)

    def serve(self, *words, wrapper=(), **more):
        words = words or ("model:service",)
        given = (*as_started(self.numbers), *wrapper)
        server = Server(self.folder, *words, wrapper=given, pass_fds=self.numbers, **more)
        self.programs.append(server)
        return server

    def work(self, *words, **more):
        command = (*as_started(self.numbers), *PENSTOCK, "consume", *words)
        program = Program(self.folder, *command, pass_fds=self.numbers, **more)
        self.programs.append(program)
        return program

    def close(self):
        for program in self.programs:
            if isinstance(program, Server):
                program.hang_up()
            program.destroy()
        for sock in self.sockets:
            sock.close()


def end(program):
    """End it as systemd does."""
    if isinstance(program, Server):
        program.hang_up()
    program.signal(signal.SIGTERM)
    assert program.wait() == 0, program.output
