"""The stores that the bench of the job queue uses, the consumers that work on them, and a web server that is slow.

Everything is in a folder of the run's own and on free ports of the loopback, and ends with the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from builds import HERE, Build
from procfs import costs
from servers import ServerFailed, free_port

PATIENCE_SECONDS = 60.0
WORKER_MARK = "penstock.worker"


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A Redis server as a queue wants it, with `appendfsync everysec`; yields its URL.  Raises ServerFailed."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServerFailed("there is no redis-server: `make services` installs it, or leave out what ends with -redis")
    port, log = free_port(), folder / "redis.log"
    process = subprocess.Popen(
        [
            program,
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--logfile", str(log)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise ServerFailed(f"redis-server did not come up:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class ConsumerProcess:
    """One `penstock consume`, and its workers."""

    def __init__(self, service: str, url: str, *flags: str, build: Build, variables: dict[str, str] | None = None):
        self._log = tempfile.NamedTemporaryFile(prefix="penstock-bench-work-", suffix=".log")  # noqa: SIM115  # lives as long as the process
        self._process = subprocess.Popen(
            [build.python, "-m", "penstock.cli.main", "consume", f"job_services:{service}", "--queue-url", url, *flags],
            cwd=HERE,
            env={**build.environment(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C ends the bench, which ends its consumers in order
        )

    def wait_ready(self) -> None:
        """Return once it works on its queue, and its workers have started.  Raises ServerFailed."""
        end = time.monotonic() + PATIENCE_SECONDS
        while "working on" not in self._output():
            if self._process.poll() is not None:
                raise ServerFailed(f"the consumer ended at once:\n{self._output()}")
            if time.monotonic() > end:
                raise ServerFailed(f"the consumer was not ready in {PATIENCE_SECONDS:g} s:\n{self._output()}")
            time.sleep(0.05)

    def cpu_seconds(self) -> tuple[float, float]:
        """The CPU seconds so far of the consumer itself, and of its workers."""
        consumer, workers = costs(self._process.pid, WORKER_MARK)
        return consumer.cpu, workers.cpu

    def kill(self) -> None:
        """End it and its workers as a crash of the machine would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it in order; may be called any number of times."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def _output(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-2000:]


@contextmanager
def consumer(
    service: str, url: str, *flags: str, build: Build, variables: dict[str, str] | None = None
) -> Iterator[ConsumerProcess]:
    """A consumer that is ready, for a while."""
    process = ConsumerProcess(service, url, *flags, build=build, variables=variables)
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


class _Slow(BaseHTTPRequestHandler):
    """Answers every request after `server.seconds`: a GET with `1`, a PUT with nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"1")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        time.sleep(self.server.seconds)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class _SlowServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def slow_web(seconds: float) -> Iterator[str]:
    """A web server that takes so long for every request; yields its URL."""
    with _SlowServer(("127.0.0.1", 0), _Slow) as server:
        server.seconds = seconds  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
