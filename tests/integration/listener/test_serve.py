"""What `serve` leaves of itself in a program that goes on."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import gc, json, os, signal, sys
import penstock as ps
from penstock.config import ServerOptions
from penstock.server.serve import serve

def same(x: float) -> float:
    return x

def collector():
    return [gc.get_threshold(), gc.get_freeze_count() > 0]

def ready(addresses):
    seen.append(collector())
    os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    gc.set_threshold(600, 9, 8)
    if "frozen" in sys.argv:
        gc.freeze()
    seen = [collector()]
    serve([ps.Service(same)], ServerOptions(uds="socket"), ready)
    seen.append(collector())
    print(json.dumps(seen))
"""


@pytest.mark.parametrize("frozen", [False, True])
def test_a_program_has_its_collector_back_after_the_drain(tmp_path, frozen):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", *["frozen"] * frozen]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stderr
    before, ready, after = json.loads(ended.stdout)
    assert before == [[600, 9, 8], frozen]
    assert ready[0] != before[0]
    assert ready[1]
    assert after == before


HANDLERS = """
import json, os, signal
import penstock as ps

def same(x: float) -> float:
    return x

heard = []
NAMES = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"]

def standing():
    return {name: str(signal.getsignal(getattr(signal, name))) for name in NAMES}

def ready(addresses):
    serving.append(standing())
    signal.raise_signal(signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, lambda *_: heard.append("hup"))
    signal.signal(signal.SIGTERM, lambda *_: heard.append("term"))
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    before, serving = standing(), []
    ps.Service(same).serve(uds="socket", on_ready=ready)
    after = standing()
    os.kill(os.getpid(), signal.SIGTERM)
    print(json.dumps([before, serving[0], after, heard]))
"""


def test_a_program_keeps_its_own_handlers_and_has_the_others_back_after_the_drain(tmp_path):
    (tmp_path / "program.py").write_text(HANDLERS)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 0, ended.stderr
    before, serving, after, heard = json.loads(ended.stdout)
    assert after == before
    assert heard == ["hup", "term"], "what the program handles is its own, but what ends the server"
    assert {name for name in before if serving[name] != before[name]} == {"SIGTERM", "SIGINT", "SIGUSR1"}
