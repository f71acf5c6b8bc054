"""How a server ends: what it accepted is answered, nothing new comes in, nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import running
from served import serving
from waiting import until_now


def held_and_next(server):
    """One request that runs and three behind it."""
    wires = [server.wire().post("/predict", {"do": "hold", "value": 1})]
    server.until((server.folder / "ran").exists)
    wires += [server.wire().post("/predict", {"value": n}) for n in (2, 3, 4)]
    server.until(lambda: server.health()["services"]["orders"]["queued"] == 4)
    return wires


def refused(server):
    """Whether the door is closed."""
    try:
        server.wire().close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    return False


ENDING = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]


def by_day(number):
    """Every signal that ends a server, but all except this one by night only."""
    return [each if each == number else pytest.param(each, marks=pytest.mark.night) for each in ENDING]


@pytest.mark.parametrize("number", by_day(signal.SIGTERM))
def test_a_signal_lets_accepted_requests_finish_and_nobody_else_in(serve, number):
    server = serve()
    idle = server.wire()
    wires = held_and_next(server)
    server.signal(number)
    assert idle.ended()
    server.until(lambda: refused(server), "the door to close")
    server.open_gate()
    answers = [wire.answer() for wire in wires]
    assert [answer.json() for answer in answers] == [1.0, 2.0, 3.0, 4.0]
    assert {answer.headers["connection"] for answer in answers} == {"close"}
    assert server.wait() == 0
    assert server.output.endswith("penstock: stopped\n")


@pytest.mark.smoke
@pytest.mark.parametrize("number", by_day(signal.SIGINT))
def test_a_signal_that_reaches_every_process_as_from_a_terminal_still_drains(serve, number):
    server = serve()
    wires = held_and_next(server)
    for pid in server.survivors():
        os.kill(pid, number)
    server.signalled = True
    server.wait_for(f"{number.name}: shutting down, waiting")
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    assert server.wait() == 0


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGHUP, "SIGHUP: nothing to reload: no certificate and no key file is set"),
        (signal.SIGUSR1, "SIGUSR1: the coordinator's threads"),
    ],
)
def test_a_signal_that_ends_nothing_may_reach_the_whole_group(shared, number, line):
    server = shared
    before = server.workers()
    wires = held_and_next(server)
    for pid in server.survivors():
        os.kill(pid, number)
    server.wait_for(line)
    for group in before:
        os.killpg(group, number)
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    assert server.workers() == before


def test_hup_during_the_drain_changes_nothing(serve):
    server = serve()
    wires = held_and_next(server)
    server.signal(signal.SIGTERM)
    server.wait_for("SIGTERM: shutting down, waiting")
    server.signal(signal.SIGHUP)
    server.wait_for("SIGHUP ignored: shutting down")
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    assert server.wait() == 0


def test_what_was_ignored_at_the_start_stays_ignored_everywhere(serve):
    server = serve(wrapper=("sh", "-c", "trap '' HUP QUIT; exec \"$@\"", "sh"))
    before = server.workers()
    wires = held_and_next(server)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        for pid in server.survivors():
            os.kill(pid, number)
            ignored = int(re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())[1], 16)
            assert ignored >> (number - 1) & 1
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    assert server.workers() == before
    assert "SIGHUP" not in server.output


ON_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first one that a session opens is its controlling terminal
os.dup2(terminal, 2)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def read_until(terminal, words):
    """Read what the server writes to its terminal until `words` come."""
    text = ""
    while words not in text:
        text += os.read(terminal, 1 << 16).decode()
    return text


def test_a_closed_terminal_drains_and_an_open_one_does_not(serve):
    ours, theirs = pty.openpty()
    wrapper = (sys.executable, "-c", ON_TERMINAL, os.ttyname(theirs))
    server = serve(wrapper=wrapper, ready=False, where=("--uds", "in.sock"))
    server.address = f"unix:{server.folder / 'in.sock'}"
    read_until(ours, "ready on")
    os.close(theirs)
    wires = held_and_next(server)
    server.signal(signal.SIGHUP)
    read_until(ours, "SIGHUP: nothing to reload: no certificate and no key file is set")
    assert server.http.get("/readyz").status_code == 200
    os.close(ours)
    server.until(lambda: refused(server), "the door to close")
    server.signal(signal.SIGHUP)  # as a shell sends one more
    server.open_gate()
    answers = [wire.answer() for wire in wires]
    assert [answer.json() for answer in answers] == [1.0, 2.0, 3.0, 4.0]
    assert server.wait() == 0


def test_usr1_writes_health_and_stacks_in_lines_that_stay_json(serve, log_lines):
    server = serve("--log-format", "json")
    wires = held_and_next(server)
    server.signal(signal.SIGUSR1)
    server.wait_for("the coordinator's threads")
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    server.stop()
    messages = [line["message"] for line in log_lines(server) if line["message"].startswith("SIGUSR1")]
    health = json.loads(messages[0].removeprefix("SIGUSR1: health: "))
    assert (health["state"], health["services"]["orders"]["queued"]) == ("ready", 4)
    assert "Thread MainThread (most recent call first):" in messages[1]
    assert "in run_until_signal" in messages[1]


def test_usr1_writes_what_each_worker_runs(shared):
    server = shared
    held_and_next(server)
    os.kill(server.pid, signal.SIGUSR1)
    try:
        server.wait_for(r"SIGUSR1: worker 0 of stage 'Obey' \(pid \d+\) of service 'orders':(?s:.)*?in wait_for\n")
    finally:
        server.open_gate()


def test_a_crowd_of_signals_harms_nobody(shared):
    server = shared
    for n in range(100):
        os.kill(server.pid, signal.SIGUSR1 if n % 2 else signal.SIGHUP)
        assert server.http.post("/predict", json={"value": n}).json() == n
    server.until(lambda: "SIGUSR1: health" in server.output)


def test_what_is_left_at_the_end_of_the_drain_is_503_and_500_where_it_runs(serve):
    server = serve("--drain-timeout", "0.5", where=("--uds", "in.sock"))
    server.address = f"unix:{server.folder / 'in.sock'}"
    wires = held_and_next(server)
    started = time.monotonic()
    server.signal(signal.SIGTERM)
    answers = [wire.answer() for wire in wires]
    assert time.monotonic() - started > 0.4
    assert [answer.status for answer in answers] == [500, 503, 503, 503]
    assert {answer.json()["type"] for answer in answers} == {"urn:penstock:problem:not-ready"}
    assert [answer.headers["x-should-retry"] for answer in answers] == ["false", "true", "true", "true"]
    assert server.wait() == 0
    assert not (server.folder / "in.sock").exists()


@pytest.mark.smoke
def test_a_client_batch_that_was_accepted_is_finished(serve):
    server = serve("--max-in-flight", "4")
    held = server.wire().post("/batch", [{"do": "hold", "value": 0}, *({"value": n} for n in range(1, 30))])
    server.until((server.folder / "ran").exists)
    server.signal(signal.SIGTERM)
    server.wait_for("shutting down, waiting")
    server.open_gate()
    answer = held.answer()
    assert answer.status == 200
    assert [outcome["result"] for outcome in answer.json()["outcomes"]] == [float(n) for n in range(30)]
    assert server.wait() == 0


@pytest.mark.parametrize("number", by_day(signal.SIGINT))
def test_a_second_signal_ends_everything_at_once(serve, number):
    server = serve(where=("--uds", "in.sock"))
    server.address = f"unix:{server.folder / 'in.sock'}"
    wires = held_and_next(server)
    server.signal(number)
    server.wait_for("shutting down, waiting")
    server.signal(signal.SIGQUIT)
    assert server.wait() == 128 + signal.SIGQUIT  # a drain may take longer than this waits
    assert wires[0].ended()
    assert not (server.folder / "in.sock").exists()


SLOW = """
import time
from pathlib import Path
import penstock as ps

