"""What a listener needs to know before it binds: is there TLS, and how many connections fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.errors import ConfigError
from penstock.server.http1.binding import MIN_SPARE_FILES, SPARE_FILES, share_files, tls_context
from penstock.server.http1.connections import EXCESS_CONNECTIONS


@pytest.mark.parametrize(("cert", "key"), [(None, None), ("cert.pem", None), (None, "key.pem")])
def test_there_is_no_tls_without_both_certificate_and_key(cert, key):
    assert tls_context(SimpleNamespace(tls_cert=cert, tls_key=key)) is None


def test_a_certificate_and_key_are_used_or_are_an_error(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in (cert, key):
        file.write_text("nonsense")
    with pytest.raises(ConfigError, match=rf"^tls_cert {cert} and tls_key {key} cannot be used: "):
        tls_context(SimpleNamespace(tls_cert=str(cert), tls_key=str(key)))


@pytest.mark.parametrize(
    ("files", "spare"), [(100_000, 768), (3072, 768), (2000, 500), (256, MIN_SPARE_FILES), (100, MIN_SPARE_FILES)]
)
def test_the_rest_of_the_program_gets_a_quarter_of_the_files_within_bounds(files, spare):
    assert sum(share_files(files)) == files - spare
    assert SPARE_FILES - EXCESS_CONNECTIONS == 768


def test_however_few_files_there_are_one_connection_is_served():
    assert share_files(0) == (2, 0)
    assert share_files(MIN_SPARE_FILES + 8) == (6, 2)
