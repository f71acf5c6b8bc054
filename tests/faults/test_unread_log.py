"""A log that nobody reads costs lines: the server serves, stops, and tells how many lines are missing."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import termios
import threading
import time
import tty

import pytest
from served import PENSTOCK, START_LIMIT, Program, Server, request, write_module
from waiting import until_now

from night import tight

SOURCE = """
import asyncio, logging, sys, time
from pathlib import Path
import penstock as ps

class Talk(ps.Stage):
    def predict(self, x: float) -> float:
        if x == -2:
            Path("held").touch()
            time.sleep(60)
        if x < 0:
            raise ValueError("y" * 500)
        for n in range(int(x) if x > 1000 else 0):
            print(f"line {n:07}", "y" * 86)
        return x

service = ps.Service(ps.stage(Talk, workers=2), name="talk")

class Own(logging.Handler):
    def emit(self, record):
        self.file.write(self.format(record) + "\\n")
        self.file.flush()

def log_on_the_loop(addresses):
    loop = asyncio.get_running_loop()
    own = open("own", "w")
    handlers = [logging.StreamHandler(own), logging.FileHandler("own"), Own()]
    handlers[2].file = open("own", "w")
    for handler in handlers:
        logging.getLogger().addHandler(handler)
        logging.getLogger("asyncio").addHandler(handler)

    def log(left):
        logging.getLogger("mine").warning("m" * 1000)
        loop.call_exception_handler({"message": "e" * 1000})
        if left:
            loop.call_soon(log, left - 1)
        else:
            Path("logged").touch()

    print("ready on", *addresses, file=sys.stderr, flush=True)
    loop.call_soon(log, 300)

if __name__ == "__main__":
    service.serve(port=0, on_ready=log_on_the_loop)
"""
SLOWEST_SECONDS = 3.0
"""Longest that one answer may take; a whole machine of other tests may be running besides."""
STOP_SECONDS = 5.0
"""Longest that a stop may take: a second each for the lines of the worker and of the server, and a slow machine."""
DROPPED = re.compile(
    r"(\d+) log lines were dropped: the reader of the output is too slow, or they could not be written"
)
LONGEST_MATCH = 200
LONG_PATH = "/" + "p" * 7000


class Log:
    """The reading end of what a server writes: it reads when it is told to, and else sleeps."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._bytes = bytearray()
        os.set_blocking(fd, False)

    @property
    def text(self):
        """What was read so far."""
        return self._bytes.decode()

    def read(self) -> bool:
        """Read what is there, or comes in a moment; whether there was something."""
        select.select([self.fd], [], [], 0.05)
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self.fd, 1 << 20)
            self._bytes += piece
            return bool(piece)
        return False

    def until(self, pattern, limit=START_LIMIT):
        deadline, start = time.monotonic() + limit, 0
        while not (found := re.search(pattern, self._bytes[start:].decode())):
            assert time.monotonic() < deadline, f"no {pattern!r} in the log:\n{self.text[-3000:]}"
            start = max(0, len(self._bytes) - LONGEST_MATCH)  # a terminal gives 8 MiB in thousands of pieces
            self.read()
        return found

    def to_the_end(self, process):
        while self.read() or process.poll() is None:
            pass
        return self.text

    def dropped(self):
        """How many lines are missing, as the log tells."""
        return sum(map(int, DROPPED.findall(self.text)))


class UnreadServer(Server):
    """A server whose standard output and error lead to `log`."""

    def __init__(self, folder, where, log, command):
        Program.__init__(self, folder, "sh", "-c", f'exec "$@" > {where} 2>&1', "sh", *command)
        self._opened = contextlib.ExitStack()
        self._http = None
        self.log = log
        self.address = log.until(r"ready on (http://[\w.:]+)")[1]


@pytest.fixture(params=["fifo", pytest.param("terminal", marks=pytest.mark.night)])
def kind(request):
    return request.param


@pytest.fixture
def serve(tmp_path):
    """Starts `penstock serve`, or another command, whose log is read until it is ready and then no more."""
    write_module(tmp_path, SOURCE)
    with contextlib.ExitStack() as opened:

        def start(*options, kind="fifo", command=None, full=False):
            command = command or (*PENSTOCK, "serve", "model:service", "--port", "0", *options)
            if kind == "fifo":
                os.mkfifo(tmp_path / "fifo")
                where, reader = "fifo", os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            else:
                reader, terminal = pty.openpty()
                opened.callback(os.close, terminal)
                tty.setraw(terminal)
                where = os.ttyname(terminal)
            opened.callback(os.close, reader)
            server = UnreadServer.__new__(UnreadServer)
            opened.callback(lambda: hasattr(server, "process") and server.destroy())
            server.__init__(tmp_path, where, Log(reader), command)
            opened.callback(server.hang_up)
            if full and kind == "fifo":
                fill(tmp_path / "fifo")
            if kind == "terminal":
                termios.tcflow(terminal, termios.TCOOFF)
                server.wake = lambda: termios.tcflow(terminal, termios.TCOON)
            return server

        yield start


def fill(fifo):
    """Write until there is no room."""
    fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"\n")
    os.close(fd)


