"""Two replicas behind a real HAProxy, and a real nginx, are replaced one after the other under load; nobody notices."""

from __future__ import annotations

import pytest
from proxies import PROXIES, needs_program, open_folder, proxying
from replicas import replicating, runs
from steady_load import Load
from waiting import until_now

DELAY = ("--drain-delay", "2")
REQUESTS = 2000


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_program(name)) for name in PROXIES])
def test_no_request_fails_and_each_runs_once_while_both_replicas_are_replaced(name, tmp_path):
    with open_folder() as sockets, replicating(tmp_path, sockets, *DELAY) as pair:
        servers = [word for replica in pair for word in ("--server", replica.address)]
        with proxying(name, sockets, *servers, *DELAY) as proxy:
            with Load(proxy.connection, least=REQUESTS) as load:
                for replica in pair:
                    load.go_on(50)
                    replica.roll()
                ran = [len(replica.ran) for replica in pair]
                until_now(
                    lambda: all(len(replica.ran) > before for replica, before in zip(pair, ran, strict=True)),
                    "requests for both new ones",
                    context=lambda: proxy.log[-2000:],
                )
            assert load.failed == [], proxy.log[-2000:]
            assert len(load.asked) >= REQUESTS
            assert runs(*pair) == dict.fromkeys(load.numbers, 1)
