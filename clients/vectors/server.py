"""The scripted server of the vectors: it answers each try as the vector in hand says, and keeps what it was sent.

`README.md` says how a client is run against it.  It needs Python 3.11 or later and nothing else:

    python3 clients/vectors/server.py

The first line that it prints is JSON: the port that it listens on, and a port on which every connection is refused.  It
ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from http import HTTPStatus
from typing import Any

SCRIPT, LOG = "/vectors/script", "/vectors/log"
LARGEST_BODY_BYTES = 64 * 1024 * 1024
Json = dict[str, Any]


class ScriptedServer:
    """Answers by a script: for the id of a request a list with an answer for each of its tries."""

    def __init__(self) -> None:
        self._answers: dict[str, list[Json]] = {}
        self._log: list[Json] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection, until either end closes it."""
        try:
            while (head := await _read_head(reader)) is not None:
                method, target, headers = head
                length = int(headers.get("content-length", "0"))
                if length > LARGEST_BODY_BYTES:
                    break
                body = await reader.readexactly(length)
                if not await self._answer(writer, method, target, headers, body):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        except asyncio.CancelledError:
            pass  # the program ends; Python 3.11 prints a traceback for each connection whose task is cancelled
        finally:
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> bool:
        """Whether the connection goes on."""
        if target == SCRIPT:
            self._answers, self._log = json.loads(body)["answers"], []
            return await _write(writer, *_whole({"status": 204}, ""))
        if target == LOG:
            return await _write(writer, *_whole({"status": 200, "json": self._log}, ""))
        request_id, attempt = headers.get("x-request-id", ""), headers.get("x-attempt", "")
        self._log.append(
            {
                "id": request_id,
                "attempt": int(attempt) if attempt.isdigit() else None,
                "method": method,
                "path": target,
                "headers": headers,
                "base64": base64.b64encode(body).decode(),
            }
        )
        answers = self._answers.get(request_id, [])
        if not attempt.isdigit() or not 1 <= int(attempt) <= len(answers):
            told = {"status": 599, "text": f"the vector has no answer for try {attempt!r} of {request_id!r}"}
            return await _write(writer, *_whole(told, request_id))
        answer = answers[int(attempt) - 1]
        head, payload = _whole(answer, request_id)
        match answer.get("drop"):
            case None:
                return await _write(writer, head, payload)
            case "before_head":
                pass
            case "after_head":
                await _write(writer, head, b"")
            case "half_body":
                await _write(writer, head, payload[: len(payload) // 2])
            case other:
                raise ValueError(f"there is no drop {other!r}")
        return False


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """The method, the target and the header of the next request; None at the end of the connection."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = text[:-4].split("\r\n")
    method, target, _ = first.split(" ")
    fields = (line.partition(":") for line in lines)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in fields}


async def _write(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> bool:
    writer.write(head + body)
    await writer.drain()
    return True


def _whole(answer: Json, request_id: str) -> tuple[bytes, bytes]:
    """The head and the body of an answer as the vectors write it."""
    status = answer.get("status", 200)
    headers = {"x-request-id": request_id} if request_id else {}
    body = b""
    if "json" in answer:
        headers["content-type"] = "application/json"
        body = json.dumps(answer["json"]).encode()
    elif "problem" in answer:
        headers["content-type"] = "application/problem+json"
        body = json.dumps(_problem(answer["problem"], status, request_id)).encode()
    elif "text" in answer:
        headers["content-type"] = "text/html"
        body = answer["text"].encode()
    elif "base64" in answer:
        headers["content-type"] = "application/octet-stream"
        body = base64.b64decode(answer["base64"])
    headers |= {name.lower(): value for name, value in answer.get("headers", {}).items()}
    headers["content-length"] = str(len(body))
    names = {known.value: known.phrase for known in HTTPStatus}
    lines = [f"HTTP/1.1 {status} {names.get(status, 'Unknown')}", *(f"{name}: {headers[name]}" for name in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body


def _problem(told: Json, status: int, request_id: str) -> Json:
    """A problem with the members that every one has; a `type` of one word is one of Penstock's."""
    kind = told.get("type", "about:blank")
    if ":" not in kind:
        kind = f"urn:penstock:problem:{kind}"
    rest = {name: value for name, value in told.items() if name != "type"}
    return {"type": kind, "title": "A title", "status": status, "detail": "a detail", "request_id": request_id, **rest}


async def main() -> None:
    """Serve until standard input ends."""
    refusing = socket.socket()
    refusing.bind(("127.0.0.1", 0))  # and nobody listens
    server = await asyncio.start_server(ScriptedServer().serve, "127.0.0.1", 0)
    ports = {"port": server.sockets[0].getsockname()[1], "refused_port": refusing.getsockname()[1]}
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    refusing.close()


if __name__ == "__main__":
    asyncio.run(main())
