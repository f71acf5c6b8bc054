"""The files that `penstock generate` prints for HAProxy and nginx, in the real programs, without root.

Behind them stand replicas that answer what a test says, so that everything that is sent twice is seen.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from proxies import PROXIES, free_port, needs_program, open_folder, proxying
from scripted_replica import SILENCE, Last, Replica, reply, until_checked
from waiting import until_now

DELAY = ("--drain-delay", "2")


each_proxy = pytest.mark.parametrize("name", [pytest.param(name, marks=needs_program(name)) for name in PROXIES])
haproxy = needs_program("haproxy")
nginx = needs_program("nginx")


@pytest.fixture
def folder():
    with open_folder() as path:
        yield path


@pytest.fixture
def replica():
    """Starts replicas; closed after the test."""
    with contextlib.ExitStack() as stack:

        def start(name="a", **more):
            made = Replica(name, **more)
            stack.callback(made.close)
            if "path" in more:
                Path(more["path"]).chmod(0o777)  # the proxy is somebody else
            return made

        yield start


@pytest.fixture
def proxy(folder):
    """Starts proxies, by name, replicas and flags; ended after the test, when they must not have died."""
    with contextlib.ExitStack() as stack:

        def start(name, replicas, *flags, **more):
            servers = [word for each in replicas for word in ("--server", each.address)]
            return stack.enter_context(proxying(name, folder, *servers, *DELAY, *flags, **more))

        yield start


def post(proxy, path="/predict", content=b"1", **headers):
    with proxy.client() as client:
        return client.post(path, content=content, headers=headers)


# -- certificates, folders and rights --------------------------------------------------------------------------------


@pytest.fixture
def certificate(folder):
    """A certificate of localhost with its key, in one file, and the certificate alone."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    made += ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is needed to make certificates")
    (folder / "both.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    (folder / "both.pem").chmod(0o644)
    (folder / "key.pem").chmod(0o644)
    return folder


@each_proxy
def test_clients_and_replicas_may_speak_tls_and_the_replica_is_checked(name, certificate, replica, proxy):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    behind = replica(tls=context)
    flags = ["--listen-cert", str(certificate / "both.pem"), "--server-ca", str(certificate / "cert.pem")]
    flags += ["--tls-cert", "/replica/cert.pem", "--tls-key", "/replica/key.pem", "--server-name"]
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with contextlib.ExitStack() as stack:
        servers = ("--server", behind.address)
        good = stack.enter_context(proxying(name, certificate, *servers, *DELAY, *flags, "localhost"))
        with good.client("https", verify=trusting) as client:
            assert client.post("/predict", content=b"1").text == "a"
    bad = proxy(name, [behind], *flags, "other.example")
    with bad.client("https", verify=trusting) as client:
        assert client.post("/predict", content=b"1").status_code in (502, 503)
    assert len(behind.received) == 1


@each_proxy
def test_it_writes_nothing_outside_of_its_folder_and_needs_no_root(name, replica, proxy, folder):
    running = proxy(name, [replica()])
    assert post(running, content=b"x" * 200_000).text == "a"  # for nginx too large for memory
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    if os.geteuid() == 0:
        assert "\nUid:\t65534\t65534" in status
    opened = [str(path.readlink()) for path in Path(f"/proc/{running.process.pid}/fd").iterdir()]
    files = [path for path in opened if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))]
    assert [path for path in files if not path.startswith(str(folder))] == []


# -- what is passed on ----------------------------------------------------------------------------------------------


@each_proxy
def test_replicas_of_every_kind_of_address_get_requests(name, replica, proxy, folder):
    replicas = [replica("tcp"), replica("unix", path=f"{folder}/b #.sock")]
    with contextlib.suppress(OSError):  # a kernel without IPv6
        replicas.append(replica("six", v6=True))
    running = proxy(name, replicas)
    until_now(lambda: post(running) and all(each.received for each in replicas), "a request for each")


