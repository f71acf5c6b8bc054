"""`penstock health` against real servers, and against what only listens where one should."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from served import PATIENCE_SECONDS, PENSTOCK, serving
from spoken import spoken

from penstock.cli.asking_ready import Unreachable, ask_ready
from penstock.cli.server_address import address_of

READY, NOT_READY, UNREACHABLE, WRONGLY_ASKED = 0, 1, 2, 3


def ask(*words, env=None, folder="."):
    """What `penstock health` ends with, and what it prints."""
    return spoken(Path(folder), "health", *words, env=env)


def ask_by_program(*words, env=None, folder=None, **options):
    """What the program ends with, and what it prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [*PENSTOCK, "health", *words],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        cwd=folder, env={**inherited, **(env or {})}, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server at a port and at the socket `a b.sock` in its folder."""
    where = ("--port", "0", "--host", "127.0.0.1", "--uds", "a b.sock")
    with serving(tmp_path_factory.mktemp("shared"), where=where) as server:
        server.wait_for("ready on unix:")
        yield server


@pytest.fixture
def refusing():
    """The port of a socket that is nobody's to listen at, and so refuses each connection."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.smoke
def test_a_server_that_is_ready_is_0_by_its_url_and_by_the_variables(shared):
    port = str(shared.port)
    assert ask_by_program(shared.address) == (READY, "ready\n", "")
    assert ask(f"{shared.address}/readyz") == (READY, "ready\n", "")
    assert ask(env={"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_PORT": port}) == (READY, "ready\n", "")


def test_a_server_at_a_unix_socket_is_found_by_each_of_its_names(shared):
    path = str(shared.folder / "a b.sock")
    assert ask(f"unix:{path}") == (READY, "ready\n", "")
    assert ask(f"http+unix://{path.replace(' ', '%20')}") == (READY, "ready\n", "")
    assert ask("unix:a b.sock", folder=shared.folder) == (READY, "ready\n", "")
    assert ask_by_program(env={"PENSTOCK_UDS": path}) == (READY, "ready\n", "")


def test_a_certificate_that_nobody_has_signed_is_good_enough(serve, pair, tmp_path):
    path = str(tmp_path / "tls.sock")
    server = serve(*pair.options, where=("--port", "0", "--host", "127.0.0.1", "--uds", path))
    server.wait_for("ready on unix:")
    assert ask_by_program(server.address) == (READY, "ready\n", "")
    tls = {"PENSTOCK_TLS_CERT": str(pair.cert), "PENSTOCK_TLS_KEY": str(pair.key)}
    assert ask(env={"PENSTOCK_PORT": str(server.port), **tls}) == (READY, "ready\n", "")
    status, said, _ = ask(f"http://127.0.0.1:{server.port}")
    assert status == UNREACHABLE
    assert said.startswith(f"unreachable: http://127.0.0.1:{server.port}: ")
    assert ask(env={"PENSTOCK_UDS": path, **tls}) == (READY, "ready\n", "")
    assert ask(f"https+unix://{path}") == (READY, "ready\n", "")


def test_a_server_of_plain_http_is_unreachable_over_tls(shared):
    status, said, _ = ask(f"https://127.0.0.1:{shared.port}")
    assert status == UNREACHABLE
    assert said == f"unreachable: https://127.0.0.1:{shared.port}: the server does not use TLS: write http://\n"


WAITS = """
import time
from pathlib import Path
import penstock as ps

class Loading(ps.Stage):
    def setup(self):
        while not Path("loaded").exists():
            time.sleep(0.01)

    def predict(self, x: int) -> int:
        while x and not Path("open").exists():
            time.sleep(0.01)
        return x

service = ps.Service(ps.stage(Loading), name="mine", max_in_flight=1)
"""


def test_it_tells_what_a_server_is_doing_from_its_start_to_its_end(serve, tmp_path):
    path = str(tmp_path / "http.sock")
    server = serve("--unready-when-full", source=WAITS, where=("--uds", path), ready=False)
    server.until(Path(path).exists)
    status, said, _ = ask(f"unix:{path}")
    assert status == NOT_READY
    assert re.fullmatch(r"starting: mine is starting(: Loading is loading, \d+ s)?\n", said)
    (server.folder / "loaded").touch()
    server.ready()
    assert ask(f"unix:{path}") == (READY, "ready\n", "")
    wire = server.wire().post("/predict", 1)
    server.until(lambda: server.health()["state"] == "busy")
    assert ask(f"unix:{path}") == (NOT_READY, "busy: mine is busy\n", "")
    server.signal(signal.SIGTERM)
    server.wait_for("SIGTERM: shutting down, waiting")
    server.open_gate()
    assert wire.answer().json() == 1
    server.hang_up()
    assert server.wait() == 0
    assert ask(f"unix:{path}") == (UNREACHABLE, f"unreachable: unix:{path}: No such file or directory\n", "")


