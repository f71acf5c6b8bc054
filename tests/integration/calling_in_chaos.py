"""Calls to a server that causes faults on purpose, through each client; every answer is compared with what is right.

What is neither an answer nor a `RequestError` is raised: clients promise typed errors.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.client import AsyncClient, Client
from penstock.errors import RequestError

CHAOS = "seed=1,error=0.03,drop=0.03,kill=0.002,delay=0.05:0.2"
SOURCE = """
import penstock as ps

class Double(ps.Stage):
    def predict(self, x: int) -> int:
        return 2 * x

service = ps.Service(ps.stage(Double, workers=2), name="double")
"""
CALLERS, THREADS = 50, 16
CALL_SECONDS = 120.0
"""How long a call may take: long, so that a busy machine is no reason for an error."""
LEAST_ANSWERED = 0.99

IN_JAVASCRIPT = """
const callInChaos = async (Client, RequestError, url, most, callers, timeoutMs) => {
    const c = new Client(url, { retryNonIdempotent: true, timeoutMs });
    const found = { right: 0, wrong: [], errors: {}, ended: 0 };
    globalThis.inChaos = found;
    let next = 0;
    const call = async () => {
        while (next < most) {
            const number = next++;
            try {
                const answer = await c.predict(number);
                answer === 2 * number ? found.right++ : found.wrong.push([number, answer]);
            } catch (error) {
                if (!(error instanceof RequestError)) {
                    throw error;
                }
                found.errors[error.name] = (found.errors[error.name] ?? 0) + 1;
            }
            found.ended++;
        }
    };
    await Promise.all(Array.from({ length: callers }, call));
    found.unasked = c.stats.clientInitiatedRetries;
    return found;
};
"""
"""A function for Node and for browsers; what it returns is read by `read_found`."""


@dataclass
class Found:
    """What became of the calls."""

    right: int = 0
    wrong: list[tuple[int, object]] = field(default_factory=list)
    """Numbers, and the answers to them."""
    errors: Counter[str] = field(default_factory=Counter)
    unasked: int = 0
    """Tries that no server has asked for: faults do not ask for any."""

    def check(self, calls: int) -> None:
        """See that each call has ended, no answer is wrong, nearly all are there, and that there were faults."""
        assert not self.wrong
        assert self.right + sum(self.errors.values()) == calls
        assert self.right >= LEAST_ANSWERED * calls, self.errors
        assert self.unasked > calls / 50

    def note(self, number: int, answer: object) -> None:
        if answer == 2 * number:
            self.right += 1
        else:
            self.wrong.append((number, answer))


def read_found(told: dict[str, object]) -> Found:
    """What `callInChaos` of `IN_JAVASCRIPT` has returned."""
    names = ("right", "wrong", "errors", "unasked")
    values = {name: told[name] for name in names}
    return Found(**{**values, "errors": Counter(values["errors"])})


async def call_by_tasks(url: str, calls: int) -> Found:
    """Call through `AsyncClient`."""
    found, numbers = Found(), iter(range(calls))
    async with AsyncClient(url, retry_non_idempotent=True, timeout=CALL_SECONDS) as c:

        async def call() -> None:
            for number in numbers:
                try:
                    found.note(number, await c.predict(number))
                except RequestError as error:
                    found.errors[type(error).__name__] += 1

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        found.unasked = c.stats.client_initiated_retries
    return found


def call_by_threads(url: str, calls: int) -> Found:
    """Call through `Client`."""
    found = Found()
    with Client(url, retry_non_idempotent=True, timeout=CALL_SECONDS) as c, ThreadPoolExecutor(THREADS) as threads:
        calling = [(number, threads.submit(c.predict, number)) for number in range(calls)]
        for number, call in calling:
            try:
                found.note(number, call.result())
            except RequestError as error:
                found.errors[type(error).__name__] += 1
        found.unasked = c.stats.client_initiated_retries
    return found