@each_proxy
@pytest.mark.smoke
def test_the_clients_address_and_the_id_of_the_request_reach_the_replica_and_the_log(name, replica, proxy):
    behind = replica()
    running = proxy(name, [behind], listen=f"127.0.0.1:{free_port()}")
    post(running, X_Request_ID="x")  # a field of another name
    post(running, **{"X-Request-ID": "order.7", "X-Forwarded-For": "192.0.2.1"})
    post(running, **{"X-Request-ID": "not one of ours"})
    made, kept, replaced = behind.received
    assert made.fields["x-forwarded-for"] == "127.0.0.1"
    assert kept.fields["x-request-id"] == "order.7"
    assert len(made.fields["x-request-id"]) >= 32
    assert " " not in replaced.fields["x-request-id"]
    for each in behind.received:
        until_now(
            lambda each=each: f"id={each.fields['x-request-id']}" in running.log, "the id", context=lambda: running.log
        )


@haproxy
def test_haproxy_adds_the_address_behind_what_the_client_has_sent(replica, proxy):
    assert forwarded("haproxy", replica, proxy)[-1].split(",")[-1].strip() == "127.0.0.1"


@nginx
def test_nginx_adds_the_address_behind_what_the_client_has_sent(replica, proxy):
    assert forwarded("nginx", replica, proxy) == ["192.0.2.1, 127.0.0.1"]


def forwarded(name, replica, proxy):
    behind = replica()
    running = proxy(name, [behind], listen=f"127.0.0.1:{free_port()}")
    post(running, **{"X-Forwarded-For": "192.0.2.1"})
    return [behind.received[0].fields["x-forwarded-for"]]


@each_proxy
def test_a_client_that_hangs_up_is_gone_for_the_replica_too(name, replica, proxy):
    behind = replica()
    behind.reply = lambda _: SILENCE
    running = proxy(name, [behind])
    with running.connection() as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1")
        until_now(lambda: behind.received, "the request")
    assert behind.lost.wait(20)


@each_proxy
def test_what_the_proxy_says_itself_has_the_shape_of_a_problem(name, replica, proxy):
    behind = replica()
    running = proxy(name, [behind], "--max-body-bytes", "10")
    large = post(running, content=b"x" * 11)
    behind.reply = lambda _: None
    broken = post(running)
    behind.close()
    gone = post(running)
    for answer, statuses in ((large, [413]), (broken, [502]), (gone, [502, 503])):
        assert answer.status_code in statuses
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code
    assert len(behind.received) == 1


@each_proxy
def test_a_server_that_takes_no_body_gets_none_worth_the_name(name, replica, proxy):
    behind = replica()
    running = proxy(name, [behind], "--max-body-bytes", "0")
    assert post(running, content=b"xx").status_code == 413
    assert post(running, content=b"").text == "a"


@each_proxy
def test_heads_as_large_as_a_replica_takes_are_passed_on(name, replica, proxy):
    behind = replica()
    running = proxy(name, [behind])
    assert post(running, **{"X-Large": "x" * 60_000}).text == "a"
    assert post(running, **{f"X-{n}": "x" for n in range(90)}).text == "a"


# -- never twice ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(replica):
    return replica("a"), replica("b")


def ask_until(running, condition, **more):
    """Post until `condition` is true; every answer."""
    answers = []
    until_now(lambda: answers.append(post(running, **more)) or condition(), "requests", context=lambda: running.output)
    return answers


@each_proxy
def test_a_refused_connection_costs_no_request(name, pair, proxy):
    a, b = pair
    running = proxy(name, pair)
    ask_until(running, lambda: a.received and b.received)
    a.close()
    assert {post(running).text for _ in range(20)} == {"b"}


@each_proxy
def test_what_breaks_off_after_it_was_sent_is_sent_to_nobody_else(name, pair, proxy):
    running = proxy(name, pair)
    for each in pair:
        each.reply = lambda _: None
    answers = [post(running) for _ in range(10)]
    assert {answer.status_code for answer in answers} == {502}
    assert sum(len(each.received) for each in pair) == 10


