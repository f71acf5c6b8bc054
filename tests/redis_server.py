"""A Redis server of a test's own: on a Unix socket in a folder of its own, with an append-only file, no user's.

With `port` and `address` it listens there too, and `private_sentinel` watches such servers.

It is as a queue wants it: `appendonly yes` and `maxmemory-policy noeviction`.  A test may end it, start it again on the
same files, stop it for a while, and talk to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.jobs.stores.redis_store import RedisStore

PATIENCE_SECONDS = 20.0
"""Only a broken test waits this long."""


class PrivateRedis:
    """The process; `path` is its socket, and `url` what the library takes.  It listens at a `port`, too, if not 0."""

    def __init__(self, folder: Path, *settings: str, address: str, port: int) -> None:
        self.path = str(folder / "redis.sock")
        self.url = f"unix://{self.path}"
        self.address, self.port = address, port
        self._log = folder / "redis.log"
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is needed to test the queue in Redis: `make services` installs it")
        self._words = [
            program,
            *settings,
            *("--bind", address, "--port", str(port), "--unixsocket", self.path, "--unixsocketperm", "600"),
            *("--dir", str(folder), "--logfile", str(self._log), "--daemonize", "no"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it on the files that it has, and wait until it answers."""
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)

    def _answers(self) -> bool:
        redis = pytest.importorskip("redis")
        once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)  # by default a refused password is tried for seconds
        try:
            with redis.Redis(unix_socket_path=self.path, socket_timeout=1, retry=once) as client:
                return bool(client.ping())
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.RedisError:
            return False

    def connect(self, queue: str = "default", **options: Any) -> RedisStore:
        """A store on it, through a connection of its own."""
        from penstock.jobs.stores.redis_ import connect_redis

        return connect_redis(queue, unix_socket_path=self.path, **options)

    def command(self, *words: Any) -> Any:
        """What it answers to a command of an operator."""
        redis = pytest.importorskip("redis")
        with redis.Redis(unix_socket_path=self.path) as client:
            return client.execute_command(*words)

    def told(self, part: str) -> dict[str, Any]:
        """What INFO has under `part`."""
        redis = pytest.importorskip("redis")
        with redis.Redis(unix_socket_path=self.path) as client:
            return client.info(part)

    def is_running(self) -> bool:
        """Whether it was not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Have it stand still, with its connections open."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on after `pause`."""
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it, whatever state it is in."""
        if self._process.poll() is None:
            self.go_on()
            self._process.kill()
        self._process.wait()


@contextmanager
def private_redis(*settings: str, address: str = "127.0.0.1", port: int = 0) -> Iterator[PrivateRedis]:
    """A server for a while, with `settings` besides; without one, the test is skipped."""
    as_a_queue_wants_it = (
        *("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"),
        *("--replica-announce-ip", address),
    )
    with _served(*as_a_queue_wants_it, *settings, address=address, port=port) as server:
        yield server


@contextmanager
def private_sentinel(primary: PrivateRedis, *settings: str, port: int, votes: int = 2) -> Iterator[PrivateRedis]:
    """A Sentinel for a while, which knows `primary` as "queue"; `settings` are more lines of its configuration."""
    with tempfile.TemporaryDirectory(prefix="penstock-sentinel-") as folder:
        configuration = Path(folder, "sentinel.conf")  # it writes there, too
        lines = (
            f"sentinel monitor queue {primary.address} {primary.port} {votes}",
            "sentinel down-after-milliseconds queue 1000",
            "sentinel failover-timeout queue 5000",
            *settings,
        )
        configuration.write_text("".join(f"{line}\n" for line in lines))
        with _served(str(configuration), "--sentinel", address="127.0.0.1", port=port) as server:
            yield server


@contextmanager
def _served(*settings: str, address: str, port: int) -> Iterator[PrivateRedis]:
    # The path of a Unix socket has at most 107 bytes; a test's own folder may be longer.
    with tempfile.TemporaryDirectory(prefix="penstock-redis-") as folder:
        server = PrivateRedis(Path(folder), *settings, address=address, port=port)
        try:
            yield server
        finally:
            server.end()


def free_port(*addresses: str) -> int:
    """A port that nothing listens on at any of these addresses."""
    while True:
        with ExitStack() as bound:
            port = 0
            try:
                for address in addresses:
                    sock = bound.enter_context(socket.socket())
                    sock.bind((address, port))
                    port = sock.getsockname()[1]
            except OSError:
                continue
            return port