FAILS = """
import os
from pathlib import Path
import penstock as ps

class Broken(ps.Stage):
    def setup(self):
        if Path("broken").exists():
            raise OSError("no model here \\x1b[31m")

    def predict(self, x: int) -> int:
        os._exit(1)

service = ps.Service(ps.stage(Broken, retry=False), name="mine")
"""


def test_a_service_that_has_failed_is_1_and_the_reason_acts_on_no_terminal(serve):
    server = serve(source=FAILS)
    (server.folder / "broken").touch()
    assert server.http.post("/predict", json=0).status_code == 500

    def reason():
        status, said, _ = ask(server.address)
        return status == NOT_READY and said.startswith("failed: mine is failed: ") and said

    said = server.until(reason)
    assert "no model here" in said
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()


# -- what only listens there ------------------------------------------------------------------------------------------


@pytest.fixture
def listening():
    """Listens, and answers each connection with the pieces that are given; the URL."""
    with contextlib.ExitStack() as open_:
        done = threading.Event()

        def listen(*pieces, pause=0.0):
            door = open_.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer():
                with contextlib.suppress(OSError):
                    while True:
                        sock, _ = door.accept()
                        with sock, contextlib.suppress(OSError):
                            sock.recv(65536)
                            for piece in pieces:
                                sock.sendall(piece)
                                done.wait(pause)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            open_.callback(thread.join, PATIENCE_SECONDS)
            open_.callback(door.shutdown, socket.SHUT_RDWR)
            return f"http://127.0.0.1:{door.getsockname()[1]}"

        open_.callback(done.set)
        yield listen
        done.set()


def answered(status, body, *fields):
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields])
    return f"{head}\r\n\r\n".encode() + body


NO_HTTP = "closes the connection, sends too much or does not speak HTTP"
PROXY = b"<html>503 Service Unavailable</html>"


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (b"", NO_HTTP),
        (b"220 mail.example ESMTP\r\n", NO_HTTP),
        (b"\x15\x03\x03\x00\x02\x02\x46" * 100, NO_HTTP),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200, NO_HTTP),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000, NO_HTTP),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"state":"ready"}', NO_HTTP),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmany\r\n", NO_HTTP),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc", NO_HTTP),
        (b"HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\nOK", "unexpected status 200"),
        (answered("200 OK", b"OK"), "unexpected status 200"),
        (answered("200 OK", b'{"status":"UP"}'), "unexpected status 200"),
        (answered("200 OK", b'{"state":"ready"}' + b" " * 70_000), NO_HTTP),
        (b'HTTP/1.1 200 OK\r\n\r\n{"state":"ready"}' + b" " * 70_000, NO_HTTP),
        (answered("308 Permanent Redirect", b"", "Location: http://127.0.0.1:1/"), "unexpected status 308"),
        (answered("401 Unauthorized", b""), "unexpected status 401"),
        (answered("503 Service Unavailable", PROXY), "unexpected status 503"),
    ],
)
def test_what_answers_and_is_not_penstock_is_told_from_what_is(listening, piece, words):
    with pytest.raises(Unreachable) as found:
        ask_ready(address_of(listening(piece)), PATIENCE_SECONDS)
    assert str(found.value).startswith("the server is not Penstock: ")
    assert words in str(found.value)


def test_what_is_not_penstock_is_2_and_nothing_that_it_says_acts_on_a_terminal(listening):
    url = listening(b"\x1b[2J\x07\r\n\r\n")
    status, said, error = ask(url)
    assert (status, error) == (UNREACHABLE, "")
    assert said.startswith(f"unreachable: {url}: the server is not Penstock: it {NO_HTTP} (")
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("pieces", "pause"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n"], PATIENCE_SECONDS),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 1000, 0.05),
        ([b"HTTP/1.1 200 OK\r\n", *[b"a"] * 1000], 0.05),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", *[b" "] * 1000], 0.05),
    ],
    ids=["a head and no body", "goes on and on", "a head byte by byte", "a body byte by byte"],
)
def test_an_answer_that_is_not_whole_in_time_is_none(listening, pieces, pause):
    with pytest.raises(Unreachable, match=r"no response within 0\.3 s"):
        ask_ready(address_of(listening(*pieces, pause=pause)), 0.3)


def test_a_server_that_says_nothing_is_2_when_the_time_is_over(listening):
    url = listening(b"", pause=PATIENCE_SECONDS)
    assert ask(url, "--timeout", "0.3") == (UNREACHABLE, f"unreachable: {url}: no response within 0.3 s\n", "")


