"""What a server and a consumer tell systemd, by a socket that the test has."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from pathlib import Path

import httpx
import pytest
from served import PATIENCE_SECONDS, Program, Server, serving
from systemd_host import GATED, Notified, as_started, end
from waiting import until_now

from penstock import jobs

SIGN = "WATCHDOG=1"
EXTENDED = r"EXTEND_TIMEOUT_USEC=\d+"


def test_systemd_is_told_of_a_server_from_its_start_to_its_end(notified, host):
    (host.folder / "gated").touch()
    server = host.serve("model:service", "--port", "0", env={"NOTIFY_SOCKET": notified.address})
    notified.wait_for("STATUS=starting: M is loading, .* s")
    notified.wait_for(EXTENDED, after=notified.wait_for(EXTENDED) + 1)  # once is not enough for a model that loads on
    assert "READY=1" not in notified.told()
    (host.folder / "open").touch()
    ready = notified.wait_for("READY=1")
    assert notified.wait_for("STATUS=ready") == ready + 1
    server.ready()
    held = server.wire().post("/predict", 9)
    server.until((host.folder / "held").exists)
    server.signal(signal.SIGTERM)
    stopping = notified.wait_for("STOPPING=1")
    notified.wait_for("STATUS=draining: 1 in flight", after=stopping)
    notified.wait_for(EXTENDED, after=stopping)
    notified.wait_for(EXTENDED, after=notified.wait_for(EXTENDED, after=stopping) + 1)
    (host.folder / "let go").touch()
    assert held.answer().json() == 9
    server.hang_up()
    assert server.wait() == 0
    told = notified.told()
    assert told.count("READY=1") == told.count("STOPPING=1") == 1
    assert not [each for each in told[ready:stopping] if each.startswith("EXTEND")]
    assert SIGN not in told  # nobody has asked for it
    assert notified.senders == {server.pid}


def test_systemd_waits_for_a_drain_delay_too_and_its_sockets_are_served_meanwhile(notified, host):
    port = host.tcp.getsockname()[1]
    env = {"NOTIFY_SOCKET": notified.address}
    server = host.serve("model:service", "--drain-delay", "600", "--drain-timeout", "1", env=env).ready()
    server.signal(signal.SIGTERM)
    stopping = notified.wait_for("STOPPING=1")
    server.wait_for("accepting requests for 600 s more")
    notified.wait_for(EXTENDED, after=notified.wait_for(EXTENDED, after=stopping) + 1)
    answer = httpx.post(f"http://127.0.0.1:{port}/predict", json=7)
    assert (answer.json(), answer.headers["connection"]) == (7, "close")
    server.signal(signal.SIGQUIT)
    assert server.wait() == 128 + signal.SIGQUIT


def test_an_abstract_address_is_told_of_services_only_when_all_are_ready(host):
    notified = Notified(f"@penstock-{uuid.uuid4().hex}")
    with contextlib.closing(notified):
        (host.folder / "gated").touch()
        env = {"NOTIFY_SOCKET": notified.address}
        server = host.serve("model:other", "model:service", "--port", "0", env=env)
        notified.wait_for("STATUS=n: ready; m: starting: M is loading, .* s")
        assert "READY=1" not in notified.told()
        (host.folder / "open").touch()
        assert notified.wait_for("STATUS=n: ready; m: ready") == notified.wait_for("READY=1") + 1
        end(server)


def test_systemd_is_told_of_a_consumer(notified, host):
    url = f"sqlite:///{host.folder}/q.db"
    consumer = host.work("model:service", "--queue-url", url, env={"NOTIFY_SOCKET": notified.address})
    notified.wait_for("STATUS=ready", after=notified.wait_for("READY=1"))
    with jobs.connect(url) as queue:
        job = queue.submit(9)
        until_now((host.folder / "held").exists, "the job to be at work", PATIENCE_SECONDS, lambda: consumer.output)
        consumer.signal(signal.SIGTERM)
        notified.wait_for("STATUS=draining: 1 in flight", after=notified.wait_for("STOPPING=1"))
        notified.wait_for(EXTENDED, after=notified.wait_for("STOPPING=1"))
        (host.folder / "let go").touch()
        assert consumer.wait() == 0, consumer.output
        assert queue.result(job, timeout=PATIENCE_SECONDS) == 9


@pytest.mark.parametrize("command", ["serve", "consume"])
def test_signs_of_life_come_until_livez_fails_and_again_when_it_does_not(notified, host, command):
    env = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "200000"}
    stalled = ("--progress-deadline", "1", "--liveness-deadline", "1")
    if command == "serve":
        program = host.serve("model:service", "--port", "0", *stalled, env=env).ready()
        held = program.wire().post("/predict", 9)
    else:
        url = f"sqlite:///{host.folder}/q.db"
        program = host.work("model:service", "--queue-url", url, *stalled, env=env)
        with jobs.connect(url) as queue:
            queue.submit(9)
    ready = notified.wait_for("READY=1")
    notified.wait_for(SIGN, after=notified.wait_for(SIGN, after=ready) + 1)
    stuck = notified.wait_for("STATUS=.*stuck: m: stage 'M' has work.*", after=ready)
    still = notified.wait_for("STATUS=.*stuck: m: stage 'M' has work.*", after=stuck + 1)  # a second later
    assert SIGN not in notified.told()[stuck:still]
    if command == "serve":
        assert program.http.get("/livez").status_code == 503
    (host.folder / "let go").touch()
    notified.wait_for(SIGN, after=notified.wait_for("STATUS=ready", after=still))
    if command == "serve":
        assert held.answer().json() == 9
    end(program)


def test_a_watchdog_of_another_process_gets_no_sign_of_life(notified, models):
    env = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
    with serving(models, source=GATED, env=env):
        notified.wait_for("STATUS=ready")
    notified.wait_for("STOPPING=1")
    assert SIGN not in notified.told()


def test_an_address_where_nobody_listens_is_said_once_and_stops_nothing(models):
    env = {"NOTIFY_SOCKET": str(models / "nobody"), "WATCHDOG_USEC": "100000"}
    with serving(models, source=GATED, env=env) as server:
        assert server.http.post("/predict", json=1).json() == 1
    said = f"cannot notify systemd at NOTIFY_SOCKET={models / 'nobody'}: No such file or directory"
    assert server.output.count(said) == 1


def test_a_program_of_python_tells_systemd_too(notified, host):
    (host.folder / "own.py").write_text(
        "from model import service\n\nif __name__ == '__main__':\n    service.serve()\n"
    )
    address = host.tcp.getsockname()
    words = (*as_started(host.numbers), sys.executable, "own.py")
    program = Program(host.folder, *words, env={"NOTIFY_SOCKET": notified.address}, pass_fds=host.numbers)
    host.programs.append(program)
    notified.wait_for("READY=1")
    assert httpx.post(f"http://127.0.0.1:{address[1]}/predict", json=3).json() == 3
    end(program)


def test_none_of_its_variables_and_sockets_reach_workers(notified, host):
    number = host.tcp.getsockname()[1]
    link = str(Path(f"/proc/self/fd/{host.tcp.fileno()}").readlink())
    env = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "60000000", "LISTEN_FDNAMES": "http"}
    server = host.serve("model:seen", env=env).ready()
    assert server.port == number
    seen = server.http.post("/predict", json=0).json()
    assert [each for each in seen if each.startswith(("NOTIFY", "WATCHDOG", "LISTEN"))] == []
    assert link not in seen
    assert any(each.startswith("socket:") for each in seen)  # its channel: the links were read
    end(server)


def test_process_1_tells_systemd_for_the_server_in_its_child(notified, host):
    contained = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if run_quietly(*contained, "true"):
        pytest.skip("a namespace for processes cannot be made here")
    address = host.tcp.getsockname()
    env = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "200000"}
    given = (*contained, *as_started(host.numbers))
    server = Server(host.folder, "model:service", wrapper=given, pass_fds=host.numbers, env=env)
    host.programs.append(server)
    ready = notified.wait_for("READY=1")
    notified.wait_for(SIGN, after=ready)
    assert httpx.post(f"http://127.0.0.1:{address[1]}/predict", json=3).json() == 3
    first = int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0])
    assert notified.senders == {first}
    server.signalled = True
    os.kill(first, signal.SIGTERM)
    notified.wait_for("STOPPING=1", after=ready)
    assert server.wait() == 0


def run_quietly(*command):
    program = Program(Path.cwd(), *command)
    try:
        return program.wait()
    finally:
        program.destroy()
