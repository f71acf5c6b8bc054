"""The page at `/docs` in a real browser, with an API key and without, wide and narrow.

Set PENSTOCK_PICTURES to a folder to get pictures of what these tests see.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import browsing, chromium
from served import Program

KEY = "kéy-of-ann"
SOURCE = '''
import msgspec
import penstock as ps


class Flat(msgspec.Struct):
    rooms: int
    area: float


class Price(ps.Stage):
    """Says what a flat costs.

    The price is in **euros**.
    """

    examples = [Flat(2, 60.0)]

    def predict(self, flat: Flat) -> float:
        return 5000.0 * flat.rooms + 4000.0 * flat.area


service = ps.Service(ps.stage(Price), name="prices")
rents = ps.Service(ps.stage(Price), name="rents")
'''
WIDTHS = (pytest.param(1280, marks=pytest.mark.night), 390)
SHOWN = "document.querySelectorAll('.opblock').length"
TOO_WIDE = """(() => {
    const rolls = (node) => /auto|scroll/.test(getComputedStyle(node).overflowX);
    const scrolls = (node) => node && (rolls(node) || scrolls(node.parentElement));
    const wide = (node) => { const box = node.getBoundingClientRect(); return box.width && box.right > %d; };
    const found = [...document.body.querySelectorAll('*')].filter((node) => wide(node) && !scrolls(node.parentElement));
    return [document.documentElement.scrollWidth > %d, ...found.map((node) => node.className || node.tagName)].join();
})()"""
TRY_IT = """(() => {
    const block = document.querySelector('[id$="%s"]');
    const find = (what) => block.querySelector(what);
    if (!find('.opblock-body')) return find('.opblock-summary-control').click();
    if (!find('.execute')) return find('.try-out__btn') && find('.try-out__btn').click();
    if (!block.dataset.sent) { block.dataset.sent = 'yes'; return find('.execute').click(); }
    const answer = find('.live-responses-table .response .response-col_status');
    if (answer) answer.scrollIntoView();
    return answer && answer.innerText.trim().slice(0, 3) + ' ' + find('.live-responses-table pre').innerText;
})()"""


@pytest.fixture
def browser(tmp_path):
    program = chromium()
    if program is None:
        pytest.skip("Chromium is needed to look at the page of /docs: `make browsers` installs it")
    with browsing(program, tmp_path / "profile") as browser:
        yield browser


@pytest.fixture
def picture(browser, request):
    """Writes a picture of the page, where the environment names a folder for it."""

    def write(name):
        folder = os.environ.get("PENSTOCK_PICTURES")
        if folder:
            browser.picture(Path(folder, f"{request.node.name}-{name}.png".replace("/", "_")))

    return write


def outward(browser, address):
    """The requests that did not go to the server."""
    return [sent["url"] for sent in browser.requests if not sent["url"].startswith((address, "data:", "blob:"))]


@pytest.mark.parametrize("width", WIDTHS)
def test_without_keys_the_page_shows_the_service_and_tries_it(serve, browser, picture, width):
    server = serve(source=SOURCE)
    browser.go(f"{server.address}/docs", width)
    assert browser.until(SHOWN) == 7
    text = browser.ask("document.body.innerText")
    assert "prices" in text
    assert "Says what a flat costs." in text
    assert browser.ask("document.querySelector('.info strong').innerText") == "euros"
    assert browser.ask("document.title") == "prices"
    assert browser.ask("[...document.querySelectorAll('.servers option')].map(o => o.value).join()") == "/"
    assert not browser.ask("!!document.querySelector('#ask, .authorize')")
    picture("shown")
    assert browser.until(TRY_IT % "predict").split() == ["200", "250000"]
    assert browser.ask(TOO_WIDE % (width, width)) == "false"
    picture("tried")
    assert outward(browser, server.address) == []
    assert browser.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_with_keys_the_page_asks_for_one_and_sends_it_with_every_call(serve, tmp_path, browser, picture, width):
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    server = serve("--api-key-file", str(keys), source=SOURCE)
    browser.go(f"{server.address}/docs", width)
    browser.until("!document.querySelector('#ask').hidden && document.activeElement.id === 'key'")
    assert not browser.ask("!!document.querySelector('.swagger-ui')")
    assert browser.ask(TOO_WIDE % (width, width)) == "false"
    picture("asks")
    browser.type("wrong")
    browser.press_enter()
    browser.until("!document.querySelector('#failure').hidden")
    assert "does not accept this key" in browser.ask("document.body.innerText")
    picture("refuses")
    browser.type(KEY)  # what was typed before is selected
    browser.press_enter()
    assert browser.until(SHOWN) == 7
    assert "Says what a flat costs." in browser.ask("document.body.innerText")
    assert not browser.ask("!!document.querySelector('#ask, .authorize')")
    picture("shown")
    assert browser.until(TRY_IT % "predict").split() == ["200", "250000"]
    for page in ("health", "livez"):
        assert browser.until(TRY_IT % page).startswith("200")
    assert browser.ask(TOO_WIDE % (width, width)) == "false"
    calls = {f"{server.address}/{path}" for path in ("predict", "health", "livez")}
    sent = [request for request in browser.requests if request["url"] in calls]
    assert [request["headers"]["X-API-Key"].encode("latin-1").decode() for request in sent] == [KEY] * 3
    assert outward(browser, server.address) == []
    # It is in memory only: in no address, no store, and gone with the page.
    assert not [sent["url"] for sent in browser.requests if KEY in sent["url"] or quote(KEY) in sent["url"]]
    stored = "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
    assert json.loads(browser.ask(stored)) == ["", {}, {}]
    browser.go(f"{server.address}/docs?again", width)
    browser.until("document.querySelector('#ask') && !document.querySelector('#ask').hidden")


@pytest.mark.parametrize("width", WIDTHS)
def test_several_services_behind_a_slash_too_much_are_on_one_page(serve, browser, picture, width):
    server = serve(source=SOURCE, services=("service", "rents"))
    browser.go(f"{server.address}/docs/", width)
    assert browser.until(SHOWN) == 9
    assert browser.ask("document.title") == "prices, rents"
    assert browser.until(TRY_IT % "rents_predict").split() == ["200", "250000"]
    assert browser.ask(TOO_WIDE % (width, width)) == "false"
    picture("tried")
    assert outward(browser, server.address) == []


def test_a_description_that_cannot_be_fetched_is_told_and_fetched_again(serve, browser):
    server = serve(source=SOURCE)
    browser.tell("Network.setBlockedURLs", urls=["*/openapi.json"])
    browser.go(f"{server.address}/docs", 1280)
    browser.until("!document.querySelector('#failure').hidden")
    assert "openapi.json could not be fetched" in browser.ask("document.body.innerText")
    browser.tell("Network.setBlockedURLs", urls=[])
    browser.ask("document.querySelector('#failure button').click()")
    assert browser.until(SHOWN) == 7
    assert browser.ask("document.querySelector('#failure').hidden")


MOUNTED = """
from fastapi import FastAPI
from prices import service

import penstock as ps

ml = ps.asgi(service)
outer = FastAPI(lifespan=ml.lifespan)
outer.mount("/ml", ml)
"""


def test_below_a_mount_point_the_page_shows_and_asks_that(tmp_path, browser):
    (tmp_path / "prices.py").write_text(SOURCE)
    (tmp_path / "outer.py").write_text(MOUNTED)
    program = Program(tmp_path, sys.executable, "-m", "uvicorn", "outer:outer", "--port", "0")
    try:
        address = program.wait_for(r"running on (http://127\.0\.0\.1:\d+)")[1]
        browser.go(f"{address}/ml/docs", 1280)
        assert browser.until(SHOWN) == 7
        assert browser.ask("[...document.querySelectorAll('.servers option')].map(o => o.value).join()") == "/ml"
        assert browser.until(TRY_IT % "predict").split() == ["200", "250000"]
        assert f"{address}/ml/predict" in browser.answers
        assert outward(browser, f"{address}/ml/") == []
        program.signal(signal.SIGTERM)
        program.wait()
    finally:
        program.destroy()
