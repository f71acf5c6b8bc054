"""What a user sees of `penstock serve --reload`: edits, good and bad, under a client that never stops asking."""

import contextlib
import ctypes
import http.client
import json
import os
import pty
import re
import signal
import socket
import sys
import threading
from pathlib import Path

import httpx
import pytest
from processes import running
from served import Server
from spoken import spoken
from waiting import until_now

MODEL = """
import penstock as ps
{imports}

class M(ps.Stage):
    examples = [0]

    def setup(self) -> None:
        {setup}

    def predict(self, x: int) -> str:
        return {answer}

service = ps.Service(ps.stage(M, name="{stage}"){more})
"""
ON_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first that a session leader opens is its own
for fd in range(3):
    os.dup2(terminal, fd)
os.execv(sys.argv[2], sys.argv[2:])
"""
SERVES_ON = "keeping the previous version"


def source(answer="'a'", imports="", setup="self.is_set_up = True", stage="M", more=""):
    return MODEL.format(answer=answer, imports=imports, setup=setup, stage=stage, more=more)


def stands_still(process):
    """Whether every thread of `process` is stopped."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{process}/task").glob("*/stat")]
    return set(states) == {"T"}


def pending(process, number):
    """Whether signal `number` waits for `process`, which stands still."""
    mask = Path(f"/proc/{process}/status").read_text().partition("ShdPnd:")[2].split()[0]
    return bool(int(mask, 16) >> (number - 1) & 1)


class Reloaded(Server):
    """`penstock serve --reload` of `model.py`; on a terminal of its own, if that is wanted."""

    def __init__(self, folder, *options, terminal=False, text=None, where=("--port", "0"), **more):
        self.file = folder / "model.py"
        self.file.write_text(source() if text is None else text)
        self.screen = None
        wrapper = ()
        if terminal:
            self.screen, theirs = pty.openpty()
            wrapper = (sys.executable, "-c", ON_TERMINAL, os.ttyname(theirs))
        super().__init__(folder, "model.py", "--reload", *where, *options, wrapper=wrapper, **more)
        if terminal:
            self.wait_for_screen = threading.Thread(target=self._read_screen, daemon=True)
            self.wait_for_screen.start()
            until_now(lambda: "watches" in self.output, "the terminal to be opened", 40, lambda: self.output)
            os.close(theirs)

    def _read_screen(self):
        with contextlib.suppress(OSError):  # nobody has the terminal any more
            while True:
                text = os.read(self.screen, 1 << 16).decode(errors="replace")
                self.output += text.replace("\r\n", "\n")

    def said(self, words, times=1):
        """Wait until `words` were written so often."""
        until_now(lambda: self.output.count(words) >= times, f"{words!r}, {times} times", 40, lambda: self.output)

    def ready(self):
        self.said("ready on")
        until_now(lambda: "documentation" in self.output or "unix:" in self.output, "the address", 20)
        self.address = self.output.partition("ready on ")[2].split()[0]
        return self

    def edit(self, text):
        """Change the model in one step, as editors do."""
        draft = self.folder / "draft.txt"
        draft.write_text(text)
        draft.replace(self.file)

    def ask(self):
        """The answer on a new connection, or None where the service does not answer yet."""
        unix = self.address.startswith("unix:")
        path = self.address.removeprefix("unix:") if unix else None
        transport = httpx.HTTPTransport(uds=path, verify=False)  # to read every authority takes 18 ms of CPU
        with httpx.Client(base_url="http://test" if unix else self.address, transport=transport, timeout=40) as client:
            found = client.post("/predict", json=0)
        return found.json() if found.status_code == 200 else None

    def answers(self, answer):
        until_now(lambda: self.ask() == answer, f"the answer {answer!r}", 40, lambda: self.output)

    def child(self):
        """The process that serves."""
        (worker,) = self.workers()
        status = Path(f"/proc/{worker}/status").read_text()
        return int(status.partition("PPid:")[2].split()[0])

    def end(self):
        self.hang_up()
        self.destroy()
        if self.screen is not None:
            os.close(self.screen)


