"""`GET /docs`: a page that shows the OpenAPI document to people, made by Swagger UI.

The files of Swagger UI are in the folder `assets`, where the build of Penstock puts them (`setup.py`).

The page works without a network: every file comes from this server, and the page's policy forbids the browser to ask
any other.  The page works under any mount point, because its links are relative.
"""

from __future__ import annotations

import html
import json
from functools import partial
from pathlib import Path

from penstock.server.application import HttpRequest, Response
from penstock.server.protocols.route import PageRoute
from penstock.server.status import Problems

ASSETS: dict[str, bytes] = {
    "swagger-ui.css": b"text/css; charset=utf-8",
    "swagger-ui-bundle.js": b"text/javascript; charset=utf-8",
    "favicon-32x32.png": b"image/png",
}
"""The only files that are read: a request cannot name another."""
ASSET_FOLDER = Path(__file__).parent / "assets"

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"font-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'self'"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" type="image/png" href="docs/favicon-32x32.png">
</head>
<body>
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

# Without validatorUrl the page would send the document to a public checker to draw a badge.
_SETTINGS = {"url": "openapi.json", "dom_id": "#docs", "deepLinking": True, "validatorUrl": None}
_START = f"window.ui = SwaggerUIBundle({json.dumps(_SETTINGS)});\n"


def docs_routes(title: str, problems: Problems) -> dict[bytes, PageRoute]:
    """The page, its start script and its assets, by path."""
    page = _PAGE.format(title=html.escape(title)).encode()
    routes = {
        b"/docs": PageRoute("/docs", partial(_show, page), problems),
        b"/docs/start.js": PageRoute("/docs/start.js", partial(_start, _START.encode()), problems),
    }
    for name, media in ASSETS.items():
        routes[b"/docs/" + name.encode()] = PageRoute(f"/docs/{name}", Asset(name, media), problems)
    return routes


def _show(page: bytes, _request: HttpRequest) -> Response:
    headers = ((b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff"))
    return Response(200, b"text/html; charset=utf-8", page, headers)


def _start(script: bytes, _request: HttpRequest) -> Response:
    return Response(200, b"text/javascript; charset=utf-8", script)


class Asset:
    """One file of Swagger UI, read when it is first asked for and kept."""

    def __init__(self, name: str, media: bytes) -> None:
        self._name = name
        self._media = media
        self._content: bytes | None = None

    def __call__(self, _request: HttpRequest) -> Response:
        """The file."""
        if self._content is None:
            self._content = (ASSET_FOLDER / self._name).read_bytes()
        return Response(200, self._media, self._content, ((b"cache-control", b"max-age=3600"),))