def test_where_nobody_listens_it_is_2_with_the_reason(tmp_path, refusing):
    (tmp_path / "file").touch()
    url = f"http://127.0.0.1:{refusing}"
    assert ask(url) == (UNREACHABLE, f"unreachable: {url}: Connection refused\n", "")
    assert ask("unix:file", folder=tmp_path) == (UNREACHABLE, "unreachable: unix:file: Connection refused\n", "")
    assert ask("unix:no", folder=tmp_path)[:2] == (UNREACHABLE, "unreachable: unix:no: No such file or directory\n")
    for url in (f"unix:{'a' * 200}", f"http://{'a' * 100}.invalid"):
        with pytest.raises(Unreachable, match="too long"):
            ask_ready(address_of(url), PATIENCE_SECONDS)


# -- the command ------------------------------------------------------------------------------------------------------


WRONG = [
    (["--no-such-flag"], {}, "unrecognized arguments: --no-such-flag"),
    (["unix:a", "unix:b"], {}, "unrecognized arguments: unix:b"),
    (["127.0.0.1:8000"], {}, "does not name a server"),
    (["--timeout", "soon"], {}, "--timeout: expected seconds, got 'soon'"),
    (["--timeout", "0"], {}, "--timeout must be more than 0"),
    (["--timeout", "nan"], {}, "--timeout must be more than 0"),
    (["--timeout", "inf"], {}, "at most 3600 seconds, got inf"),
    ([], {"PENSTOCK_PORT": "0"}, "pass the URL"),
    ([], {"PENSTOCK_PORT": "many"}, "PENSTOCK_PORT: expected an integer, got 'many'"),
]


@pytest.mark.parametrize(("words", "env", "told"), WRONG)
def test_what_is_wrongly_called_is_3_since_2_says_unreachable(words, env, told):
    status, said, error = ask(*words, env=env)
    assert (status, said) == (WRONGLY_ASKED, "")
    assert told in error
    assert "Traceback" not in error


@pytest.mark.smoke
def test_the_program_ends_with_3_where_it_is_wrongly_called():
    status, said, error = ask_by_program("--timeout", "soon")
    assert (status, said) == (WRONGLY_ASKED, "")
    assert "--timeout: expected seconds, got 'soon'" in error
    assert "Traceback" not in error


def test_the_help_says_what_the_statuses_mean():
    status, said, _ = ask("--help")
    assert status == 0
    assert "0 ready, 1 not ready, 2 unreachable" in " ".join(said.split())


def test_the_status_tells_where_nothing_can_be_printed(shared, refusing):
    assert ask_by_program(shared.address, stdout=None, preexec_fn=lambda: os.close(1))[0] == READY
    assert ask_by_program(f"http://127.0.0.1:{refusing}", stdout=None, preexec_fn=lambda: os.close(1))[0] == UNREACHABLE
    with Path("/dev/full").open("w") as full:
        assert ask_by_program(shared.address, stdout=full) == (READY, None, "")


def test_a_name_that_the_terminal_has_no_characters_for_is_printed_all_the_same(tmp_path):
    status, said, error = ask_by_program("unix:größe", env={"PYTHONIOENCODING": "ascii"}, folder=tmp_path)
    assert (status, error) == (UNREACHABLE, "")
    assert said == "unreachable: unix:gr\\xf6\\xdfe: No such file or directory\n"


def test_an_interrupt_ends_it_at_once(listening):
    asked = threading.Event()
    url = listening(b"", pause=PATIENCE_SECONDS)
    program = subprocess.Popen(
        [*PENSTOCK, "health", url, "--timeout", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        # It waits for an answer once it has sent its request: then its one socket is connected.
        while not asked.is_set() and program.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # it has closed one meanwhile
                links = [str(link.readlink()) for link in Path(f"/proc/{program.pid}/fd").iterdir()]
                if any(link.startswith("socket:") for link in links):
                    asked.set()
        program.send_signal(signal.SIGINT)
        said, error = program.communicate(timeout=PATIENCE_SECONDS)
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, said, error) == (130, "", "penstock: interrupted\n")


def test_it_imports_nothing_of_the_server_and_of_other_commands(refusing):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "penstock", "health", f"http://127.0.0.1:{refusing}"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == UNREACHABLE
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"http.client", "penstock.cli.asking_ready"} <= loaded, "the names are read from what Python prints"
    layers = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("penstock.")}
    assert layers <= {f"penstock.{name}" for name in (
        "chaos_text", "cli", "codec", "config", "core", "errors", "hosting", "log_level_text", "option_fields",
        "server_names", "spelling", "worker",
    )}  # fmt: skip
    assert (
        loaded & {"penstock.cli.main", "asyncio", "msgspec", "uvloop", "httptools", "logging", "rich", "numpy"} == set()
    )
