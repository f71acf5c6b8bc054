"""What becomes of the sockets that systemd listens on for a server: a test has them, or `systemd-socket-activate`."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import sys
import threading
import uuid
from pathlib import Path

import httpx
import pytest
from served import PATIENCE_SECONDS, Program, Server, Wire, run, serving
from systemd_host import GATED, as_started, end


@pytest.mark.smoke
def test_every_socket_that_is_given_is_served_and_outlives_the_server(host):
    path = str(host.folder / "http.sock")
    abstract = f"penstock-{uuid.uuid4().hex}"
    port = host.tcp.getsockname()[1]
    host.listen(socket.AF_UNIX, path)
    host.listen(socket.AF_UNIX, f"\0{abstract}")
    server = host.serve("model:service")
    for address in (f"http://127.0.0.1:{port}", f"unix:{path}", f"unix:@{abstract}"):
        server.wait_for(f"ready on {address}\n")
    for uds in (None, path, f"\0{abstract}"):
        with httpx.Client(transport=httpx.HTTPTransport(uds=uds), base_url=f"http://127.0.0.1:{port}") as client:
            assert client.post("/predict", json=4).json() == 4
    end(server)
    assert Path(path).is_socket()
    for sock in host.sockets:
        with socket.socket(sock.family) as client:
            client.connect(sock.getsockname())  # systemd listens on


@pytest.mark.smoke
def test_what_waits_between_two_servers_is_served_by_the_second(host):
    address = host.tcp.getsockname()
    end(host.serve("model:service").ready())
    with socket.create_connection(address) as sock:
        waiting = Wire(sock).post("/predict", 5)
        (host.folder / "gated").touch()
        server = host.serve("model:service")
        server.wait_for("starting m")
        (host.folder / "open").touch()
        answer = waiting.answer()  # while models load it is not turned away
        assert (answer.status, answer.json()) == (200, 5)
    server.ready()
    end(server)


def test_a_given_socket_may_have_tls(host, pair):
    port = host.tcp.getsockname()[1]
    with socket.create_connection(host.tcp.getsockname()) as early:  # it waits for the server, and says nothing
        server = host.serve("model:service", *pair.options).ready()
        assert server.address == f"https://127.0.0.1:{port}"
        assert server.http.post("/predict", json=6).json() == 6
        early.close()
    end(server)


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.night)])
def test_a_server_that_is_told_to_end_before_it_is_ready_leaves_what_waits(notified, host, pair, tls):
    (host.folder / "gated").touch()
    with socket.create_connection(host.tcp.getsockname()) as sock:
        options = pair.options if tls else ()
        server = host.serve("model:service", *options, env={"NOTIFY_SOCKET": notified.address})
        notified.wait_for("STATUS=starting: M is loading, .* s")
        end(server)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)  # neither closed nor reset


def test_what_reloads_serves_on_given_sockets_and_tells_that_it_listens(notified, host):
    port = host.tcp.getsockname()[1]
    server = host.serve("model:service", "--reload", env={"NOTIFY_SOCKET": notified.address}).ready()
    notified.wait_for("STATUS=listening; restarts when a file changes", after=notified.wait_for("READY=1"))
    assert server.address == f"http://127.0.0.1:{port}"
    assert server.http.post("/predict", json=1).json() == 1
    server.hang_up()
    model = host.folder / "model.py"
    model.write_text(GATED.replace("return x\n\n\nclass N", "return 2 * x\n\n\nclass N"))
    server.until(lambda: server.output.count("ready on") == 2)
    assert httpx.post(f"http://127.0.0.1:{port}/predict", json=1).json() == 2
    end(server)
    notified.wait_for("STOPPING=1")
    assert notified.senders == {server.pid}


def test_a_consumer_serves_http_on_given_sockets(host):
    port = host.tcp.getsockname()[1]
    consumer = host.work("model:service", "--queue-url", "memory://", "--bind", "systemd")
    consumer.wait_for(f"ready on http://127.0.0.1:{port}")
    assert httpx.post(f"http://127.0.0.1:{port}/predict", json=7).json() == 7
    assert httpx.post(f"http://127.0.0.1:{port}/jobs", json={"service": "m", "input": 7}).status_code == 202
    end(consumer)


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "env", "named"),
    [
        (("--host", "127.0.0.1", "--uds", "a.sock"), {}, "--host and --uds"),
        *(
            pytest.param(*given, marks=pytest.mark.night)
            for given in (
                (("--port", "8000"), {}, "--port"),
                ((), {"PENSTOCK_UDS": "a.sock"}, "the variable PENSTOCK_UDS"),
                (("--port", "0", "--reload"), {}, "--port"),
            )
        ),
    ],
)
def test_another_address_beside_given_sockets_is_an_error(host, words, env, named):
    assert host.tcp
    server = host.serve("model:service", *words, env=env)
    assert server.wait() == 1
    assert f"systemd socket activation (LISTEN_FDS) conflicts with {named}: remove" in server.output
    assert "starting" not in server.output


def test_another_address_in_a_program_of_python_is_an_error(host):
    (host.folder / "own.py").write_text(
        "from model import service\n\nif __name__ == '__main__':\n    service.serve(port=8001)\n"
    )
    assert host.tcp
    program = Program(host.folder, *as_started(host.numbers), sys.executable, "own.py", pass_fds=host.numbers)
    host.programs.append(program)
    assert program.wait() == 1
    assert "(LISTEN_FDS) conflicts with port=8001: remove" in program.output


def test_a_descriptor_that_is_no_socket_to_serve_is_named(host):
    assert host.tcp
    host.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    server = host.serve("model:service", env={"LISTEN_FDNAMES": "http:metrics"})
    assert server.wait() == 1
    assert "descriptor 4 of LISTEN_FDS ('metrics') is a socket of type SOCK_DGRAM" in server.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((), "it serves no HTTP. Use `--bind systemd`", marks=pytest.mark.night),
        (("--bind", "127.0.0.1:0"), "--bind is 127.0.0.1:0. Use `--bind systemd`"),
    ],
)
def test_given_sockets_for_which_a_consumer_has_no_use_are_an_error(host, words, said):
    assert host.tcp
    consumer = host.work("model:service", "--queue-url", f"sqlite:///{host.folder}/q.db", *words)
    assert consumer.wait() == 1
    assert f"conflict with systemd socket activation (LISTEN_FDS): {said}" in consumer.output


def test_a_consumer_that_wants_sockets_and_gets_none_is_an_error(models):
    status, output = run(models, "consume", "model:service", "--queue-url", "memory://", "--bind", "systemd")
    assert status == 1
    assert "--bind is systemd, but systemd passed no sockets to this process (LISTEN_FDS)" in output


def test_a_queue_is_not_open_to_a_network_by_a_given_socket(host):
    host.listen(socket.AF_INET, ("0.0.0.0", 0))
    url = f"sqlite:///{host.folder}/q.db"
    said = "jobs at 0.0.0.0 would be open to every client"
    server = host.serve("model:service", "--queue-url", url)
    assert server.wait() == 2
    assert said in server.output
    consumer = host.work("model:service", "--queue-url", url, "--bind", "systemd")
    assert consumer.wait() == 2
    assert said in consumer.output


def test_sockets_for_another_process_are_not_used_and_that_is_said(models):
    with serving(models, source=GATED, env={"LISTEN_FDS": "1", "LISTEN_PID": "1"}) as server:
        assert server.http.post("/predict", json=1).json() == 1
    assert "the sockets of systemd are not used: LISTEN_PID is '1', but this is process" in server.output


# -- restarts under load ----------------------------------------------------------------------------------------------

ACTIVATE = shutil.which("systemd-socket-activate")
needs_activate = pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed: make systemd")
CLIENTS = 16
RESTARTS = 3


def activated(*words):
    """The words before a command that the real `systemd-socket-activate` starts with this environment."""
    names = [*os.environ, "PENSTOCK_TEST_PROGRAM", "PYTHONUNBUFFERED"]
    return (ACTIVATE, *words, *(word for name in names if "=" not in name for word in ("-E", name)))


@needs_activate
def test_the_real_systemd_socket_activate_starts_a_server_with_the_first_connection(host):
    path = str(host.folder / "http.sock")
    server = Server(host.folder, "model:service", wrapper=activated("-l", path))
    host.programs.append(server)
    server.wait_for("Listening on")
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://test", timeout=40.0) as client:
        assert client.post("/predict", json=8).json() == 8
    server.wait_for(f"ready on unix:{path}")
    end(server)
    assert Path(path).is_socket()


class Load:
    """Clients that connect anew for each request, and count what becomes of it."""

    def __init__(self, address):
        self._address = address
        self._over = threading.Event()
        self.answered_by = []
        self.failures = []
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self):
        while not self._over.is_set():
            connection = http.client.HTTPConnection(*self._address, timeout=60.0)
            try:
                connection.request("POST", "/predict", b"1", {"Content-Type": "application/json"})
                answer = connection.getresponse()
                body = answer.read()
                if answer.status == 200:
                    self.answered_by.append(json.loads(body))
                else:
                    self.failures.append((answer.status, body))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            finally:
                connection.close()

    def stop(self):
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS * 3)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.mark.parametrize("activate", [False, pytest.param(True, marks=[needs_activate, pytest.mark.night])])
def test_restarts_under_load_refuse_nobody(host, activate):
    address = host.tcp.getsockname()
    wrapper = activated() if activate else ()
    load = Load(address)
    pids = []
    try:
        for _ in range(RESTARTS):
            server = host.serve("model:pid", wrapper=wrapper)
            server.ready()
            pids.append(server.pid)
            server.until(lambda pid=server.pid: load.answered_by.count(pid) >= 5 * CLIENTS, "answers of this server")
            end(server)
        last = host.serve("model:pid", wrapper=wrapper).ready()
        pids.append(last.pid)
        last.until(lambda: load.answered_by.count(last.pid) >= CLIENTS, "answers of the last server")
    finally:
        load.stop()
    end(last)
    assert load.failures == []
    assert set(load.answered_by) == set(pids)