@each_proxy
@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 503 No\r\nCont"])
def test_half_an_answer_is_not_asked_for_again(name, answer, pair, proxy):
    running = proxy(name, pair)
    for each in pair:
        each.reply = lambda _: Last(answer)
    for _ in range(4):
        post(running)
    assert sum(len(each.received) for each in pair) == 4


@each_proxy
def test_an_answer_that_may_be_of_what_has_run_is_given_to_the_client(name, pair, proxy):
    running = proxy(name, pair)
    a, b = pair
    for status in (500, 502, 504, 429, 408, 422):
        a.reply = b.reply = lambda _, status=status: reply(status)
        before = len(a.received + b.received)
        assert [post(running).status_code for _ in range(4)] == [status] * 4
        assert len(a.received + b.received) == before + 4


@each_proxy
def test_a_late_answer_is_not_asked_for_again(name, pair, proxy):
    running = proxy(name, pair, "--timeout", "0")
    for each in pair:
        each.reply = lambda _: SILENCE
    assert post(running).status_code == 504
    assert sum(len(each.received) for each in pair) == 1


@each_proxy
def test_what_was_refused_is_sent_to_the_other_replica_once(name, pair, proxy):
    a, b = pair
    running = proxy(name, pair)
    a.reply = lambda _: reply(503, "full")
    until_asked(name, pair)
    assert {post(running).text for _ in range(10)} == {"b"}
    assert a.received
    b.reply = a.reply
    before = len(a.received) + len(b.received)
    assert post(running).text == "full"
    assert len(a.received) + len(b.received) == before + 2


def until_asked(name, replicas):
    """Wait for the first checks, of the proxy that has any."""
    if name == "haproxy":
        until_checked(*replicas)


@each_proxy
def test_many_at_once_are_all_answered_by_the_replica_that_does_not_refuse(name, pair, proxy):
    a, b = pair
    running = proxy(name, pair)
    a.reply = lambda _: reply(503, "full")
    until_asked(name, pair)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: post(running, content=str(n).encode()), range(100)))
    assert {answer.text for answer in answers} == {"b"}
    assert sorted(int(each.body) for each in b.received) == list(range(100))


@nginx
def test_nginx_sends_what_one_of_three_has_refused_to_one_of_the_others(replica, proxy, folder):
    three = [replica("a"), replica("b", path=f"{folder}/b (c).sock"), replica("c")]
    running = proxy("nginx", three)
    for refusing in three:
        refusing.reply = lambda _: reply(503)
        assert refusing.name not in {post(running).text for _ in range(9)}
        refusing.reply = lambda _, refusing=refusing: reply(200, refusing.name)


@nginx
def test_nginx_asks_another_after_one_refused_the_connection_and_one_refused_the_request(replica, proxy):
    gone, full, well = replica("gone"), replica("full"), replica("well")
    running = proxy("nginx", [gone, full, well])
    gone.close()
    full.reply = lambda _: reply(503)
    assert {post(running).text for _ in range(12)} == {"well"}


@each_proxy
def test_the_words_of_a_replica_stay(name, pair, proxy):
    running = proxy(name, pair)
    for status in (413, 504, 500):
        for each in pair:
            each.reply = lambda _, status=status: reply(status, "why")
        assert post(running).text == "why"


@each_proxy
def test_what_is_sent_again_is_whole(name, pair, proxy):
    a, b = pair
    running = proxy(name, pair)
    a.reply = lambda _: reply(503, "full")
    until_asked(name, pair)
    for _ in range(6):
        assert post(running, content=b"x" * 15_000).text == "b"
    assert a.received
    assert {(each.method, each.path, each.body) for each in b.received} == {("POST", "/predict", b"x" * 15_000)}


