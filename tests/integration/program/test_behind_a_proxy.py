"""A server at a Unix socket, behind a real HAProxy, and a real nginx, that speak TLS with clients, knows who asked."""

from __future__ import annotations

import ssl

import pytest
from proxies import PROXIES, free_port, needs_program, open_folder, proxying

FLAGS = ("--access-log", "--trusted-proxies", "unix")


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_program(name)) for name in PROXIES])
def test_a_client_of_tls_and_its_request_are_in_the_access_log_of_a_server_at_a_unix_socket(name, serve, pair):
    with open_folder() as folder:
        (folder / "both.pem").write_text(pair.cert.read_text() + pair.key.read_text())
        (folder / "both.pem").chmod(0o644)  # the proxy is somebody else
        server = serve(*FLAGS, "--uds-mode", "666", where=("--uds", str(folder / "in.sock")))
        flags = ("--server", server.address, "--listen-cert", str(folder / "both.pem"), "--drain-delay", "2", *FLAGS)
        trusting = ssl.create_default_context(cafile=pair.cert)
        trusting.check_hostname = False  # what is asked for is an address
        with (
            proxying(name, folder, *flags, listen=f"127.0.0.1:{free_port()}") as proxy,
            proxy.client("https", verify=trusting) as client,
        ):
            named = {"X-Request-ID": "order.7", "X-Forwarded-For": "203.0.113.9"}
            assert client.post("/predict", json={"value": 1}, headers=named).json() == 1.0
            made = client.post("/predict", json={"value": 2}).headers["X-Request-ID"]
        server.wait_for(r"POST /predict 200 3 0\.\d+ order\.7 .* client=127\.0\.0\.1\n")
        server.wait_for(rf"POST /predict 200 3 0\.\d+ {made} .* client=127\.0\.0\.1\n")
        assert len(made) >= 32
