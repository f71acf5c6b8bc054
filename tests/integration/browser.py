"""A Chromium without a window, driven over the pipe of its DevTools protocol: a test says where to go, and looks.

It finds no host by name, and reaches no address but 127.0.0.1.  It remembers every request of a page.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_SECONDS = 40.0
"""Only a broken test waits this long."""
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which needs namespaces that a container may not have; only pages of ours are shown
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    """The program, or None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """The process, and one page."""

    def __init__(self, program: str, folder: Path) -> None:
        commands, self._commands = os.pipe()
        self._messages, messages = os.pipe()

        def connect() -> None:
            # The protocol has fixed numbers: 3 is read, 4 is written.  Copies first: either pipe may be 3 or 4 already.
            reading, writing = os.dup(commands), os.dup(messages)
            while reading in (3, 4):
                reading = os.dup(reading)
            while writing in (3, 4):
                writing = os.dup(writing)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            (program, *OPTIONS, f"--user-data-dir={folder}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
            start_new_session=True,
        )
        os.close(commands)
        os.close(messages)
        self._kept = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[dict[str, Any]] = []
        """Every request of the page, as `Network.requestWillBeSent` tells it."""
        self.answers: dict[str, int] = {}
        """The status of each answer by its address."""
        self.complaints: list[str] = []
        """What the page wrote to its console as a warning or an error, and what it raised."""
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **parameters: Any) -> Any:
        """Call the browser, and wait for what it returns."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            heard = self._hear(deadline)
            if heard.get("id") == self._number:
                assert "error" not in heard, (method, heard["error"])
                return heard["result"]

    def _hear(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._kept:
            ready, _, _ = select.select([self._messages], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            piece = os.read(self._messages, 1 << 20)
            assert piece, "Chromium has ended"
            self._kept += piece
        line, _, self._kept = self._kept.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        self._note(heard.get("method"), heard.get("params", {}))
        return heard

    def _note(self, method: str | None, told: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(told["request"])
            case "Network.responseReceived":
                self.answers[told["response"]["url"]] = told["response"]["status"]
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("warning", "error"):
                self.complaints.append(told["entry"]["text"])

    def go(self, address: str, width: int) -> None:
        """Show a page, `width` pixels wide; below 500 as a telephone does."""
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        self.tell("Page.navigate", url=address)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        outcome = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in outcome, outcome
        return outcome["result"].get("value")

    def until(self, expression: str) -> Any:
        """What `expression` says as soon as it says something true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            # The page is asked again after its next frame, or sooner: nobody sleeps here.
            found = self.ask(f"new Promise(done => setTimeout(() => done({expression}), 20))")
            if found:
                return found
            assert time.monotonic() < deadline, (expression, self.complaints, self.ask("document.body.innerText"))

    def type(self, text: str) -> None:
        """Type into the field that has the focus."""
        self.tell("Input.insertText", text=text)

    def press_enter(self) -> None:
        """Press the key."""
        for kind in ("keyDown", "keyUp"):
            self.tell(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
            )

    def picture(self, path: Path) -> None:
        """Write what the page looks like, all of its height."""
        size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser, and wait until it has ended."""
        try:
            self._session = None
            self.tell("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        finally:
            os.close(self._commands)
            os.close(self._messages)
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextmanager
def browsing(program: str, folder: Path) -> Iterator[Browser]:
    """A browser for a while; its profile lies in `folder`."""
    browser = Browser(program, folder)
    try:
        yield browser
    finally:
        browser.close()