@pytest.fixture
def reloaded(tmp_path):
    with contextlib.ExitStack() as servers:

        def start(*options, **more):
            server = Reloaded(tmp_path, *options, **more)
            servers.callback(server.end)
            return server

        yield start


class Asker:
    """A client that asks all the time, on connections that it keeps or on a new one each time; failures are kept.

    It pauses after each answer, for as long as some take: else two of them leave no CPU to what is tested.
    """

    def __init__(self, address, *, keep):
        self._keep = keep
        self._host, self._port = address.removeprefix("http://").split(":")
        self.answers, self.refusals, self.failures = [], 0, []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self):
        connection = http.client.HTTPConnection(self._host, int(self._port), timeout=60)
        with contextlib.closing(connection):
            while not self._over.is_set():
                self._ask_once(connection)

    def _ask_once(self, connection):
        try:
            connection.request("POST", "/predict", b"0", {"content-type": "application/json"})
            answer = connection.getresponse()
            body = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
            connection.close()
            return
        if answer.status == 200:
            self.answers.append(body)
        elif answer.status == 503 and answer.headers["retry-after"] and "not-ready" in body["type"]:
            self.refusals += 1  # told when to come again
            self._over.wait(0.01)
        else:
            self.failures.append(f"{answer.status}: {body}")
        if not self._keep:
            connection.close()
        self._over.wait(0.02)

    def end(self):
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def edits(folder, count):
    """What is written, and the answer that shows it, or None where the old service serves on."""
    found = []
    for n in range(count):
        (folder / f"beside{n}.txt").write_text(f"ANSWER = 'file {n}'\n")
        found += [
            (source(f"'{n}{n}'"), f"{n}{n}"),
            (source(f"'{n}{n}'") + "\nx +* 1\n", None),
            (source("beside.ANSWER", imports=f"import beside{n} as beside"), f"file {n}"),
            (source(f"'stage {n}'", stage=f"Stage{n}"), f"stage {n}"),
            (source("self.said", setup=f"self.said = 'setup {n}'"), f"setup {n}"),
        ]
    return found[:count]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("count", "terminal"),
    [
        pytest.param(20, False, marks=pytest.mark.night, id="twenty"),
        pytest.param(3, True, marks=pytest.mark.smoke, id="three, in a terminal"),
    ],
)
def test_edits_fail_no_request(reloaded, tmp_path, count, terminal):
    server = reloaded(terminal=terminal).ready()
    askers = [Asker(server.address, keep=True), Asker(server.address, keep=False)]
    broken, last = 0, "a"
    for number, (text, answer) in enumerate(edits(tmp_path, count)):
        if "beside" in text:  # a new file comes with the edit
            (tmp_path / f"beside{number // 5}.txt").rename(tmp_path / f"beside{number // 5}.py")
        server.edit(text)
        if answer is None:
            broken += 1
            server.said(SERVES_ON, broken)
            assert server.output.count("SyntaxError") == broken
        last = answer or last
        server.answers(last)
        if "Stage" in last:
            assert last in server.health()["services"]["service"]["stages"]
    for asker in askers:
        # Not at once: its last request may have come before the service was ready, and was told when to come again.
        until_now(lambda asker=asker: asker.answers[-1:] == [last], "its last answer", 40)
        asker.end()
        assert asker.failures == []
        assert len(asker.answers) > count
    assert not list(tmp_path.glob("__pycache__/model*"))
    server.hang_up()
    if terminal:
        os.write(server.screen, b"\x03")  # Ctrl-C
        assert server.wait() == 0
        assert "forcing exit" not in server.output
        assert server.output.count("SIGINT: shutting down, waiting") == 1
    else:
        server.stop()


