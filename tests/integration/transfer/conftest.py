"""A certificate for servers of the tests."""

from __future__ import annotations

import shutil
import ssl
import subprocess

import pytest
from s3_fake import fake_s3


@pytest.fixture(scope="session")
def server_tls(tmp_path_factory):
    """How a server speaks TLS as localhost, and the file of the certificate that vouches for it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make certificates")
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


@pytest.fixture
def s3(monkeypatch):
    """A server of S3 that the environment leads to."""
    with fake_s3() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server
