"""A page in Chromium that loads the TypeScript client, from another origin than the server that it calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser, browsing, chromium
from web_servers import Asked, web_server


@contextmanager
def showing(page: bytes, package: Path, profile: Path) -> Iterator[tuple[Browser, str]]:
    """A browser that shows `page`, and its origin; it has loaded `./esm` of the package once its title is "loaded"."""
    program = chromium()
    if program is None:
        pytest.skip("Chromium is needed to call from a page: `make browsers` installs it")

    def answer(asked: Asked) -> None:
        if asked.target == "/":
            asked.answer(body=page, Content_Type="text/html")
        elif asked.target.startswith("/esm/"):
            path = package / "dist" / asked.target.removeprefix("/")
            asked.answer(body=path.read_bytes(), Content_Type="text/javascript")
        else:
            asked.answer(404)

    with web_server(answer) as site, browsing(program, profile) as browser:
        browser.go(f"{site.url}/", 1280)
        browser.until("document.title === 'loaded'")
        yield browser, site.url