@pytest.mark.smoke
def test_a_service_that_fails_or_is_killed_waits_for_a_change_and_requests_wait_with_it(reloaded):
    server = reloaded(text=source(setup="1 / 0"))
    server.said("ZeroDivisionError")
    server.said("exit status 1; waiting for a change; requests are queued until then")
    server.edit(source("'mended'"))
    server.ready()
    server.answers("mended")
    os.kill(server.child(), signal.SIGKILL)
    server.said("the service exited: signal SIGKILL; waiting for a change")
    server.hang_up()
    with socket.create_connection(("127.0.0.1", server.port)) as waiting:
        waiting.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        server.edit(source("'again'"))
        waiting.settimeout(40)
        assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 200")
    server.stop()


def test_an_import_that_hangs_is_given_up_for_the_next_edit(reloaded, tmp_path):
    server = reloaded().ready()
    server.edit(source() + "\nopen('hangs', 'w').close()\nwhile True: pass\n")
    server.until((tmp_path / "hangs").exists)
    assert server.ask() == "a"
    server.edit(source("'b'"))
    server.answers("b")
    server.hang_up()
    server.stop()


LOADS_UNTIL = "import os, time\n        while not os.path.exists('go'): time.sleep(0.005)"


def test_a_line_takes_the_place_of_the_one_that_shows_what_loads(reloaded):
    server = reloaded(text=source(setup=LOADS_UNTIL), terminal=True, env={"TERM": "xterm"})
    server.said("penstock: service: ")  # what still loads
    server.edit(source("'b'"))
    server.said("changed: model.py")
    assert "\r\x1b[Kpenstock: changed: model.py\n" in server.output
    server.ready()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_to_the_parent_ends_both(reloaded, number):
    server = reloaded().ready()
    server.stop(number)
    assert server.output.count("stopped") == 1


def test_a_signal_that_interrupts_no_wait_of_the_event_loop_is_seen_at_once(reloaded):
    server = reloaded(text="x +* 1\n")
    server.said("waiting for a change")
    others = [int(entry.name) for entry in Path(f"/proc/{server.pid}/task").iterdir() if entry.name != str(server.pid)]
    assert ctypes.CDLL(None).tgkill(server.pid, others[0], signal.SIGTERM) == 0
    assert server.wait() == 0


def test_signals_reach_the_service_and_a_second_ends_one_that_stands_still(reloaded):
    server = reloaded().ready()
    server.signal(signal.SIGHUP)
    server.said("SIGHUP: nothing to reload: no certificate")
    server.signal(signal.SIGUSR1)
    server.said("SIGUSR1: health")
    child = server.child()
    server.hang_up()
    os.kill(child, signal.SIGSTOP)
    server.until(lambda: stands_still(child))
    server.signal(signal.SIGINT)
    server.until(lambda: pending(child, signal.SIGINT))
    server.signal(signal.SIGQUIT)
    assert server.wait() == 128 + signal.SIGKILL
    assert "the service did not exit in time: killing it" in server.output


def test_a_killed_parent_takes_all_with_it(reloaded):
    server = reloaded().ready()
    workers = server.workers()
    server.hang_up()
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL  # and sees that nothing is left
    assert not any(map(running, workers))


