"""The Python clients against `penstock serve --chaos`; that in TypeScript is in test_typescript_client.py."""

from __future__ import annotations

from calling_in_chaos import CHAOS, SOURCE, call_by_tasks, call_by_threads

CALLS = 300


async def test_the_client_for_event_loops_has_right_answers_to_nearly_all_calls(serve):
    server = serve("--chaos", CHAOS, source=SOURCE)
    (await call_by_tasks(server.address, CALLS)).check(CALLS)


def test_the_client_for_threads_has_right_answers_to_nearly_all_calls(serve):
    server = serve("--chaos", CHAOS, source=SOURCE)
    call_by_threads(server.address, CALLS).check(CALLS)