class Slow(ps.Stage):
    def setup(self) -> None:
        Path("setting up").touch()
        time.sleep(60)

    def predict(self, x: float) -> float:
        return x

service = ps.Service(ps.stage(Slow, workers=2), name="slow")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.night)])
def test_a_signal_while_the_service_starts_ends_it(serve, number):
    server = serve(source=SLOW, ready=False, where=("--uds", "in.sock"))
    server.until((server.folder / "setting up").exists)
    server.signal(number)
    assert server.wait() == 0
    assert not (server.folder / "in.sock").exists()
    assert "Traceback" not in server.output


SIGNALS_ITSELF = """
import atexit, logging, os, signal, sys
import penstock as ps

def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)

def send_at_the_start(record):
    if record.getMessage().startswith("starting"):
        send(signal.SIGHUP, signal.SIGUSR1)
    return True

if "penstock.worker" not in sys.orig_argv:
    logging.getLogger("penstock.server").addFilter(send_at_the_start)
    atexit.register(send, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT)

def double(x: float) -> float:
    return 2 * x

service = ps.Service(double)
"""


def test_signals_from_the_first_line_to_the_end_of_the_process_never_have_their_default(serve):
    server = serve("--log-format", "json", source=SIGNALS_ITSELF)
    server.wait_for("SIGHUP: nothing to reload: no certificate")
    server.wait_for("SIGUSR1: the coordinator's threads")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