@contextlib.contextmanager
def a_client_beside(server):
    """Another client, which asks all the while: each answer must come, and in time."""
    ended, times, wrong = threading.Event(), [], []
    wire = server.wire()

    def ask():
        while not ended.is_set():
            started = time.monotonic()
            try:
                answer = wire.post("/predict", 1.0).answer()
            except (AssertionError, OSError) as error:
                wrong.append(error)
                return
            times.append(time.monotonic() - started)
            if answer.status != 200:
                wrong.append(answer)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield times
    until_now(lambda: times or wrong, "an answer")
    ended.set()
    thread.join()
    assert not wrong
    sys.stdout.write(f"{len(times)} answers beside, the slowest after {max(times) * 1000:.0f} ms\n")
    assert max(times) < tight(SLOWEST_SECONDS)


def pipelined(server, count, data, status):
    wire = server.wire()
    for begun in range(0, count, 50):
        wire.send(data * min(50, count - begun))
        for _ in range(min(50, count - begun)):
            assert wire.answer().status == status


def livez(server):
    assert server.wire().send(request("GET", "/livez")).answer().status == 200


def test_failing_requests_do_not_stop_a_server_whose_log_nobody_reads(serve, kind):
    server = serve(kind=kind, full=True)
    with a_client_beside(server):
        pipelined(server, 300, request("POST", "/predict", -1.0), 500)
        livez(server)
    server.signal(signal.SIGTERM)
    assert server.wait(STOP_SECONDS) == 0


@pytest.mark.night
def test_each_line_of_the_access_log_is_written_or_counted(serve, kind):
    server = serve("--access-log", kind=kind)
    with a_client_beside(server) as beside:
        pipelined(server, 6000, request("POST", "/predict", 2.0), 200)
        livez(server)
        assert server.metric("penstock_log_lines_dropped_total") == 0
        pipelined(server, 2000, request("GET", LONG_PATH), 404)  # 14 MB of log, which is more than may wait
        livez(server)
    assert server.metric("penstock_log_lines_dropped_total") > 500
    if kind == "terminal":
        server.wake()
    server.log.until("lines were dropped")
    livez(server)
    dropped = server.metric("penstock_log_lines_dropped_total")
    server.signal(signal.SIGTERM)
    text = server.log.to_the_end(server.process)
    assert server.wait(STOP_SECONDS) == 0
    assert server.log.dropped() == dropped
    asked = 6000 + 2000 + len(beside) + 6  # each look at /livez and /metrics besides
    assert len(re.findall(r"INFO penstock.access: (?:POST|GET) ", text)) + dropped == asked
    assert text.rstrip().endswith("penstock: stopped")


def test_the_second_signal_ends_a_server_whose_log_nobody_reads(serve, kind):
    server = serve(kind=kind, full=True)
    pipelined(server, 300, request("POST", "/predict", -1.0), 500)
    server.wire().post("/predict", -2.0)
    server.until((server.folder / "held").exists)
    server.signal(signal.SIGTERM)
    server.until(lambda: refused(server), "the door to close")
    assert server.process.poll() is None
    server.signal(signal.SIGQUIT)
    assert server.wait(STOP_SECONDS) == 128 + signal.SIGQUIT


def refused(server):
    try:
        server.wire().close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_worker_that_prints_what_nobody_reads_answers_and_tells_what_it_dropped(serve):
    server = serve()
    with a_client_beside(server):
        assert server.http.post("/predict", content="110000").json() == 110_000  # 11 MB
    server.log.until("worker [01] of stage 'Talk': [0-9]+ log lines were dropped")
    server.signal(signal.SIGTERM)
    text = server.log.to_the_end(server.process)
    assert server.wait(STOP_SECONDS) == 0
    assert len(re.findall(r"^line \d{7} y{86}$", text, flags=re.MULTILINE)) + server.log.dropped() == 110_000
    assert server.log.dropped() > 10_000


@pytest.mark.night
def test_a_stop_does_not_wait_for_what_a_worker_has_printed(serve):
    server = serve()
    assert server.http.post("/predict", content="110000").json() == 110_000
    server.signal(signal.SIGTERM)
    assert server.wait(STOP_SECONDS) == 0


@pytest.mark.night
def test_while_the_log_is_read_a_worker_loses_no_line(serve):
    server = serve()
    reading = threading.Thread(target=server.log.to_the_end, args=(server.process,))
    reading.start()
    assert server.http.post("/predict", content="60000").json() == 60_000  # 6 MB: the worker stops right behind them
    server.signal(signal.SIGTERM)
    assert server.wait(STOP_SECONDS) == 0
    reading.join()
    assert re.findall(r"^line (\d{7}) y{86}$", server.log.text, re.MULTILINE) == [f"{n:07}" for n in range(60_000)]
    assert server.log.dropped() == 0


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.night)])
def test_a_handler_of_the_user_blocks_neither_the_loop_nor_the_end(serve, tmp_path, signals):
    os.mkfifo(tmp_path / "own")
    reader = os.open(tmp_path / "own", os.O_RDONLY | os.O_NONBLOCK)
    try:
        server = serve(command=(sys.executable, "model.py"))
        with a_client_beside(server):
            server.until((tmp_path / "logged").exists)
            livez(server)
        if signals == 2:
            server.wire().post("/predict", -2.0)
            server.until((tmp_path / "held").exists)
            server.signal(signal.SIGTERM)
            server.until(lambda: refused(server), "the door to close")
        server.signal(signal.SIGQUIT)
        assert server.wait(STOP_SECONDS) == (0 if signals == 1 else 128 + signal.SIGQUIT)
    finally:
        os.close(reader)
