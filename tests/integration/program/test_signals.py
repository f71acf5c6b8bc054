"""How a server ends: what it accepted is answered, nothing new comes in, nothing stays behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from processes import running
from served import serving


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
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_accepted_requests_finish_and_nobody_else_in(serve, number):
    server = serve()
    idle = server.wire()
    wires = held_and_next(server)
    server.signal(number)
    assert idle.ended()
    server.until(lambda: refused(server), "the door to close", limit=2)
    server.open_gate()
    answers = [wire.answer() for wire in wires]
    assert [answer.json() for answer in answers] == [1.0, 2.0, 3.0, 4.0]
    assert {answer.headers["connection"] for answer in answers} == {"close"}
    assert server.wait() == 0
    assert server.output.endswith("penstock: stopped\n")


def test_ctrl_c_in_a_terminal_reaches_every_process_and_still_drains(serve):
    server = serve()
    wires = held_and_next(server)
    for pid in server.survivors():
        os.kill(pid, signal.SIGINT)
    server.signalled = True
    server.wait_for("SIGINT: draining")
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    assert server.wait() == 0


def test_a_group_that_is_terminated_drains_too(serve):
    server = serve()
    wires = held_and_next(server)
    for pid in server.survivors():
        os.kill(pid, signal.SIGTERM)
    server.signalled = True
    server.wait_for("SIGTERM: draining")
    server.open_gate()
    assert [wire.answer().json() for wire in wires] == [1.0, 2.0, 3.0, 4.0]
    assert server.wait() == 0


def test_what_is_left_at_the_end_of_the_drain_is_503(serve):
    server = serve("--drain", "0.5", where=("--uds", "in.sock"))
    server.address = f"unix:{server.folder / 'in.sock'}"
    wires = held_and_next(server)
    started = time.monotonic()
    server.signal(signal.SIGTERM)
    answers = [wire.answer() for wire in wires]
    assert 0.4 < time.monotonic() - started < 5
    assert [answer.status for answer in answers] == [503] * 4
    assert answers[0].json()["type"] == "urn:penstock:problem:not-ready"
    assert server.wait(limit=5) == 0
    assert not (server.folder / "in.sock").exists()


def test_a_drain_of_zero_answers_503_at_once(serve):
    server = serve("--drain", "0")
    wires = held_and_next(server)
    started = time.monotonic()
    server.signal(signal.SIGTERM)
    assert [wire.answer().status for wire in wires] == [503] * 4
    assert server.wait() == 0
    assert time.monotonic() - started < 5


def test_a_client_batch_that_was_accepted_is_finished(serve):
    server = serve("--max-queued", "4")
    held = server.wire().post("/batch", [{"do": "hold", "value": 0}, *({"value": n} for n in range(1, 30))])
    server.until((server.folder / "ran").exists)
    server.signal(signal.SIGTERM)
    server.wait_for("draining")
    server.open_gate()
    answer = held.answer()
    assert answer.status == 200
    assert [outcome["result"] for outcome in answer.json()["outcomes"]] == [float(n) for n in range(30)]
    assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_everything_at_once(serve, number):
    server = serve(where=("--uds", "in.sock"))
    server.address = f"unix:{server.folder / 'in.sock'}"
    wires = held_and_next(server)
    server.signal(number)
    server.wait_for("draining")
    started = time.monotonic()
    server.signal(number)
    assert server.wait(limit=5) == 128 + number
    assert time.monotonic() - started < 3
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_service_starts_ends_it(serve, number):
    server = serve(source=SLOW, ready=False, where=("--uds", "in.sock"))
    server.until((server.folder / "setting up").exists)
    server.signal(number)
    assert server.wait(limit=10) == 0
    assert not (server.folder / "in.sock").exists()
    assert "Traceback" not in server.output


def test_a_coordinator_that_is_killed_leaves_no_worker(tmp_path):
    with serving(tmp_path, services=("two_workers",)) as server:
        server.wire().post("/predict", {"do": "hold"})
        server.wire().post("/predict", {"do": "burn", "seconds": 30, "value": 1})
        server.until(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text().split()) == 2)
        workers = server.workers()
        server.signal(signal.SIGKILL)
        assert server.wait(limit=5) == -signal.SIGKILL
        enough = time.monotonic() + 5
        while any(map(running, workers)):
            assert time.monotonic() < enough, "the workers outlive their coordinator"
            time.sleep(0.01)


GRANDCHILDREN = """
import subprocess
from pathlib import Path
import penstock as ps

class Parent(ps.Stage):
    def setup(self) -> None:
        child = subprocess.Popen(["sleep", "300"])
        with Path("children").open("a") as file:
            file.write(f"{child.pid}\\n")

    def predict(self, x: float) -> float:
        return x

service = ps.Service(ps.stage(Parent, workers=2), name="parents")
"""


def test_what_a_stage_has_started_ends_with_its_worker(serve):
    server = serve(source=GRANDCHILDREN)
    first, second = map(int, (server.folder / "children").read_text().split())
    assert running(first)
    assert running(second)
    os.kill(server.workers()[0], signal.SIGKILL)
    server.until(lambda: len((server.folder / "children").read_text().split()) == 3, "a new worker with a new child")
    server.until(lambda: not (running(first) and running(second)), "the dead worker's child to end")
    server.stop()  # sees that nothing is left of the rest


def test_the_port_can_be_taken_again_at_once(serve):
    first = serve()
    port = first.port
    assert first.http.get("/livez").status_code == 200
    first.stop()
    second = serve(where=("--port", str(port)))
    assert second.http.get("/livez").status_code == 200


def test_workers_do_not_hold_the_servers_sockets_open(serve):
    server = serve()
    listening = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line}
    for pid in server.workers():
        held = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert not {name[len("socket:[") : -1] for name in held if name.startswith("socket:[")} & listening
