"""One of two replicas behind a real HAProxy, or nginx, is full, frozen or killed, or a worker of it: who notices.

The clients never try again, but where a test says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from proxies import PROXIES, needs_program, open_folder, proxying
from replicas import SOURCE, replicating, runs
from served import PATIENCE_SECONDS
from steady_load import CLIENTS, Load
from waiting import until_now

from penstock.client import Client

OUT_SECONDS = 3.0
"""Within which HAProxy has a frozen replica out, as its file promises."""

each_proxy = pytest.mark.parametrize("name", [pytest.param(name, marks=needs_program(name)) for name in PROXIES])
haproxy = needs_program("haproxy")
nginx = needs_program("nginx")


@pytest.fixture
def start(tmp_path):
    """Starts a proxy and two replicas behind it, with the same flags; ended after the test."""
    with contextlib.ExitStack() as stack:

        def begin(name, *flags, **more):
            sockets = stack.enter_context(open_folder())
            flags = ("--drain-delay", "2", *flags)
            a, b = stack.enter_context(replicating(tmp_path, sockets, *flags, **more))
            servers = ("--server", a.address, "--server", b.address)
            proxy = stack.enter_context(proxying(name, sockets, *servers, *flags))
            return proxy, a, b

        yield begin


def post(proxy, number):
    """One request on a connection of its own; the status."""
    with proxy.client() as client:
        return client.post("/predict", json=number).status_code


def fill(replica, items):
    """Give it, without the proxy, what it holds, until it is full."""
    for number in range(-items, 0):
        replica.server.wire().post("/predict", number, Content_Type="application/json")
    replica.server.until(lambda: replica.holders and replica.server.health()["state"] == "busy", "full")


def until_told(proxy, words, patience=PATIENCE_SECONDS):
    """Wait until HAProxy has said something."""
    until_now(lambda: words in proxy.output, words, patience, lambda: proxy.output)


# -- a replica that is full -----------------------------------------------------------------------------------------


@each_proxy
def test_what_a_full_replica_refuses_runs_once_at_the_other_and_is_refused_where_both_are_full(name, start):
    # The other has room for all clients at once.
    proxy, a, b = start(name, "--max-in-flight", str(CLIENTS), alone=("--max-in-flight", "1"))
    fill(a, 1)
    with Load(proxy.connection) as load:
        load.go_on(200)
    assert load.failed == []
    assert runs(b) == dict.fromkeys(load.numbers, 1)
    assert a.ran == [-1]
    assert a.refused > 0
    fill(b, CLIENTS)
    refused = a.refused, b.refused
    assert post(proxy, 7) == 503
    assert (a.refused, b.refused) == (refused[0] + 1, refused[1] + 1)


@haproxy
def test_haproxy_sends_nothing_to_a_full_replica_that_says_so_until_it_has_room(start):
    proxy, a, b = start("haproxy", "--unready-when-full", alone=("--max-in-flight", "1"))
    fill(a, 1)
    until_told(proxy, "replica1 is DOWN")
    with Load(proxy.connection) as load:
        load.go_on(200)
        assert (a.ran, a.refused) == ([-1], 0)
        a.open_gate()
        until_now(lambda: len(a.ran) > 1, "a request for who has room again", context=lambda: proxy.output)
    assert load.failed == []
    assert runs(a, b) == dict.fromkeys([-1, *load.numbers], 1)


# -- a worker that is killed ----------------------------------------------------------------------------------------


def kill_a_worker_that_holds(start, name, source, pool):
    """Kill it under load.  The replicas, the status of what it held, and the load."""
    proxy, a, b = start(name, source=source)
    with Load(proxy.connection) as load:
        held = pool.submit(post, proxy, -1)
        until_now(lambda: a.holders + b.holders, "the worker")
        holder = a if a.holders else b
        load.go_on(50)
        os.kill(holder.holders[0], signal.SIGKILL)
        holder.open_gate()
        load.go_on(50)
    return a, b, held.result(PATIENCE_SECONDS), load


@each_proxy
def test_what_a_killed_worker_ran_is_run_again_and_answered_and_nothing_else_is(name, start):
    with ThreadPoolExecutor(1) as pool:
        a, b, held, load = kill_a_worker_that_holds(start, name, SOURCE, pool)
    assert load.failed == []
    assert held == 200
    assert runs(a, b) == {-1: 2, **dict.fromkeys(load.numbers, 1)}


@each_proxy
def test_without_a_second_run_what_a_killed_worker_ran_fails_and_no_proxy_sends_it_again(name, start):
    source = SOURCE.replace("workers=2", "workers=2, retry=False")
    with ThreadPoolExecutor(1) as pool:
        a, b, held, load = kill_a_worker_that_holds(start, name, source, pool)
    assert load.failed == []
    assert held == 500
    assert runs(a, b) == dict.fromkeys([-1, *load.numbers], 1)


# -- a replica that is frozen ---------------------------------------------------------------------------------------


@haproxy
def test_haproxy_has_a_frozen_replica_out_and_back_and_loses_nothing(start):
    proxy, a, b = start("haproxy")
    with Load(proxy.connection) as load:
        until_now(lambda: a.ran and b.ran, "requests for both")
        os.kill(a.server.pid, signal.SIGSTOP)
        until_told(proxy, "replica1 is DOWN", OUT_SECONDS)
        out = time.monotonic()
        load.go_on(100)
        still_out = time.monotonic()
        load.go_on(50)
        os.kill(a.server.pid, signal.SIGCONT)
        until_told(proxy, "replica1 is UP")
        ran = len(a.ran)
        until_now(lambda: len(a.ran) > ran + 20, "requests for who is back")
    assert load.failed == []
    assert runs(a, b) == dict.fromkeys(load.numbers, 1)
    meanwhile = {each.number for each in load.asked if out < each.begun < still_out}
    assert meanwhile
    assert meanwhile & set(a.ran) == set()


@nginx
def test_nginx_gives_a_frozen_replica_its_turns_and_sends_none_of_them_to_the_other(start):
    proxy, a, b = start("nginx")
    numbers = range(8)
    with ThreadPoolExecutor(len(numbers)) as pool:
        os.kill(a.server.pid, signal.SIGSTOP)
        answers = [pool.submit(post, proxy, number) for number in numbers]
        until_now(lambda: len(b.ran) == 4 == sum(answer.done() for answer in answers), "those of the other")
        os.kill(a.server.pid, signal.SIGCONT)
        assert [answer.result(PATIENCE_SECONDS) for answer in answers] == [200] * 8
    assert (len(a.ran), len(b.ran)) == (4, 4)
    assert runs(a, b) == dict.fromkeys(numbers, 1)


# -- a replica that is killed ---------------------------------------------------------------------------------------


@each_proxy
def test_of_a_killed_replica_only_what_it_had_in_hand_fails_and_it_comes_back(name, start):
    proxy, a, b = start(name)
    with ThreadPoolExecutor(1) as pool, Load(proxy.connection) as load:
        held = pool.submit(post, proxy, -1)
        until_now(lambda: a.holders + b.holders, "what it has in hand")
        killed, other = (a, b) if a.holders else (b, a)
        load.go_on(50)
        began = time.monotonic()
        killed.server.signal(signal.SIGKILL)
        assert killed.server.wait() == -signal.SIGKILL
        ended = time.monotonic()
        assert held.result(PATIENCE_SECONDS) == 502
        load.go_on(100)
        killed.begin_again()
        ran = len(killed.ran)
        until_now(lambda: len(killed.ran) > ran + 20, "requests for who is back", context=lambda: proxy.log)
    assert [each for each in load.failed if not each.begun < ended or not each.ended > began] == []
    assert {each.number for each in load.failed} & set(other.ran) == set()
    ran_once = runs(a, b)
    assert set(ran_once.values()) == {1}
    assert {each.number for each in load.asked if not each.told} <= ran_once.keys()


@each_proxy
def test_a_client_that_may_try_again_what_may_have_run_notices_no_killed_replica(name, start):
    proxy, a, b = start(name)
    url = f"http+{proxy.listen.replace('unix:', 'unix://')}"
    numbers = range(400)
    with Client(url, retry_non_idempotent=True) as client, ThreadPoolExecutor(16) as pool:
        held = pool.submit(client.predict, -1)
        until_now(lambda: a.holders + b.holders, "what it has in hand")
        killed, other = (a, b) if a.holders else (b, a)
        other.open_gate()
        answers = [pool.submit(client.predict, number) for number in numbers]
        until_now(lambda: len(runs(a, b)) > 100, "requests")
        killed.server.signal(signal.SIGKILL)
        assert killed.server.wait() == -signal.SIGKILL
        assert held.result(PATIENCE_SECONDS) == -1
        assert [answer.result(PATIENCE_SECONDS) for answer in answers] == list(numbers)
        assert client.stats.client_initiated_retries > 0
    assert runs(a, b).keys() == {-1, *numbers}
    assert runs(other) == dict.fromkeys(other.ran, 1)
