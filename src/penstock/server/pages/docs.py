"""`GET /docs`: a page that shows the OpenAPI document to people, made by Swagger UI.

The page itself is in the folder `docs_page`.  The files of Swagger UI are in the folder `assets`, where the build of
Penstock puts them (`setup.py`).

None of it tells anything of the services, so none of it asks for an API key: a browser could not send one.  The page
fetches `openapi.json`, and asks for the key if that does.

The page works without a network: every file comes from this server, and the page's policy forbids the browser to ask
any other.  The page works under any mount point, because its links are relative.
"""

from __future__ import annotations

from pathlib import Path

from penstock.hosting.guarded_log import guarded_logger
from penstock.server.application import HttpRequest, Response
from penstock.server.protocols.route import PageRoute
from penstock.server.status import Problems

PAGE_FOLDER = Path(__file__).parent / "docs_page"
ASSET_FOLDER = Path(__file__).parent / "assets"

STYLE = b"text/css; charset=utf-8"
SCRIPT = b"text/javascript; charset=utf-8"
OWN = {"start.js": SCRIPT, "page.css": STYLE}
"""The files of the page that are ours."""
ASSETS = {"swagger-ui.css": STYLE, "swagger-ui-bundle.js": SCRIPT, "favicon-32x32.png": b"image/png"}
"""The files of Swagger UI.  No others are read: a request cannot name one."""

MISSING = (
    "this build of Penstock does not contain the files of the page /docs. Install Penstock again: "
    "`pip install .` in its source tree, or `pip install -e .` for an editable install. "
    "/openapi.json has all that the page shows"
)

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"font-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")

log = guarded_logger("penstock.server")


def docs_routes(problems: Problems) -> dict[bytes, PageRoute]:
    """The page and its files, by path.  Where the build left a file out, the log says so, and so does the page."""
    page = File(
        PAGE_FOLDER / "index.html", b"text/html; charset=utf-8", problems, (b"content-security-policy", _POLICY)
    )
    files = {"/docs": page}
    for name, media in OWN.items():
        files[f"/docs/{name}"] = File(PAGE_FOLDER / name, media, problems)
    for name, media in ASSETS.items():
        files[f"/docs/{name}"] = File(ASSET_FOLDER / name, media, problems, (b"cache-control", b"max-age=3600"))
    if not all((ASSET_FOLDER / name).is_file() for name in ASSETS):
        log.warning("%s", MISSING)
        page.missing = True
    return {path.encode(): PageRoute(path, file, problems, guarded=False) for path, file in files.items()}


class File:
    """One file, read when it is first asked for and kept; 404 where it is `missing`."""

    def __init__(self, path: Path, media: bytes, problems: Problems, *headers: tuple[bytes, bytes]) -> None:
        self._path = path
        self._media = media
        self._problems = problems
        self._headers = (_NO_SNIFFING, *headers)
        self._content: bytes | None = None
        self.missing = False

    def __call__(self, request: HttpRequest) -> Response:
        """The file."""
        if self._content is None and not self.missing:
            try:
                self._content = self._path.read_bytes()
            except OSError:
                self.missing = True
        if self._content is None:
            return self._problems.refuse(404, MISSING, request.id)
        return Response(200, self._media, self._content, self._headers)
