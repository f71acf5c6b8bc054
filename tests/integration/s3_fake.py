"""As much of S3 as an object store's client speaks: objects in memory, and failures that a test asks for."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape


class FakeS3(ThreadingHTTPServer):
    """Buckets come into being as they are named; paths are ``/bucket/key``."""

    daemon_threads = False
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.objects: dict[str, bytes] = {}
        self.kinds: dict[str, str] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        """The parts of uploads that are neither complete nor given up."""
        self.log: list[str] = []
        self.open: list[socket.socket] = []
        self.fails: Callable[[str, str], int] = lambda method, path: 0
        """A status to answer with instead of doing what is asked; 0 for none, -1 to cut the answer off."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeS3

    def setup(self) -> None:
        super().setup()
        self.server.open.append(self.connection)

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query, keep_blank_values=True)
        self.name = unquote(url.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.log.append(f"{self.command} {self.path}")
        status = self.server.fails(self.command, self.path)
        if status > 0:
            self.answer(status, b"<Error><Code>Asked</Code><Message>asked for</Message></Error>")
        else:
            getattr(self, f"on_{self.command}")(cut=status < 0)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def on_GET(self, cut: bool) -> None:
        body = self.server.objects.get(self.name)
        if body is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        kind = self.server.kinds.get(self.name, "")
        modified = "Sun, 22 Nov 2026 00:00:00 GMT"
        self.answer(200, body, cut=cut, ETag=self.tag(body), Last_Modified=modified, Content_Type=kind)

    on_HEAD = on_GET

    def on_PUT(self, cut: bool) -> None:
        source = self.headers.get("x-amz-copy-source")
        if "uploadId" in self.query:
            self.server.uploads[self.query["uploadId"][0]][int(self.query["partNumber"][0])] = self.body
        elif source is not None:
            found = self.server.objects.get("/" + unquote(source).lstrip("/"))
            if found is None:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            self.store(found, self.server.kinds["/" + unquote(source).lstrip("/")])
            tag = f"<CopyObjectResult><ETag>{self.tag(found)}</ETag></CopyObjectResult>"
            self.answer(200, tag.encode())
            return
        else:
            self.store(self.body, self.headers.get("Content-Type", ""))
        self.answer(200, b"", ETag=self.tag(self.body))

    def on_POST(self, cut: bool) -> None:
        if "uploads" in self.query:
            upload = f"upload-{len(self.server.log)}"
            self.server.uploads[upload] = {}
            self.server.kinds[self.name] = self.headers.get("Content-Type", "")
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            self.answer(200, text.encode())
        elif "delete" in self.query:
            keys = [unescape(part.partition("<")[0]) for part in self.body.decode().split("<Key>")[1:]]
            for key in keys:
                self.server.objects.pop(f"{self.name.rstrip('/')}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        else:
            parts = self.server.uploads.pop(self.query["uploadId"][0])
            body = b"".join(parts[number] for number in sorted(parts))
            self.server.objects[self.name] = body
            text = f"<CompleteMultipartUploadResult><ETag>{self.tag(body)}</ETag></CompleteMultipartUploadResult>"
            self.answer(200, text.encode())

    def on_DELETE(self, cut: bool) -> None:
        if "uploadId" in self.query:
            self.server.uploads.pop(self.query["uploadId"][0], None)
        else:
            self.server.objects.pop(self.name, None)
        self.answer(204, b"")

    def store(self, body: bytes, kind: str) -> None:
        self.server.objects[self.name] = body
        self.server.kinds[self.name] = kind

    def tag(self, body: bytes) -> str:
        return f'"{hashlib.md5(body).hexdigest()}"'

    def answer(self, status: int, body: bytes, cut: bool = False, **fields: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **fields}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def fake_s3() -> Iterator[FakeS3]:
    """A server that lives as long as the block."""
    with FakeS3() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            for sock in server.open:  # the client keeps connections for its next request
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