@haproxy
def test_haproxy_sends_a_large_request_once(pair, proxy):
    pair[0].reply = lambda _: reply(503, "full")
    running = proxy("haproxy", pair)
    until_checked(*pair)
    assert "full" in [post(running, content=b"x" * 200_000).text for _ in range(10)]


@nginx
def test_nginx_can_send_a_large_request_again(pair, proxy):
    a, b = pair
    running = proxy("nginx", pair)
    a.reply = lambda _: reply(503, "full")
    assert {post(running, content=b"x" * 200_000).text for _ in range(6)} == {"b"}
    assert {len(each.body) for each in a.received + b.received} == {200_000}


@haproxy
def test_haproxy_waits_for_the_rest_of_a_small_request_and_can_then_send_it_again(pair, proxy):
    a, b = pair
    running = proxy("haproxy", pair)
    a.reply = b.reply = lambda _: reply(503, "full")
    with running.connection() as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
        until_checked(*pair)  # time in which a part could have been passed on
        assert a.received + b.received == []
        connection.sendall(b"67890")
        assert b"503" in connection.recv(1000)
    assert [each.body for each in a.received + b.received] == [b"1234567890"] * 2


@each_proxy
def test_a_job_without_a_key_is_sent_once(name, pair, proxy):
    a, b = pair
    running = proxy(name, pair)
    a.reply = b.reply = lambda _: reply(503)
    for number, path in enumerate(("/jobs", "/%6Aobs", "/jobs?priority=1"), 1):
        assert post(running, path).status_code == 503
        assert len(a.received + b.received) == number


@haproxy
def test_haproxy_sends_a_job_with_a_key_again(pair, proxy):
    a, b = pair
    running = proxy("haproxy", pair)
    a.reply = b.reply = lambda _: reply(503)
    post(running, "/jobs", **{"Idempotency-Key": "order-7"})
    assert len(a.received + b.received) == 2


# -- who is asked ---------------------------------------------------------------------------------------------------


@haproxy
def test_haproxy_sends_nothing_more_to_a_replica_that_is_not_ready(pair, proxy):
    a, b = pair
    running = proxy("haproxy", pair)
    ask_until(running, lambda: a.received and b.received)
    a.ready = False
    until_now(lambda: "replica1 is DOWN" in running.output, "the replica to be out", context=lambda: running.output)
    before = len(a.received)
    assert {post(running).text for _ in range(20)} == {"b"}
    assert len(a.received) == before
    a.ready = True
    ask_until(running, lambda: len(a.received) > before)


@haproxy
def test_what_a_replica_has_in_hand_when_it_is_no_longer_ready_is_answered(pair, proxy):
    a, b = pair
    running = proxy("haproxy", pair)
    let_go = threading.Event()
    a.reply = b.reply = lambda _: let_go.wait(20) and reply(200, "late")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(running)))
    thread.start()
    until_now(lambda: a.received or b.received, "the request")
    holder = a if a.received else b
    holder.ready = False
    until_now(lambda: "is DOWN" in running.output, "the replica to be out")
    let_go.set()
    thread.join(20)
    assert [answer.text for answer in answers] == ["late"]


@nginx
def test_nginx_closes_idle_connections_before_a_replica_would(replica, folder):
    behind = replica()
    with proxying("nginx", folder, "--server", behind.address, "--drain-delay", "0.4") as running:
        assert post(running).text == "a"
        until_now(lambda: not behind._open, "the idle connection to be closed")


@nginx
def test_nginx_keeps_connections_while_they_are_used(replica, folder):
    behind = replica()
    seen = set()
    behind.reply = lambda _: seen.add(len(behind._open)) or reply(200, "a")
    with (
        proxying("nginx", folder, "--server", behind.address, "--drain-delay", "60") as running,
        running.client() as client,
    ):
        for _ in range(5):
            client.post("/predict", content=b"1")
        connections = set(behind._open)
        client.post("/predict", content=b"1")
        assert set(behind._open) == connections
    assert seen == {1}
