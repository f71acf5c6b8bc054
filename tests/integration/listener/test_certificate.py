"""When the certificate of a listener expires, of certificates that openssl makes."""

from __future__ import annotations

import shutil
import ssl
import subprocess

import pytest

from penstock.server.http1.certificate import certificate_expires

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is needed to make certificates")

FOR_SERVERS = "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
FOR_CLIENTS = "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n"
DAY = 24 * 3600.0


def openssl(folder, *arguments):
    return subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def make(tmp_path):
    """Makes the file of a certificate, signed by another one, and the file of its key."""
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x")
    openssl(tmp_path, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "400")
    openssl(tmp_path, *new, "-keyout", "leaf.key", "-out", "leaf.csr")

    def sign(days, *, extensions=FOR_SERVERS, chain=False):
        (tmp_path / "extensions").write_text(extensions)
        signed = ("x509", "-req", "-in", "leaf.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(tmp_path, *signed, "-days", str(days), "-extfile", "extensions", "-out", "leaf.pem")
        date = openssl(tmp_path, "x509", "-noout", "-enddate", "-in", "leaf.pem").strip().removeprefix("notAfter=")
        cert = tmp_path / "leaf.pem"
        if chain:
            cert.write_text(cert.read_text() + (tmp_path / "ca.pem").read_text())
        return cert, tmp_path / "leaf.key", ssl.cert_time_to_seconds(date)

    return sign


def context_of(cert, key, version=ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.load_cert_chain(cert, key)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("days", [30, -1])
@pytest.mark.parametrize("chain", [False, True])
def test_the_date_is_told_also_of_a_certificate_that_has_expired(make, version, days, chain):
    cert, key, expires = make(days, chain=chain)
    assert certificate_expires(context_of(cert, key, version), str(cert)) == expires


def test_no_date_is_told_of_a_certificate_that_no_client_would_take(make):
    cert, key, _ = make(30, extensions=FOR_CLIENTS)
    assert certificate_expires(context_of(cert, key), str(cert)) is None


def test_no_date_is_told_where_the_file_has_changed_meanwhile(make):
    cert, key, _ = make(30)
    context = context_of(cert, key)
    make(200)
    assert certificate_expires(context, str(cert)) is None, "another certificate"
    cert.write_text("nonsense")
    assert certificate_expires(context, str(cert)) is None
    cert.unlink()
    assert certificate_expires(context, str(cert)) is None


def test_a_listener_without_tls_has_no_date(serve):
    assert serve().listener.certificate_expires is None
