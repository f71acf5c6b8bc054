"""Here belongs what a user sees of the command: `penstock serve` and `penstock check` in a process, with real workers.

The fixtures start servers that the tests of a module share, and servers that a test has to itself.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from served import serving, write_module
from shared_servers import KINDS, SharedServers
from systemd_host import GATED, Host, Notified

MAKE = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-subj", "/CN=localhost"),
)


class Pair:
    """A certificate and its key, in two files; each `renew` writes others into them."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.renew()

    @property
    def options(self):
        return ("--tls-cert", str(self.cert), "--tls-key", str(self.key))

    @property
    def encoded(self) -> bytes:
        """The certificate as a client gets it."""
        return ssl.PEM_cert_to_DER_cert(self.cert.read_text())

    @property
    def expires(self) -> float:
        """When the certificate expires, as openssl reads it."""
        asked = ["openssl", "x509", "-noout", "-enddate", "-in", self.cert]
        date = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        return ssl.cert_time_to_seconds(date.removeprefix("notAfter="))

    def renew(self, days: int = 2) -> None:
        made = ("-days", str(days), "-keyout", self.key, "-out", self.cert)
        subprocess.run([*MAKE, *made], check=True, capture_output=True)


@pytest.fixture
def serve(tmp_path):
    """Starts servers in folders of their own, with `serving`'s arguments; ended and checked after the test."""
    with contextlib.ExitStack() as running:
        count = iter(range(1, 100))

        def start(*options, **more):
            folder = tmp_path / f"server{next(count)}"
            folder.mkdir()
            return running.enter_context(serving(folder, *options, **more))

        yield start


@pytest.fixture
def module(tmp_path):
    """Writes a module with services into the test's folder; answers the folder."""

    def write(source=None):
        write_module(tmp_path, source)
        return tmp_path

    return write


@pytest.fixture(scope="session")
def log_lines():
    """The log lines of a server that writes JSON, as objects; every line of its output must be one."""
    return lambda server: [json.loads(line) for line in server.output.splitlines()]


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory):
    """The servers that tests share, each started for the first test that asks for it."""
    servers = SharedServers(tmp_path_factory.mktemp)
    yield servers
    servers.end()


@pytest.fixture
def shared_are_up(request, shared_servers):
    """Starts what this test shares with others, or starts it again where a test has broken it."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    # A parameter may name the fixture that the test is to get, and one called as a fixture stands in its place.
    named = {value for value in parameters.values() if isinstance(value, str)}
    asked = ({*request.fixturenames} - parameters.keys()) | named
    for kind in asked & KINDS.keys():
        shared_servers.ensure(kind)


@pytest.fixture(autouse=True)
def no_child_left_behind(shared_are_up, no_child_left_behind):
    """As of every test; what is shared is there before, and stays."""


def lent(kind):
    """A fixture: the server of a kind, as if it had just been started."""

    @pytest.fixture(name=kind)
    def lend(shared_servers):
        yield shared_servers.lend(kind)
        shared_servers.take_back(kind)

    return lend


shared, with_access_log, two_waiting = lent("shared"), lent("with_access_log"), lent("two_waiting")
batched, json_logs = lent("batched"), lent("json_logs")


@pytest.fixture
def pair(tmp_path):
    """A certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make certificates")
    return Pair(tmp_path)


@pytest.fixture
def notified(tmp_path):
    """The socket that is told how things go, at a path."""
    manager = Notified(str(tmp_path / "notify"))
    yield manager
    manager.close()


@pytest.fixture
def models(tmp_path):
    """The folder of the module `model`."""
    found = tmp_path / "models"
    found.mkdir()
    write_module(found, GATED)
    return found


@pytest.fixture
def host(models):
    found = Host(models)
    yield found
    found.close()