GOES_ON = """
import atexit, sys, threading
from penstock.cli import ending
import penstock as ps

ending.LAST_GRACE_SECONDS = 0.2
if "penstock.worker" not in sys.orig_argv:
    LEAVE_SOMETHING

class Double(ps.Stage):
    def setup(self) -> None:
        assert not WITHOUT_MODEL, "there is no model"

    def predict(self, x: float) -> float:
        return 2 * x

service = ps.Service(Double)
"""
THREAD = 'threading.Thread(target=threading.Event().wait, name="uploads").start()'
AT_EXIT = "atexit.register(threading.Event().wait)"


def goes_on(left, *, without_model=False):
    return GOES_ON.replace("LEAVE_SOMETHING", left).replace("WITHOUT_MODEL", str(without_model))


@pytest.mark.parametrize(
    ("left", "line"),
    [
        (THREAD, "with non-daemon threads still running: uploads\n"),
        (AT_EXIT, "while functions registered with atexit are still running\n"),
    ],
)
def test_what_the_module_leaves_running_keeps_no_server_from_its_end(serve, left, line):
    server = serve(source=goes_on(left))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.output.endswith(line)


def test_what_the_module_leaves_running_keeps_no_start_from_failing(serve):
    server = serve(source=goes_on(THREAD, without_model=True), ready=False)
    server.signalled = True  # nobody has to end it
    assert server.wait() == 1
    assert "there is no model" in server.output


STAGE_GOES_ON = """
import atexit, pathlib, threading
from concurrent.futures import ThreadPoolExecutor
import penstock as ps

class Double(ps.Stage):
    def setup(self) -> None:
        LEAVE_SOMETHING
        atexit.register(pathlib.Path("at exit").touch)

    def predict(self, x: float) -> float:
        return 2 * x

service = ps.Service(Double)
"""
POOL = "self.pool = ThreadPoolExecutor(); self.pool.submit(int)"


@pytest.mark.parametrize(
    "left", [pytest.param(THREAD, id="a thread"), pytest.param(POOL, id="an idle pool", marks=pytest.mark.night)]
)
def test_what_a_stage_leaves_running_keeps_its_worker_no_longer_than_it_must(serve, left):
    server = serve(source=STAGE_GOES_ON.replace("LEAVE_SOMETHING", left))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert (server.folder / "at exit").exists(), "it has ended by itself: the coordinator kills who takes too long"
    told = "penstock: worker 0 of stage 'Double': exiting with non-daemon threads still running: uploads\n"
    assert (told in server.output) is (left is THREAD)


BLOCKED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_what_was_blocked_at_the_start_is_taken(serve):
    server = serve(wrapper=(sys.executable, "-c", BLOCKED))
    server.signal(signal.SIGHUP)
    server.wait_for("SIGHUP: nothing to reload: no certificate")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


IMPORTS_FOR_LONG = """
import time
from pathlib import Path

Path("importing").touch()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.night), (signal.SIGINT, 130)],
)
def test_a_signal_while_the_module_is_imported_ends_the_command_without_a_traceback(serve, number, status):
    server = serve(source=IMPORTS_FOR_LONG, ready=False)
    server.until((server.folder / "importing").exists)
    server.signal(number)
    assert server.wait() == status
    assert "Traceback" not in server.output


@pytest.mark.smoke
def test_a_coordinator_that_is_killed_leaves_no_worker(tmp_path):
    with serving(tmp_path, services=("two_workers",)) as server:
        server.wire().post("/predict", {"do": "hold"})
        server.wire().post("/predict", {"do": "burn", "seconds": 120, "value": 1})
        server.until(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text().split()) == 2)
        workers = server.workers()
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        until_now(lambda: not any(map(running, workers)), "the workers to end")


def sockets(pid):
    """The numbers of the sockets that a process has open."""
    held = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            held.append(str(entry.readlink()))
    return {name[len("socket:[") : -1] for name in held if name.startswith("socket:[")}


def test_workers_do_not_hold_the_servers_sockets_open(serve):
    server = serve()
    # Named as the system does, for all processes: whoever inherits a socket has it under the same name.
    its_own = sockets(server.pid)
    listening = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line}
    assert its_own & listening
    for pid in server.workers():
        assert not sockets(pid) & its_own & listening
