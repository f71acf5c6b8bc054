"""HAProxy or nginx, with the file that `penstock generate` makes for these replicas."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from replica import OPTIONS, PENSTOCK, Replica
from telling import until

ELSEWHERE = "/usr/sbin:/sbin"
"""Where Debian has both, which is not on the path of everybody."""
NOBODY = 65534
"""Whom they run as where this program is run by root: they need no rights."""


def program(name: str) -> str | None:
    """Where a proxy is installed; None where it is not."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{ELSEWHERE}")


class Proxy:
    """A proxy in `folder`, as long as the block."""

    def __init__(self, name: str, folder: Path, replicas: Sequence[Replica]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        file = folder / f"{name}.conf"
        servers = [word for replica in replicas for word in ("--server", replica.address)]
        made = ["generate", name, "--listen", f"127.0.0.1:{self._port}", *servers, *OPTIONS, "--output", str(file)]
        subprocess.run([*PENSTOCK, *made], check=True)
        start = {"haproxy": ["-f"], "nginx": ["-e", "stderr", "-p", str(folder), "-c"]}[name]
        self._command = [program(name) or name, *start, str(file)]
        self._folder, self._log = folder, folder / f"{name}.log"

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit(f"the proxy has ended:\n{self._log.read_text()}")
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

    def __enter__(self) -> Self:
        user = NOBODY if os.geteuid() == 0 else None
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=log, stderr=log, user=user, group=user
            )
        until(self._listens)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
