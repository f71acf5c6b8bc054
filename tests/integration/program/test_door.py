"""The ways in: TLS, Unix sockets, API keys; and what the log says of who came."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import stat
import subprocess

import httpx
import pytest
from spoken import spoken

KEY, OTHER = "s3cr3t-key-of-ann", "s3cr3t-key-of-bob"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return str(cert), str(key)


@pytest.mark.smoke
def test_tls_serves_what_the_certificate_vouches_for(serve, certificate):
    cert, key = certificate
    server = serve("--tls-cert", cert, "--tls-key", key)
    assert server.address.startswith("https://127.0.0.1:")
    http = server.client(verify=ssl.create_default_context(cafile=cert))
    for n in range(5):
        assert http.post("/predict", json={"value": n}).json() == n
    body = {"value": 1, "pad": "x" * 3_000_000}
    assert http.post("/predict", json=body).json() == 1.0


@pytest.mark.parametrize(("options", "mode"), [((), 0o600), (("--uds-mode", "660"), 0o660)])
@pytest.mark.smoke
def test_a_unix_socket_has_its_mode_and_is_removed_at_the_end(serve, options, mode):
    server = serve(*options, where=("--uds", "in.sock"))
    assert told_addresses(server, 1) == ["unix:in.sock"], "no TCP besides"
    path = server.folder / "in.sock"
    server.address = f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert server.http.post("/predict", json={"value": 2}).json() == 2.0
    server.hang_up()
    server.stop()
    assert not path.exists()


def told_addresses(server, count):
    """What the lines `ready on` say, in their order, once there are so many."""

    def found():
        return re.findall(r"ready on (\S+)\n", server.output)

    server.until(lambda: len(found()) >= count, "the addresses")
    return found()


def livez(*, at=None, path=None):
    transport = None if path is None else httpx.HTTPTransport(uds=str(path), verify=False)
    with httpx.Client(transport=transport, base_url=at or "http://test", timeout=20, trust_env=False) as http:
        return http.get("/livez").status_code


def test_a_host_may_be_repeated_and_stand_beside_a_unix_socket(serve):
    server = serve(where=("--host", "127.0.0.2", "--host", "127.0.0.1", "--uds", "in.sock", "--port", "0"))
    second, first, unix = told_addresses(server, 3)
    assert (second.rpartition(":")[0], unix) == ("http://127.0.0.2", "unix:in.sock")
    assert first == second.replace("127.0.0.2", "127.0.0.1")
    path = server.folder / "in.sock"
    assert [livez(at=second), livez(at=first), livez(path=path)] == [200, 200, 200]
    server.stop()
    assert not path.exists()


def test_where_one_address_cannot_be_had_the_server_does_not_start_and_leaves_nothing(shared, module):
    port = str(shared.port)
    folder = module()
    where = ("--port", port, "--host", "127.0.0.2", "--host", "127.0.0.1", "--uds", "in.sock")
    for options in ((), ("--reload",)):
        found = spoken(folder, "serve", "orders:service", *where, *options)
        assert found.status == 1
        assert f"cannot listen on 127.0.0.1:{port}: the address is in use" in found.refusal
        assert list(folder.glob("*.sock*")) == []


@pytest.fixture
def guarded(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"# ann\n{KEY}\n\n{OTHER}\n")
    return serve("--api-key-file", str(keys), "--access-log")


@pytest.mark.smoke
def test_api_keys_guard_all_but_the_probes_and_the_page_and_stand_in_no_log(guarded):
    http = guarded.http
    assert [http.get(path).status_code for path in ("/livez", "/readyz", "/docs")] == [200, 200, 200]
    for path in ("/health", "/metrics", "/openapi.json", "/nowhere"):
        assert http.get(path).status_code == 401
    for path in ("/predict", "/batch"):
        answer = http.post(path, json={})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["title"] == "Unauthorized"
    for fields in ({"x-api-key": KEY}, {"authorization": f"Bearer {OTHER}"}, {"authorization": f"bearer {KEY}"}):
        assert http.post("/predict", json={"value": 4}, headers=fields).json() == 4.0
        assert http.get("/health", headers=fields).status_code == 200
    for wrong in (KEY[:-1], KEY + "x", KEY.upper(), "# ann", "-"):
        for fields in ({"x-api-key": wrong}, {"authorization": f"Bearer {wrong}"}, {"authorization": f"Basic {wrong}"}):
            assert http.post("/predict", json={}, headers=fields).status_code == 401
    http.get(f"/nowhere?key={KEY}", headers={"x-api-key": KEY, "x-request-id": "last"})
    guarded.wait_for(r"GET /nowhere 404 .* last")
    assert KEY not in guarded.output
    assert OTHER not in guarded.output


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("# nobody\n", "contains no key"), ("a key\n", "contains a space")]
)
def test_a_key_file_that_lets_nobody_in_is_an_error(module, content, words):
    folder = module()
    if content is not None:
        (folder / "keys").write_text(content)
    found = spoken(folder, "serve", "orders:service", "--port", "0", "--api-key-file", "keys")
    assert found.status == 1
    assert words in found.refusal


def test_the_access_log_has_a_line_for_each_request_and_none_unless_asked(with_access_log, shared):
    server = with_access_log
    server.wire().post("/predict?token=abc", {"value": 1}, X_Request_ID="first").answer()
    server.wire().post("/nowhere%0Aforged", {}, X_Request_ID="second").answer()
    rest = r"tenant= u=3 attempt=1 client=127\.0\.0\.1$"
    server.wait_for(rf"(?m)penstock\.access: POST /predict 200 3 0\.\d+ first {rest}")
    server.wait_for(rf"(?m)penstock\.access: POST /nowhere%0Aforged 404 \d+ 0\.\d+ second {rest}")
    assert "abc" not in server.output
    shared.wire().post("/predict", {"value": 1}, X_Request_ID="third").answer()
    shared.wire().post("/predict", {"do": "raise"}, X_Request_ID="fourth").answer()
    shared.wait_for("ERROR .*fourth")  # a line of later is there, so the other would be
    assert "third" not in shared.output


def test_a_trusted_proxy_says_who_the_client_is(serve):
    server = serve("--access-log", "--trusted-proxies", "127.0.0.0/8")
    server.wire().post("/predict", {"value": 1}, X_Forwarded_For="203.0.113.9, 198.51.100.1").answer()
    server.wait_for(r"penstock\.access: POST /predict 200 .* client=198\.51\.100\.1\n")


def test_what_is_no_network_is_no_trusted_proxy(module):
    found = spoken(module(), "serve", "orders:service", "--port", "0", "--trusted-proxies", "10.0.0.1/8")
    assert found.status == 2
    said = "must be networks such as 10.0.0.0/8, addresses, or unix: 10.0.0.1/8"
    assert said in found.refusal


def test_with_json_logs_every_line_is_an_object_that_names_its_request(json_logs):
    server = json_logs
    wire = server.wire()
    wire.post("/predict", {"value": 1}, X_Request_ID="good").answer()
    wire.post("/predict", {"do": "raise"}, X_Request_ID="bad").answer()
    wire.post("/nowhere", {}, X_Request_ID="lost").answer()
    server.wait_for('"request_id":"lost".*\n')
    lines = [json.loads(line) for line in server.output.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    access = {line["request_id"]: line for line in lines if line["logger"] == "penstock.access"}
    assert {name: line["status"] for name, line in access.items()} == {"good": 200, "bad": 500, "lost": 404}
    assert access["good"]["method"] == "POST"
    assert access["good"]["path"] == "/predict"
    assert access["good"]["bytes"] == 3
    assert (access["good"]["tenant"], access["good"]["urgency"]) == ("", 3)
    assert 0 < access["good"]["seconds"] < 20
    (fault,) = [line for line in lines if line["level"] == "error"]
    assert (fault["request_ids"], fault["stage"]) == (["bad"], "Obey")
    assert "\n" not in fault["message"]
    assert fault["traceback"].endswith("RuntimeError: the secret of row 7")
