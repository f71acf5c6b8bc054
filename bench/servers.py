"""The servers of the bench: how each is started, found ready, and ended.

Each is a process of its own on a free port of the loopback, with its output in a file that is shown if it fails.
None is pinned to cores: on a small machine the scheduler places servers and load generator better than a fixed
split that suits one of them.  To keep the whole bench off some cores, start it under `taskset`.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builds import COMPILED, HERE, SOURCES, Build
from device import NOTES_VARIABLE, WAIT_VARIABLE, Sleeps, new_notes, read_sleeps
from payload import ARRAY, BLOB, FLOATS, INVERTED, RECEIVED, TERMS, Exchange
from procfs import Cost, costs, cpu_seconds, mapped_files, tree


class ServerFailed(Exception):
    """A server did not come up, or did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One server to measure."""

    name: str
    command: Callable[[int], list[str]]
    """The interpreter's arguments, given the port."""
    path: str = "/predict"
    worker_mark: str = ""
    """What is in the command line of its workers and of no other of its processes; "" if it has none."""
    numbered: bool = False
    """Whether every request carries an id of its own, so that no two heads are equal."""
    build: Build = COMPILED
    exchange: Exchange = FLOATS
    log_line: bytes = b""
    """What its output has once for each request; empty if there is no such line."""
    variables: tuple[tuple[str, str], ...] = ()
    """What its environment has besides."""
    outside: str = ""
    """The stage of the worker that is started beside it and attaches, for `penstock worker run`; "" for none."""
    loads: tuple[int, ...] = ()
    """Over how many connections it is measured, one after the other; () leaves that to the run."""
    sleeps: bool = False
    """Whether it is a device that sleeps, whose worker notes how long."""


def penstock_command(*targets_and_flags: str) -> Callable[[int], list[str]]:
    """The command of `penstock serve`, given the port.  All services come first: it takes none behind a flag."""
    return lambda port: ["-m", "penstock.cli.main", "serve", *targets_and_flags, "--port", str(port)]


def _mosec(batch: int) -> Callable[[int], list[str]]:
    return lambda port: [
        str(HERE / "mosec_echo.py"), "--batch", str(batch),
        "--address", "127.0.0.1", "--port", str(port), "--log-level", "error",
    ]  # fmt: skip


def _accelerator(name: str, max_wait: float | None = None) -> Subject:
    return Subject(
        name,
        penstock_command("accelerator:service"),
        worker_mark="penstock.worker",
        # Empty is the default policy, also where the environment of the bench has a wait.
        variables=((WAIT_VARIABLE, "" if max_wait is None else str(max_wait)),),
        sleeps=True,
    )


SUBJECTS = {
    s.name: s
    for s in (
        Subject("floor", lambda port: [str(HERE / "floor.py"), str(port)]),
        Subject("floor-blind", lambda port: [str(HERE / "floor.py"), str(port), "--blind"]),
        Subject("penstock", penstock_command("echo:service"), worker_mark="penstock.worker"),
        Subject("penstock-external", penstock_command("external_echo:service"), outside="echo:Echo"),
        Subject("penstock-ids", penstock_command("echo:service"), worker_mark="penstock.worker", numbered=True),
        Subject("penstock-plain", penstock_command("echo:service"), worker_mark="penstock.worker", build=SOURCES),
        Subject("mosec", _mosec(32), "/inference", "spawn_main"),
        Subject("mosec-128", _mosec(128), "/inference", "spawn_main"),
        _accelerator("accelerator"),
    )
}
"""The servers of a plain run that are sent floats, by name; README.md says what each is."""

FIXED_WAITS = (0.0, 0.0005, 0.001, 0.002, 0.004)
"""Seconds that a batch of the accelerator is held for company, in the scene `hold`."""


def fixed_name(wait: float) -> str:
    """The name of the accelerator whose batches are held so many seconds."""
    return f"accelerator-{wait * 1000:g}ms" if wait else "accelerator-0"


HOLD = {s.name: s for s in (SUBJECTS["accelerator"], *(_accelerator(fixed_name(wait), wait) for wait in FIXED_WAITS))}
"""The servers of the scene `hold`: one device, and policies that hold batches for company, or do not."""

LARGE_LOADS = (32, 256)


def _large(name: str, target: str, exchange: Exchange) -> Subject:
    command = penstock_command(f"large_services:{target}")
    return Subject(name, command, worker_mark="penstock.worker", exchange=exchange, loads=LARGE_LOADS)


KEPT_BLOCKS = (
    ("MALLOC_MMAP_THRESHOLD_", str(32 * 1024 * 1024)),
    ("MALLOC_TRIM_THRESHOLD_", str(64 * 1024 * 1024)),
)
"""Lets glibc keep large blocks that were freed, as a worker of Penstock does by itself."""


def _mosec_large(name: str, scene: str, exchange: Exchange, variables: tuple[tuple[str, str], ...] = ()) -> Subject:
    return Subject(
        name,
        lambda port: [
            str(HERE / "mosec_large.py"), "--scene", scene,
            "--address", "127.0.0.1", "--port", str(port), "--log-level", "error",
        ],
        "/inference",
        "spawn_main",
        exchange=exchange,
        variables=variables,
        loads=LARGE_LOADS,
    )  # fmt: skip


