"""Here belongs what needs real sockets but no service: a listener in this process, over a small application.

The listener runs in a thread with its own loop; plain blocking sockets connect to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
import ssl
import subprocess
import threading
import weakref

import pytest
import uvloop
from waiting import until_now

from penstock.config import ServerOptions
from penstock.hosting.loop_clock import LoopClock
from penstock.server.application import Response
from penstock.server.http1.listener import Listener

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Pages(bytearray):
    """The pages of a piece.  A weak reference tells when the last view of them is gone."""


class SmallApp:
    """`/echo` answers its body, `/big` 32 MiB, `/later` only when `release` is called; `/no` is refused.

    Bodies of `shm_threshold` bytes or more get pieces.
    """

    def __init__(self) -> None:
        self.slab_from = math.inf
        self.arriving = []
        self.pieces = []
        self.kinds = []
        """The types of the bodies that were handled."""
        self.big = bytes(32 * 1024 * 1024)
        self.waiting = []
        self.cancelled = []
        self.statuses = []
        self.held = 0
        self.most_held = 0
        self.nobodys = 0
        """Bytes that were held for no request."""

    def admit(self, request):
        request.id = b"id"
        return self.refuse(404, "no", request) if request.path == b"/no" else None

    def handle(self, request, reply):
        self.kinds.append(type(request.body))
        if request.path == b"/later":
            self.waiting.append(reply)
        else:
            reply(Response(200, b"text/plain", self.big if request.path == b"/big" else request.body))

    def release(self):
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            reply(Response(200, b"text/plain", b"released"))

    def cancel(self, request):
        self.cancelled.append(request.path)

    def refuse(self, status, detail, request=None):
        return Response(status, b"text/plain", detail.encode())

    def piece_for(self, request, body):
        if body.chunked or body.announced < self.slab_from:
            return None
        pages = Pages(body.announced)
        self.pieces.append(weakref.ref(pages))
        self.arriving.append(body)
        return memoryview(pages)

    def arrived(self, request, body):
        self.arriving.remove(body)

    def lying(self):
        """How many pieces somebody holds."""
        return sum(piece() is not None for piece in self.pieces)

    def hold_answer(self, request, nbytes):
        self.hold(request, nbytes)

    def any_answers_overfull(self):
        return False

    def hold(self, request, nbytes):
        self.held += nbytes
        self.nobodys += nbytes if request is None and nbytes > 0 else 0
        self.most_held = max(self.most_held, self.held)

    def overfull(self, request, own):
        return None

    def body_due(self, request):
        return request.arrived + 60.0

    def answered(self, request, status, nbytes):
        self.statuses.append(status)


class Server:
    """A listener that runs in another thread."""

    def __init__(self, options: ServerOptions, sockets=(), new_loop=uvloop.new_event_loop) -> None:
        self.options = options
        self.app = SmallApp()
        self.listener = Listener(self.app, options, LoopClock(), sockets=sockets)
        self.loop = new_loop()
        self.problems = []
        self.loop.set_exception_handler(lambda loop, context: self.problems.append(context))
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        try:
            self.run(self.listener.start())
        except BaseException:
            self._end_loop()
            raise

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def call(self, function):
        """Run `function` on the loop's thread."""

        async def call():
            return function()

        return self.run(call())

    def until(self, condition, within=30.0):
        """Wait until `condition()`, asked on the loop's thread, is true."""
        until_now(lambda: self.call(condition), str(condition), within)

    @property
    def port(self) -> int:
        return int(self.listener.addresses[0].rpartition(":")[2])

    def stop(self, grace=0.0):
        self.run(self.listener.close(grace))
        self._end_loop()
        gc.collect()
        assert self.problems == []
        assert self.app.held == 0
        assert self.app.arriving == []
        assert self.app.lying() == 0

    def _end_loop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(20)
        self.loop.close()


class Client:
    """One blocking connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(20)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of the next answer."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self.sock.recv(1)
            assert byte, "the connection ended instead of an answer"
            head += byte
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        body = bytearray()
        while len(body) < length:
            piece = self.sock.recv(min(1 << 20, length - len(body)))
            assert piece
            body += piece
        return int(head.split(b" ")[1]), head, bytes(body)

    def ended(self) -> bool:
        """Whether the server ends the connection, without another byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """A listener looks often for who is late: what is awaited here is a limit of a test's own, not a second more."""
    monkeypatch.setattr("penstock.server.http1.listener.SWEEP_INTERVAL_SECONDS", 0.05)


@pytest.fixture
def serve():
    """Starts servers with these options; they are stopped, and checked, when the test is over."""
    servers = []

    def start(sockets=(), new_loop=uvloop.new_event_loop, **options):
        servers.append(Server(ServerOptions(**{"port": 0, **options}), sockets, new_loop))
        return servers[-1]

    yield start
    for server in servers:
        if not server.loop.is_closed():
            server.stop()


@pytest.fixture
def knock():
    """Connects to a server, by whatever way it listens, or `at` one of its addresses."""
    with contextlib.ExitStack() as opened:

        def connect(server, context: ssl.SSLContext | None = None, small_buffer=False, at=None):
            options = server.options
            host = at or (options.host or ("unix" if options.uds else "127.0.0.1"))
            family = socket.AF_UNIX if host == "unix" else socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = opened.enter_context(contextlib.closing(socket.socket(family)))
            if small_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(options.uds if host == "unix" else (host, server.port))
            if context is not None:
                sock = opened.enter_context(contextlib.closing(context.wrap_socket(sock)))
            return Client(sock)

        yield connect


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)
