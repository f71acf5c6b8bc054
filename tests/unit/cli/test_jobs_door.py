import math

import pytest

import penstock as ps
from penstock.cli.jobs_door import check_closed, check_worked_on, has_keys
from penstock.config import ServerOptions
from penstock.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_host_alone_needs_no_key(host):
    check_closed(host, uds=None, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "192.0.2.1", "2001:db8::1", "no.such.host.invalid"])
def test_an_address_beyond_needs_keys_or_is_a_socket(host):
    with pytest.raises(ConfigError, match="--api-key-file"):
        check_closed(host, uds=None, has_keys=False)
    check_closed(host, uds=None, has_keys=True)


def test_a_unix_socket_alone_needs_no_key_and_one_beside_an_address_does_not_make_up_for_it():
    check_closed(None, uds="/run/p.sock", has_keys=False)
    check_closed("127.0.0.1", uds="/run/p.sock", has_keys=False)
    with pytest.raises(ConfigError, match=r"^jobs at 10\.0\.0\.1 would be open"):
        check_closed("10.0.0.1", uds="/run/p.sock", has_keys=False)


@pytest.mark.parametrize("hosts", [("127.0.0.1", "10.0.0.1"), ("10.0.0.1", "::1"), ["::1", "10.0.0.1", "127.0.0.1"]])
def test_one_address_beyond_of_several_needs_keys(hosts):
    with pytest.raises(ConfigError, match=r"^jobs at 10\.0\.0\.1 would be open"):
        check_closed(hosts, uds=None, has_keys=False)
    check_closed(hosts, uds=None, has_keys=True)
    check_closed(("127.0.0.1", "::1"), uds=None, has_keys=False)


def test_a_server_that_is_told_nothing_needs_no_key():
    check_closed(None, uds=None, has_keys=False)


@pytest.mark.parametrize("others", [["127.0.0.1", "10.0.0.1"], ["fe80::1%eth0"]])
def test_a_name_that_has_an_address_beyond_is_beyond(others, monkeypatch):
    found = [(2, 1, 6, "", (address, 0)) for address in others]
    monkeypatch.setattr("penstock.cli.jobs_door.socket.getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ConfigError):
        check_closed("localhost", uds=None, has_keys=False)


def test_a_key_is_asked_for_where_a_file_of_keys_is_named_or_any_tenant_has_one(tmp_path):
    plain = ps.Service(math.sqrt, name="plain")
    (tmp_path / "names").write_text("[tenants.gold]\nweight = 3")
    (tmp_path / "keys").write_text(f'[tenants.gold]\nkey_sha256 = ["{"a" * 64}"]')
    named, keyed = (ps.Service(math.exp, name=name, tenants_file=str(tmp_path / name)) for name in ("names", "keys"))
    assert has_keys(ServerOptions(api_key_file="k"), [plain])
    assert has_keys(ServerOptions(), [plain, keyed])
    assert not has_keys(ServerOptions(tenant_header="X-Tenant"), [plain, named])


def test_what_nobody_could_work_on_is_not_served():
    check_worked_on("sqlite:///q.db")
    with pytest.raises(ConfigError, match="penstock consume"):
        check_worked_on("memory://")
