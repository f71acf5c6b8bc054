"""Five thousand calls through each client to a server that causes faults on purpose: right answers, or typed errors."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from calling_in_chaos import (
    CALL_SECONDS,
    CALLERS,
    CHAOS,
    IN_JAVASCRIPT,
    SOURCE,
    call_by_tasks,
    call_by_threads,
    read_found,
)
from served import serving
from typescript_pages import showing

from typescript_package import MISSING, build_package, has_node

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

CALLS = 5000
TERMS = f"{CALLS}, {CALLERS}, {CALL_SECONDS * 1000}"
IN_NODE = """
import { Client, RequestError } from "./dist/esm/index.js";
%s
console.log(JSON.stringify(await callInChaos(Client, RequestError, process.argv[2], %s)));
"""
PAGE = """<title>waiting</title><script type="module">
import { Client, RequestError } from "./esm/index.js";
%s
window.begin = (url) => void callInChaos(Client, RequestError, url, %s).then((found) => window.found = found);
document.title = "loaded";
</script>"""


def call_in_node(url, package):
    path = package / "in-chaos.mjs"
    path.write_text(IN_NODE % (IN_JAVASCRIPT, TERMS))
    done = subprocess.run(["node", path, url], capture_output=True, text=True, timeout=800, check=True)
    return read_found(json.loads(done.stdout))


def call_in_chromium(server, browser):
    browser.ask(f"begin({server.address!r})")
    for ended in range(0, CALLS + 1, 250):  # so that it is the progress that is waited for, and not the whole
        browser.until(f"inChaos.ended >= {ended}")
    browser.until("window.found !== undefined")
    return read_found(browser.ask("found"))


@pytest.fixture
def in_chaos(tmp_path, capsys):
    """Serves in chaos while `call` calls; what became of it is printed, and checked."""

    def play(call, *options):
        folder = tmp_path / "server"
        folder.mkdir()
        with serving(folder, "--chaos", CHAOS, *options, source=SOURCE) as server:
            found = call(server)
            server.until(lambda: server.metric("penstock_items_in_hand") == 0, "everything to be settled")
            restarts = server.metric("penstock_stage_worker_restarts_total")
        with capsys.disabled():
            print(f"\n{found}, {restarts:.0f} workers were killed")  # noqa: T201  # the figures are what it is run for
        assert restarts > 0
        found.check(CALLS)

    return play


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    if not has_node():
        pytest.skip(MISSING)
    return build_package(tmp_path_factory.mktemp("typescript"))


def test_the_client_for_event_loops(in_chaos):
    in_chaos(lambda server: asyncio.run(call_by_tasks(server.address, CALLS)))


def test_the_client_for_threads(in_chaos):
    in_chaos(lambda server: call_by_threads(server.address, CALLS))


def test_the_client_in_node(in_chaos, package):
    in_chaos(lambda server: call_in_node(server.address, package))


def test_the_client_in_a_page_of_another_origin(in_chaos, package, tmp_path):
    page = (PAGE % (IN_JAVASCRIPT, TERMS)).encode()
    with showing(page, package, tmp_path / "profile") as (browser, origin):
        in_chaos(lambda server: call_in_chromium(server, browser), "--cors-origin", origin)
