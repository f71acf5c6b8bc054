"""Pages of other origins: what the server's answers say to browsers, and what Chromium makes of that."""

from __future__ import annotations

import json

import pytest
from browser import browsing, chromium
from web_servers import web_server

PAGE = "https://app.example"
KEY = "k" * 32
ALLOWED, EXPOSED = "access-control-allow-origin", "access-control-expose-headers"


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    return ("--api-key-file", str(path))


def test_leave_needs_no_key_and_every_answer_to_the_page_may_be_read(serve, keys):
    server = serve(
        *keys, "--cors-allow-origin", "https://b.example", "--cors-allow-origin", PAGE, "--max-body-bytes", "100"
    )
    leave = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    answer = server.http.options("/predict", headers=leave)
    assert (answer.status_code, answer.headers[ALLOWED], answer.headers["vary"]) == (204, PAGE, "origin")
    assert "x-api-key" in answer.headers["access-control-allow-headers"]
    assert "content-length" not in answer.headers
    asked = {
        200: ("/predict", {"value": 2}, {"x-api-key": KEY}),
        422: ("/predict", {"value": "two"}, {"x-api-key": KEY}),
        401: ("/predict", {"value": 2}, {}),
        404: ("/nowhere", {}, {"x-api-key": KEY}),
        413: ("/predict", {"value": 2, "more": "x" * 200}, {"x-api-key": KEY}),
    }
    for status, (path, item, headers) in asked.items():
        for origin, let in ((PAGE, PAGE), ("https://b.example", "https://b.example"), ("https://c.example", None)):
            answer = server.http.post(path, json=item, headers={**headers, "origin": origin})
            assert (answer.status_code, answer.headers.get(ALLOWED)) == (status, let)
            assert ("x-request-id" in answer.headers.get(EXPOSED, "")) == (let is not None)
    strange = server.http.options("/predict", headers={**leave, "origin": "https://c.example"})
    assert (strange.status_code, strange.headers.get(ALLOWED)) == (401, None)


ASK = """
fetch(%s, %s).then(
    async (answer) => ({
        status: answer.status, body: await answer.json(), id: answer.headers.get('x-request-id'),
        retry: answer.headers.get('x-should-retry'), after: answer.headers.get('retry-after'),
    }),
    (error) => error.name,
)
"""


def asked(browser, address, path="/predict", item=None, **headers):
    """What a page gets for its call: the answer, or the name of the error."""
    how = {"headers": headers}
    if item is not None:
        how |= {"method": "POST", "body": json.dumps(item)}
        headers["content-type"] = "application/json"
    return browser.ask(ASK % (json.dumps(f"{address}{path}"), json.dumps(how)))


@pytest.fixture
def page(tmp_path):
    """A browser that shows the page of another origin, and that origin."""
    program = chromium()
    if program is None:
        pytest.skip("Chromium is needed to call from a page: `make browsers` installs it")
    with (
        web_server(lambda asked: asked.answer(body=b"<title>theirs</title>", Content_Type="text/html")) as site,
        browsing(program, tmp_path / "profile") as browser,
    ):
        browser.go(f"{site.url}/", 1280)
        browser.until("document.title === 'theirs'")
        yield browser, site.url


def test_in_chromium_the_page_of_a_named_origin_calls_with_its_key_and_reads_refusals(serve, page, keys):
    browser, origin = page
    server = serve(*keys, "--cors-allow-origin", origin)
    headers = {"x-api-key": KEY, "x-request-id": "mine", "x-request-timeout": "20", "priority": "u=1"}
    answer = asked(browser, server.address, item={"value": 2}, **headers)
    assert answer == {"status": 200, "body": 2.0, "id": "mine", "retry": None, "after": None}
    answer = asked(browser, server.address, item={"value": "two"}, **headers)
    assert (answer["status"], answer["id"], answer["retry"]) == (422, "mine", "false")
    answer = asked(browser, server.address, item={"value": 2})
    assert (answer["status"], answer["retry"]) == (401, "false")
    assert answer["id"] == answer["body"]["request_id"]
    assert asked(browser, server.address, "/health", authorization=f"Bearer {KEY}")["status"] == 200


def test_in_chromium_the_page_of_another_origin_gets_nothing(serve, shared, page):
    browser, _ = page
    for server in (shared, serve("--cors-allow-origin", PAGE)):
        assert asked(browser, server.address, item={"value": 2}) == "TypeError"
        assert asked(browser, server.address, "/health") == "TypeError"
        assert server.metric("penstock_items_accepted_total") == 0


def test_in_chromium_a_star_is_every_page(serve, page):
    browser, _ = page
    server = serve("--cors-allow-origin", "*")
    assert asked(browser, server.address, item={"value": 2})["body"] == 2.0
    assert asked(browser, server.address, "/health")["status"] == 200
