"""On a terminal after `stty tostop`, which stops who writes to it in the background: processes of ours are there."""

import contextlib
import os
import pty
import signal
import sys
import termios
import threading

import pytest
from served import PENSTOCK, Program
from waiting import until_now

MODEL = """
import subprocess
import sys

import penstock as ps


class M(ps.Stage):
    examples = [0]

    def setup(self) -> None:
        print("from setup", flush=True)
        subprocess.run([sys.executable, "-c", "print('from a program')"], check=True)

    def predict(self, x: int) -> int:
        return x


service = ps.Service(M)
"""
ON_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first that a session leader opens is its own
for fd in range(3):
    os.dup2(terminal, fd)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def shown(tmp_path):
    """Runs `penstock` on such a terminal; what is returned waits until the words are there."""
    (tmp_path / "model.py").write_text(MODEL)
    with contextlib.ExitStack() as opened:

        def start(*arguments):
            ours, theirs = pty.openpty()
            settings = termios.tcgetattr(theirs)
            settings[3] |= termios.TOSTOP
            termios.tcsetattr(theirs, termios.TCSANOW, settings)
            screen = []

            def read():
                with contextlib.suppress(OSError):  # nobody has the terminal any more
                    while True:
                        screen.append(os.read(ours, 1 << 16).decode())

            wrapper = (sys.executable, "-c", ON_TERMINAL, os.ttyname(theirs))
            program = Program(tmp_path, *wrapper, *PENSTOCK, *arguments)
            reader = threading.Thread(target=read)
            reader.start()
            opened.callback(os.close, ours)
            opened.callback(reader.join, 20)
            opened.callback(program.destroy)
            opened.callback(os.close, theirs)

            def wait_for(words):
                until_now(lambda: words in "".join(screen), repr(words), 40, lambda: "".join(screen))

            return program, wait_for

        yield start


@pytest.mark.parametrize("reload", [(), ("--reload",)], ids=["serve", "serve --reload"])
def test_a_service_is_served_and_shows_what_it_prints(shown, reload):
    program, wait_for = shown("serve", "model.py", "--uds", "socket", *reload)
    for words in ("starting service", "from setup", "from a program", "ready on"):
        wait_for(words)
    program.signal(signal.SIGTERM)
    assert program.wait() == 0
    wait_for("stopped")


def test_a_service_is_checked(shown):
    program, wait_for = shown("check", "model.py")
    wait_for("from a program")
    assert program.wait() == 0