def _receive(name: str, exchange: Exchange, *flags: str) -> Subject:
    return Subject(
        name, lambda port: [str(HERE / "receive.py"), str(port), *flags], exchange=exchange, loads=LARGE_LOADS
    )


LARGE = {
    s.name: s
    for s in (
        _receive("large-receive", RECEIVED),
        _large("large-memoryview", "viewed", BLOB),
        _large("large-bytes", "copied", BLOB),
        _large("large-npy", "array", ARRAY),
        _mosec_large("large-mosec", "head", BLOB),
        _mosec_large("large-mosec-malloc", "head", BLOB, KEPT_BLOCKS),
        _receive("large-out-receive", INVERTED, "--invert"),
        _large("large-out", "inverted", INVERTED),
        _mosec_large("large-out-mosec", "inverted", INVERTED),
        _large("large-two", "two_stages", BLOB),
        _mosec_large("large-two-mosec", "two", BLOB),
    )
}
"""The servers of the scene `large`: 600 KB in, 4 KB or as much out."""

LOGGED = Subject(
    "logged",
    penstock_command("echo:service", "--access-log"),
    worker_mark="penstock.worker",
    log_line=b" POST /predict 200 ",
)
"""The echo with a line of the access log for each request, written to the file that takes the server's output."""

WITH_TERMS = Subject(
    "terms",
    penstock_command("echo:service"),
    worker_mark="penstock.worker",
    exchange=TERMS,
    variables=(("PENSTOCK_TENANT_HEADER", "X-Tenant"),),  # no flag: a commit before there were tenants has none
)
"""The echo, where each request has a tenant and an urgency."""

BYTES = Subject("bytes", penstock_command("raw_bytes:service"), worker_mark="penstock.worker", exchange=BLOB)


class Server:
    """One subject, running."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self._log = Path(self._folder.name, "log")
        commands = [subject.command(self.port)]
        variables = dict(subject.variables)
        self._notes = Path(self._folder.name, "sleeps")
        if subject.sleeps:
            new_notes(self._notes)
            variables[NOTES_VARIABLE] = str(self._notes)
        if subject.outside:
            path = variables["PENSTOCK_REMOTE_WORKER_SOCKET"] = str(Path(self._folder.name, "workers.sock"))
            commands.append(["-m", "penstock.cli.main", "worker", "run", subject.outside, "--connect", path])
        self._processes = [self._start(command, variables) for command in commands]

    def _start(self, command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [self.subject.build.python, *command],
                cwd=HERE,
                env={**self.subject.build.environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C ends the bench, which ends the servers in order
            )

    @property
    def pid(self) -> int:
        """The process that was started first; the others of the server descend from it, but a worker from outside."""
        return self._processes[0].pid

    def costs(self) -> tuple[Cost, Cost]:
        """What the coordinator and the workers cost so far; a worker from outside is one of them."""
        coordinator, workers = costs(self.pid, self.subject.worker_mark)
        for outside in self._processes[1:]:
            workers += costs(outside.pid, "")[0]
        return coordinator, workers

    def cpu_seconds(self) -> float:
        """CPU seconds so far of all its processes; read sooner than `costs`, which looks at their memory too."""
        return sum(cpu_seconds(process.pid) for process in self._processes)

    def sleeps(self) -> Sleeps | None:
        """What the device has slept so far; None if it is none."""
        return read_sleeps(self._notes) if self.subject.sleeps else None

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return once a request is answered as it should be.  Raises ServerFailed after `timeout` seconds."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if any(process.poll() is not None for process in self._processes):
                raise ServerFailed(f"{self.subject.name} ended at once:\n{self._output()}")
            if self._answers():
                return
            time.sleep(0.1)
        raise ServerFailed(f"{self.subject.name} was not ready in {timeout:g} s:\n{self._output()}")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        exchange = self.subject.exchange
        try:
            connection.request("POST", self.subject.path, exchange.body, {"Content-Type": exchange.media_type})
            answer = connection.getresponse()
            return answer.status == 200 and answer.read() == exchange.answer
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def check_build(self) -> None:
        """Raise ServerFailed if a process of the server runs another Penstock than the compiled one of its build.

        The processes are asked, by the compiled modules that each has mapped: a path that is set wrongly would
        compare a build with itself.
        """
        own = self.subject.build.packages / "penstock"
        for pid in [pid for process in self._processes for pid in tree(process.pid)]:
            modules = [path for path in mapped_files(pid) if path.suffix == ".so" and "penstock" in path.parts]
            compiled = [path for path in modules if path.is_relative_to(own)]
            if not compiled:
                raise ServerFailed(
                    f"{self.subject.name}: process {pid} runs no compiled module of {own}, but {modules or 'none'}"
                )

    def check_log(self, requests: int, timeout: float = 10.0) -> None:
        """Raise ServerFailed unless the log has a line for each of so many requests, after `timeout` seconds at most.

        A server drops lines that it cannot write soon enough, and one that dropped them would look cheap.
        """
        line, end = self.subject.log_line, time.monotonic() + timeout
        while line and (found := self._log.read_bytes().count(line)) < requests:
            if time.monotonic() > end:
                raise ServerFailed(f"{self.subject.name}: the log has {found} lines on {requests} requests")
            time.sleep(0.1)

    def _output(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """End the server and what it started; may be called any number of times."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self._folder.cleanup()


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
