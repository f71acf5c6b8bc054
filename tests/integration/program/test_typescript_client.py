"""The TypeScript client in Node and in Chromium, against `penstock serve`."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from calling_in_chaos import CALL_SECONDS, CALLERS, CHAOS, IN_JAVASCRIPT, SOURCE, read_found
from served import PATIENCE_SECONDS, PENSTOCK, Program, serving
from typescript_pages import showing

from typescript_package import MISSING, build_package, has_node

pytestmark = [pytest.mark.skipif(not has_node(), reason=MISSING), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
FORMATS = """
import penstock as ps

class Reverse(ps.Stage):
    def predict(self, x: bytes) -> bytes:
        return x[::-1]

class Upper(ps.Stage):
    def predict(self, x: str) -> str:
        return x.upper()

class Total(ps.Stage):
    def predict(self, x: list[float]) -> float:
        return sum(x)

reverse = ps.Service(Reverse, name="reverse")
upper = ps.Service(Upper, name="upper")
total = ps.Service(Total, name="total")
"""

BEGINNING = """
import { Client, InvalidItem, QuotaExceeded, RequestError, StageFailed } from "penstock-client";
import { unixFetch } from "penstock-client/node";
import { once } from "node:events";
const [url] = process.argv.slice(2);
const told = (value) => console.log(JSON.stringify(value));
const failed = async (call) => {
    try {
        await call;
    } catch (error) {
        const { name, status, requestId, retryable, message } = error;
        return { name, status, requestId, retryable, message };
    }
    throw new Error("it did not fail");
};
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return build_package(tmp_path_factory.mktemp("typescript"))


@pytest.fixture
def node(package, tmp_path):
    """Starts programs in Node that use the package; ended after the test."""
    modules = tmp_path / "node" / "node_modules"
    modules.mkdir(parents=True)
    (modules / "penstock-client").symlink_to(package)
    with ExitStack() as running:
        count = iter(range(1, 100))

        def start(source, url):
            path = tmp_path / "node" / f"program{next(count)}.mjs"
            path.write_text(BEGINNING + source)
            program = running.enter_context(NodeProgram(path, url))
            running.callback(program.kill)
            return program

        yield start


