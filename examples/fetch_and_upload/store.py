"""A feature service that also takes results: `python store.py PORT`; with 0 it chooses one, and says which."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOK_UP_SECONDS = 0.05


class Store(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class Exchange(BaseHTTPRequestHandler):
    scores: dict[str, bytes] = {}

    def do_GET(self) -> None:
        kind, _, name = self.path.lstrip("/").partition("/")
        if kind == "features":
            time.sleep(LOOK_UP_SECONDS)
            self.answer(200, json.dumps({"user": name, "visits": len(name), "orders": len(name) % 3}).encode())
        elif kind == "count":
            self.answer(200, str(len(self.scores)).encode())
        else:
            self.answer(404)

    def do_PUT(self) -> None:
        self.scores[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(204)

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal is for the demonstration."""


if __name__ == "__main__":
    with Store(("127.0.0.1", int(sys.argv[1])), Exchange) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