def test_a_variable_switches_it_on_each_line_is_json_if_asked_and_every_socket_is_kept(tmp_path, log_lines):
    (tmp_path / "model.py").write_text(source())
    where = ("--port", "0", "--host", "127.0.0.1", "--host", "127.0.0.2", "--uds", "in.sock")
    server = Server(tmp_path, "model.py", *where, "--log-format", "json", env={"PENSTOCK_RELOAD": "1"})

    def told(words, times=1):
        until_now(lambda: server.output.count(words) >= times, f"{words!r}, {times} times", 40, lambda: server.output)

    try:
        told("ready on unix:in.sock")
        before = (tmp_path / "in.sock").stat().st_ino
        (tmp_path / "model.py").write_text("x +* 1\n")
        told(SERVES_ON)
        (tmp_path / "model.py").write_text(source("'b'"))
        told("ready on unix:in.sock", 2)
        assert (tmp_path / "in.sock").stat().st_ino == before
        addresses = re.findall(r"ready on ([^\s\"]+)", server.output)
        assert addresses[:3] == addresses[3:]
        first, second, unix = addresses[:3]
        assert (second, unix) == (first.replace("127.0.0.1", "127.0.0.2"), "unix:in.sock")
        for address in (first, second):
            assert httpx.post(f"{address}/predict", json=0, trust_env=False, timeout=40).json() == "b"
        server.address = f"unix:{tmp_path / 'in.sock'}"
        assert server.http.post("/predict", json=0).json() == "b"
        server.hang_up()
        server.stop()  # which looks that the socket's file has gone
        assert [line["message"] for line in log_lines(server)][-1] == "stopped"
    finally:
        server.hang_up()
        server.destroy()


@pytest.mark.night
def test_what_fails_is_logged_where_only_warnings_are(tmp_path):
    (tmp_path / "model.py").write_text(source(setup="open('set up', 'w').close()"))
    server = Server(tmp_path, "model.py", "--reload", "--port", "0", "--log-format", "json", "--log-level", "warning")

    def said(level, words):
        lines = [json.loads(line) for line in server.output.splitlines()]
        return any(line["level"] == level and words in line["message"] for line in lines)

    try:
        server.until((tmp_path / "set up").exists)
        (tmp_path / "model.py").write_text("x +* 1\n")
        server.until(lambda: said("warning", "SyntaxError") and said("warning", SERVES_ON))
        (tmp_path / "model.py").write_text(source(setup="1 / 0"))
        server.until(lambda: said("error", "waiting for a change"))
        assert "changed: " not in server.output
        server.stop()
    finally:
        server.destroy()


@pytest.mark.night
def test_two_services_are_reloaded_together(tmp_path):
    (tmp_path / "model.py").write_text(source())
    (tmp_path / "other.py").write_text(source(more=", name='other'"))
    server = Server(tmp_path, "model.py", "other", "--reload", "--port", "0")
    try:
        server.ready()
        assert server.http.post("/other/predict", json=0).json() == "a"
        server.hang_up()
        (tmp_path / "other.py").write_text(source("'b'", more=", name='other'"))
        until_now(lambda: server.output.count("ready on") == 2, "the second start", 40, lambda: server.output)
        assert server.http.post("/other/predict", json=0).json() == "b"
        assert server.http.post("/service/predict", json=0).json() == "a"
        server.hang_up()
        server.stop()
    finally:
        server.hang_up()
        server.destroy()


@pytest.mark.night
def test_a_working_folder_that_is_replaced_is_served_as_it_is_now(reloaded, tmp_path):
    server = reloaded().ready()
    new = tmp_path.with_name(f"{tmp_path.name}-new")
    new.mkdir()
    (new / "model.py").write_text(source("'b'"))
    tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-old"))
    new.rename(tmp_path)
    server.answers("b")
    server.edit(source("'c'"))
    server.answers("c")
    server.hang_up()
    server.stop()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--tls-cert", "none.pem", "--tls-key", "none.pem"), 1, "cannot be used"),
        (("--max-in-flight", "0"), 2, "--max-in-flight (or PENSTOCK_MAX_IN_FLIGHT) must be at least 1, got 0"),
    ],
)
def test_what_no_edit_can_mend_ends_it(tmp_path, options, status, words):
    (tmp_path / "model.py").write_text(source())
    found = spoken(tmp_path, "serve", "model.py", "--reload", "--port", "0", *options)
    assert found.status == status
    assert words in found.refusal


def test_without_watchfiles_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(source())
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    found = spoken(tmp_path, "serve", "model.py", "--reload")
    assert found.status == 1
    assert "pip install watchfiles" in found.refusal