class NodeProgram(subprocess.Popen[str]):
    """A program whose lines are JSON."""

    def __init__(self, path: Path, url: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        super().__init__(["node", str(path), url], cwd=path.parent, text=True, **pipes)

    def line(self):
        """What it tells next."""
        line = self.stdout.readline()
        try:
            return json.loads(line)
        except ValueError:
            raise AssertionError(line + self.stdout.read()) from None

    def go_on(self) -> None:
        """Let it go on from where it waits for its standard input."""
        self.stdin.write("\n")
        self.stdin.flush()

    def end(self):
        """What it tells last, once it has ended well."""
        found = self.line()
        assert self.wait(PATIENCE_SECONDS) == 0, self.stdout.read()
        return found


def cancelled(server):
    return server.metric("penstock_items_ended_total", ending="cancelled")


def in_flight(server):
    return server.health()["services"]["orders"]["in_flight"]


def test_every_format_goes_there_and_back(node, tmp_path):
    folder = tmp_path / "formats"
    folder.mkdir()
    with serving(folder, source=FORMATS, services=("reverse", "upper", "total")) as server:
        program = node(
            """
            const c = new Client(url);
            told([
                await c.predict("\\u00fcber", { service: "upper" }),
                Array.from(await c.predict(new Uint8Array([0, 1, 2]), { service: "reverse" })),
                Array.from(await c.predict(new Uint8Array([3, 4]).buffer, { service: "reverse" })),
                await c.predict(new Float32Array([1, 2.5]), { service: "total" }),
                await c.predictMany(["a", "b", "c"], { service: "upper", batchSize: 2 }),
                await c.predictMany([new Uint8Array([0, 1])], { service: "reverse" }),
            ]);
            """,
            server.address,
        )
        assert program.end() == ["\u00dcBER", [2, 1, 0], [4, 3], 3.5, ["A", "B", "C"], ["AQA="]]


def test_the_errors_of_a_server_are_those_of_a_call_in_process(node, shared):
    program = node(
        """
        const c = new Client(url);
        told(await failed(c.predict({ do: "refuse" }, { requestId: "mine" })));
        told(await failed(c.predict({ do: "raise" })));
        told(await failed(c.predict({}, { service: "nobody" })));
        const items = [{ value: 1 }, { do: "raise" }, { value: "x" }, { value: 10n }];
        const found = await c.predictMany(items, { returnExceptions: true });
        told(found.map((one) => one instanceof RequestError ? one.name : one));
        told((await c.health()).services.orders.state);
        """,
        shared.address,
    )
    refused = program.line()
    assert refused == {
        "name": "InvalidItem",
        "status": 422,
        "requestId": "mine",
        "retryable": False,
        "message": "not today",
    }
    assert program.line()["name"] == "StageFailed"
    assert program.line()["status"] == 404
    assert program.line() == [1, "StageFailed", "InvalidItem", "InvalidItem"]
    assert program.end() in ("ready", "busy")


def test_the_key_the_tenant_and_the_try_reach_the_server(node, serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("the-key\n")
    server = serve("--access-log", "--tenant-header", "X-Tenant", "--api-key-file", str(keys))
    program = node(
        """
        const c = new Client(url, { apiKey: "the-key", tenantHeader: "X-Tenant" });
        await c.predict({ value: 1 }, { tenant: "gold", urgency: 1, requestId: "mine" });
        told(await failed(new Client(url).predict({ value: 1 })));
        """,
        server.address,
    )
    assert program.end()["status"] == 401
    server.wait_for(r"POST /predict 200 3 0\.\d+ mine tenant=gold u=1 attempt=1\b")


def test_an_abort_signal_withdraws_the_item_and_the_client_goes_on(node, shared):
    server = shared
    program = node(
        """
        const c = new Client(url);
        const ending = new AbortController();
        const call = failed(c.predict({ do: "hold" }, { signal: ending.signal }));
        await once(process.stdin, "data");
        ending.abort();
        told((await call).name);
        await once(process.stdin, "data");
        told([await c.predict({ value: 2 }), c.stats.inFlight]);
        process.stdin.destroy();
        """,
        server.address,
    )
    server.until(lambda: in_flight(server) == 1, "the item at its worker")
    program.go_on()
    assert program.line() == "AbortError"
    server.until(lambda: cancelled(server) == 1, "the withdrawal")
    server.open_gate()
    program.go_on()
    assert program.end() == [2, 0]


def test_over_a_unix_socket_items_come_and_are_withdrawn(node, serve, tmp_path):
    path = tmp_path / "a.sock"
    server = serve(where=("--uds", str(path)))
    program = node(
        """
        const c = new Client("http://localhost", { fetch: unixFetch(url) });
        told([await c.predict({ value: 2 }), await c.predictMany([{ value: 3 }, { value: 4 }])]);
        const calls = [c.predict({ do: "hold" }), c.predictMany([{ do: "hold" }, { do: "hold" }])].map(failed);
        await once(process.stdin, "data");
        await c.close();
        told((await Promise.all(calls)).map((one) => one.name));
        process.stdin.destroy();
        """,
        str(path),
    )
    assert program.line() == [2, [3, 4]]
    server.until(lambda: server.health()["services"]["orders"]["queued"] == 3, "the items")
    program.go_on()
    assert program.end() == ["Cancelled", "Cancelled"]
    server.until(lambda: cancelled(server) == 3, "the withdrawal")
    server.open_gate()


def test_a_full_server_gets_fewer_requests_and_answers_all(node, two_waiting):
    server = two_waiting
    program = node(
        """
        const c = new Client(url, { timeoutMs: 60_000, maxRetries: 100 });
        const orders = Array.from({ length: 60 }, (_, value) => ({ do: "nap", seconds: 0.01, value }));
        const answers = await Promise.all(orders.map((order) => c.predict(order)));
        told([answers.every((answer, place) => answer === place), c.stats.limit < 8, c.stats.clientInitiatedRetries]);
        """,
        server.address,
    )
    assert program.end() == [True, True, 0]


def test_in_chaos_every_answer_is_right_and_nearly_every_call_has_one(node, serve):
    server = serve("--chaos", CHAOS, source=SOURCE)
    terms = f"300, {CALLERS}, {CALL_SECONDS * 1000}"
    program = node(f"{IN_JAVASCRIPT} told(await callInChaos(Client, RequestError, url, {terms}));", server.address)
    read_found(program.end()).check(300)


def test_jobs_are_submitted_waited_for_and_fail(node, tmp_path):
    folder = tmp_path / "farm"
    folder.mkdir()
    queue = ("--queue-url", f"sqlite:///{folder}/q.db")
    terms = ("--poll-interval", "0.02", "--retry-backoff", "0.01", "--lease", "2")
    with serving(folder, *queue) as server:
        consumer = Program(folder, *PENSTOCK, "consume", "orders:service", *queue, *terms)
        try:
            consumer.wait_for("working on")
            program = node(
                """
                const { jobs } = new Client(url);
                const timeoutMs = 60_000;
                const job = await jobs.submit({ value: 3 }, { key: "order-7", priority: 2 });
                told((await jobs.submit({ value: 3 }, { key: "order-7", priority: 2 })).id === job.id);
                told([await jobs.result(job.id, { timeoutMs }), (await jobs.get(job)).state]);
                const dead = await jobs.submit({ do: "raise" });
                const { name, status } = await failed(jobs.result(dead, { timeoutMs }));
                told([name, status, (await jobs.wait([dead.id, job], { timeoutMs })).map((one) => one.state)]);
                const later = await jobs.submit({ value: 1 }, { delayMs: 1_000_000, id: "later" });
                told(await failed(jobs.result(later, { timeoutMs: 0 })));
                told([later.scheduledAt > later.createdAt, (await jobs.cancel("later")).state]);
                told(await failed(jobs.get("nobody")));
                """,
                server.address,
            )
            assert program.line() is True
            assert program.line() == [3, "succeeded"]
            assert program.line() == ["JobFailed", 500, ["dead", "succeeded"]]
            assert program.line()["message"] == "job later is still scheduled after 0 s"
            assert program.line() == [True, "cancelled"]
            assert program.end()["name"] == "JobNotFound"
        finally:
            consumer.destroy()


PAGE_PROGRAM = re.compile(r"```ts\n(import .*?)```\n\n```text\n(.*?)```", re.DOTALL)
PRICES = re.compile(r"<!-- file: prices.py -->\n```python\n(.*?)```", re.DOTALL)


def test_the_programs_of_the_page_have_right_types_and_print_what_it_says(package, tmp_path):
    page = (ROOT / "docs" / "how-to" / "call-from-typescript.md").read_text()
    found = PAGE_PROGRAM.findall(page)
    assert len(found) == 3
    (prices,) = PRICES.findall((ROOT / "README.md").read_text())
    programs = tmp_path / "programs"
    (programs / "node_modules").mkdir(parents=True)
    (programs / "node_modules" / "penstock-client").symlink_to(package)
    with serving(tmp_path, source=prices) as server:
        for number, (source, printed) in enumerate(found):
            path = programs / f"program{number}.mjs"
            path.write_text(source.replace("http://127.0.0.1:8000", server.address))
            path.with_suffix(".mts").write_text(source)
            done = subprocess.run(["node", path], capture_output=True, text=True, timeout=60.0, check=False)
            assert (done.stdout, done.stderr) == (printed, "")
    compiler = package / "node_modules" / ".bin" / "tsc"
    terms = ("--noEmit", "--strict", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2022,DOM")
    done = subprocess.run(
        [compiler, *terms, *sorted(programs.glob("*.mts"))], capture_output=True, text=True, timeout=60.0, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


# -- in a browser ------------------------------------------------------------------------------------------------------

PAGE = b"""<title>waiting</title><script type="module">
import * as penstock from "./esm/index.js";
Object.assign(window, penstock);
document.title = "loaded";
</script>"""


@pytest.fixture
def page(package, tmp_path):
    """A browser that shows a page of another origin, which has loaded the package; and that origin."""
    with showing(PAGE, package, tmp_path / "profile") as shown:
        yield shown


def test_in_chromium_a_page_predicts_reads_refusals_and_withdraws(serve, page):
    browser, origin = page
    server = serve("--cors-allow-origin", origin, "--access-log")
    browser.ask(f"window.c = new Client({server.address!r}), 0")
    assert browser.ask("c.predict({ value: 2 }, { urgency: 1, requestId: 'mine' })") == 2
    server.wait_for(r"POST /predict 200 \d+ 0\.\d+ mine tenant= u=1 attempt=1\b")
    assert browser.ask("c.predictMany([{ value: 3 }, { value: 4 }])") == [3, 4]
    failed = "c.predict({ do: 'refuse' }, { requestId: 'mine' }).catch((e) => [e.name, e.status, e.requestId])"
    assert browser.ask(failed) == ["InvalidItem", 422, "mine"]
    assert browser.ask("c.health().then((page) => page.services.orders.state)") in ("ready", "busy")
    browser.ask("window.ending = new AbortController(), 0")
    browser.ask("window.call = c.predict({ do: 'hold' }, { signal: ending.signal }).catch((e) => e.name), 0")
    server.until(lambda: in_flight(server) == 1, "the item at its worker")
    browser.ask("ending.abort()")
    assert browser.ask("call") == "AbortError"
    server.until(lambda: cancelled(server) == 1, "the withdrawal")
    server.open_gate()


def test_in_chromium_a_refusal_is_tried_again_as_the_server_says(serve, page):
    browser, origin = page
    server = serve("--cors-allow-origin", origin, "--max-in-flight", "1")
    browser.ask(f"window.c = new Client({server.address!r}, {{ maxRetries: 100, timeoutMs: 60_000 }}), 0")
    browser.ask("window.held = c.predict({ do: 'hold', value: 1 }), 0")
    server.until(lambda: in_flight(server) == 1, "the item at its worker")
    browser.ask("window.next = c.predict({ value: 2 }), 0")
    browser.until("c.stats.retries > 0")
    server.open_gate()
    assert browser.ask("Promise.all([held, next])") == [1, 2]
    assert browser.ask("c.stats.clientInitiatedRetries") == 0
    assert browser.ask("c.stats.limit") < 8


def test_in_chromium_a_server_that_lets_no_page_in_is_a_lost_connection(shared, page):
    browser, _ = page
    lost = f"new Client({shared.address!r}).predict({{ value: 2 }}).catch((e) => [e.name, e.sent])"
    assert browser.ask(lost) == ["ConnectionFailed", True]
