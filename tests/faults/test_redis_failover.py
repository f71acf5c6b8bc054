"""Another Redis server becomes the primary, behind a name or Sentinels: whoever is connected goes there by itself.

No job is lost, none is done twice, and nobody is restarted.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from moving_names import VARIABLE, MovingName, look_up_in
from waiting import until_now
from worked import queue_in

from night import tight
from penstock.errors import StoreUnavailable
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import NewJob
from penstock.jobs.stores.opening import open_store
from penstock.testing.history import Act
from penstock.testing.store_case import failure, handed_back, ids, put, success, take, take_one
from redis_server import free_port, private_redis, private_sentinel

ResponseError = pytest.importorskip("redis").exceptions.ResponseError
JOBS = 24
SLOW = 0.1
"""Seconds for a job, so that some are left when the primary moves."""
NAME = "queue.test"
FOLLOWS_WITHIN = 5.0
"""Seconds from the moment at which the name leads to the new primary."""


def follow(replica, primary):
    """Have the one follow the other, and wait until it has everything."""
    replica.command("REPLICAOF", primary.address, primary.port)
    until_now(lambda: replica.told("replication")["master_link_status"] == "up", "the replica to be one")


class Pair:
    """Two servers with one port at two addresses, and the name of the one that is the primary."""

    def __init__(self, folder, stack):
        self.port = free_port("127.0.0.1", "127.0.0.2")
        self.primary, self.replica = (
            stack.enter_context(private_redis("--repl-diskless-sync-delay", "0", address=address, port=self.port))
            for address in ("127.0.0.1", "127.0.0.2")
        )
        follow(self.replica, self.primary)
        self.name = MovingName(folder / "names", NAME)
        self.move_name()
        self.url = f"redis://{NAME}:{self.port}/0"

    def move_name(self):
        self.name.move(self.primary.address)

    def fail_over(self):
        """As an operator does it: nothing that was answered is missing at the new primary.  The name stays."""

        def begun():
            try:
                return self.primary.command("FAILOVER")
            except ResponseError:  # it is online a moment later
                return False

        until_now(begun, "the replica to be known")
        until_now(lambda: self.primary.told("replication")["role"] == "slave", "the former primary to be a replica")
        self.primary, self.replica = self.replica, self.primary


@pytest.fixture
def pair(tmp_path, monkeypatch):
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # which is put back in the end
        look_up_in(str(pair.name.path))
        yield pair


@pytest.fixture
def store(pair):
    store = open_store(pair.url)
    yield store
    store.close()


# -- behind a name ----------------------------------------------------------------------------------------------------


def test_consumers_and_submitters_follow_the_name_after_a_planned_failover(pair, tmp_path):
    with queue_in(tmp_path, pair.url) as queue:
        working = [queue.work(**{VARIABLE: str(pair.name.path)}).up() for _ in range(2)]
        queue.submit_many(JOBS, seconds=SLOW)
        queue.until(lambda: queue.states()[JobState.SUCCEEDED] >= 4, "some jobs to be done")
        pair.fail_over()
        for each in working:
            each.wait_for("job store unavailable: .*is a read-only replica")
        pair.move_name()
        moved = time.monotonic()
        queue.until_done()
        queue.submit_many(JOBS, prefix="later")
        queue.until_done()
        for each in working:
            each.end()
        queue.check()
        assert {queue.calls(job.id) for job in queue.jobs()} == {1}
        assert not any(job.failures for job in queue.jobs())
        claimed = [event.at for event in queue.events() if event.act is Act.CLAIM and event.ended and event.parts]
        assert min(at for at in claimed if at > moved) - moved <= tight(FOLLOWS_WITHIN)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_many_failovers_beside_kills_lose_nothing_and_double_nothing(pair, tmp_path):
    """Only a job that somebody held who was killed runs again, and each such run is counted as lost."""
    rounds = int(os.environ.get("SOAK_FAILOVERS", "20"))
    names = {VARIABLE: str(pair.name.path)}
    with queue_in(tmp_path, pair.url) as queue:
        working = [queue.work("--lease", "12", **names).up() for _ in range(2)]
        for number in range(rounds):
            queue.submit_many(JOBS, seconds=SLOW, prefix=f"round-{number}")
            done = queue.states()[JobState.SUCCEEDED]
            queue.until(lambda done=done: queue.states()[JobState.SUCCEEDED] >= done + 4, "some jobs to be done")
            if number % 2:
                working.pop(0).kill()
                working.append(queue.work("--lease", "12", **names))
            noticed = working[0].output.count("is a replica")
            pair.fail_over()
            if number % 3:
                queue.until(
                    lambda noticed=noticed: working[0].output.count("is a replica") > noticed, "it to be noticed"
                )
            pair.move_name()
            queue.until_done()
        for each in working:
            each.up().end()
        queue.check()
        for job in queue.jobs():
            assert queue.calls(job.id) <= 1 + job.failures.get("lease_expired", 0), job
            assert {attempt.cause for attempt in job.attempts} <= {"succeeded", "lease_expired", "released"}, job


def leave_alone(server):
    """Have a former primary keep what it has for ever: it is a replica of nobody who is there."""
    server.command("REPLICAOF", "127.0.0.1", "1")


CALLS = {
    "get": (lambda store: store.get(["done"])[0].state, JobState.SUCCEEDED),
    "result": (lambda store: store.result("done").body, b"7"),
    "list": (lambda store: store.list_jobs(None, 1, None)[0].state, JobState.SUCCEEDED),
    "stats": (lambda store: store.stats().succeeded, 1),
    "kept": (lambda store: store.kept_inputs([NewJob("new", key="k")])[0].body, b"5"),
    "claim": (lambda store: ids(take(store, services=["s"])), ["claimable"]),
    "retry": (lambda store: store.retry("dead").generation, 2),
    "cancel": (lambda store: store.cancel("new").state, JobState.CANCELLED),
    "submit": (lambda store: store.submit([NewJob("another")])[0].state, JobState.QUEUED),
}
"""Each call with its answer by the new primary."""


def test_every_call_over_a_kept_connection_is_answered_by_the_new_primary(pair, store):
    """Also those that only read, which a replica answers with what was true once."""
    store.submit([NewJob("done", b"1"), NewJob("dead", b"2")])
    done, dead = take(store)
    kept = {call: open_store(pair.url) for call in CALLS}
    pair.fail_over()
    leave_alone(pair.replica)
    pair.move_name()
    store.end_attempts([success(done.hold, b"7"), failure(dead.hold)])
    store.submit([NewJob("new", b"5", key="k", service="other"), NewJob("claimable", service="s")])
    for name, (call, answer) in CALLS.items():
        assert call(kept[name]) == answer, name
        kept[name].close()


def test_a_replica_is_told_as_one_until_the_name_leads_elsewhere(pair, store):
    put(store)
    pair.fail_over()
    for call in (store.stats, lambda: take(store), lambda: put(store, "b")):
        with pytest.raises(StoreUnavailable, match=rf"Redis at {NAME}:\d+ is a read-only replica"):
            call()
    pair.move_name()
    assert ids(take(store)) == ["a"]


def test_idle_connections_to_the_former_primary_are_closed_with_the_one_that_heard_of_it(pair, store):
    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:

        def call(_):
            together.wait()
            return store.stats().queued

        until_now(lambda: list(threads.map(call, range(4))) and len(connections(pair.primary)) > 1, "connections")
    pair.fail_over()
    pair.move_name()
    put(store)
    assert connections(pair.replica) == []
    assert ids(take(store)) == ["a"]


def connections(server):
    """Those over which a store has called it."""
    return [line for line in server.command("CLIENT", "LIST").decode().splitlines() if "cmd=evalsha" in line]


def test_each_server_that_becomes_the_primary_gives_fences_that_nobody_else_has_given(pair, store):
    """The last of a former one may be missing.  The scripts are there already where it is the primary once more."""
    put(store)
    fences = []
    for _ in range(4):
        claimed = take_one(store)
        fences.append(claimed.fence)
        store.end_attempts([handed_back(claimed.hold)])
        pair.fail_over()
        pair.move_name()
    assert all(later > former + 1 for former, later in itertools.pairwise(fences))


# -- behind Sentinels -------------------------------------------------------------------------------------------------


class Watched:
    """Two servers that three Sentinels watch."""

    def __init__(self, stack):
        self.servers = []
        for address in ("127.0.0.1", "127.0.0.2"):
            settings = ("--repl-diskless-sync-delay", "0")
            server = private_redis(*settings, address=address, port=free_port(address))
            self.servers.append(stack.enter_context(server))
        first, second = self.servers
        follow(second, first)
        self.sentinels = [stack.enter_context(private_sentinel(first, port=free_port("127.0.0.1"))) for _ in range(3)]
        self.url = f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/queue"
        for each in self.sentinels:
            until_now(lambda each=each: self._known(each) == (1, 2), "the Sentinels to know each other")

    def _known(self, sentinel):
        """How many replicas and other Sentinels it knows."""
        return tuple(len(sentinel.command("SENTINEL", about, "queue")) for about in ("REPLICAS", "SENTINELS"))

    def fail_over(self):
        """As an operator does it."""

        def begun():
            try:
                return self.sentinels[0].command("SENTINEL", "FAILOVER", "queue")
            except ResponseError:  # it knows the replica better a moment later
                return False

        until_now(begun, "the failover to begin")

    def crash(self):
        """End the primary."""
        self.servers[0].kill()

    def until_moved(self):
        """Wait until the second server is the primary, and every Sentinel says so; the first one takes no changes."""
        first, second = self.servers
        until_now(lambda: second.told("replication")["role"] == "master", "the replica to be the primary")
        for each in self.sentinels:
            until_now(lambda each=each: self._primary(each) == (second.address, second.port), "Sentinels to say so")
        if first.is_running():
            until_now(lambda: first.told("replication")["role"] == "slave", "the former primary to be a replica")

    def _primary(self, sentinel):
        address, port = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "queue")
        return address.decode(), int(port)


@pytest.mark.parametrize("how", ["fail_over", pytest.param("crash", marks=pytest.mark.night)])
def test_consumers_and_submitters_go_where_sentinels_say_that_the_primary_is(tmp_path, how):
    with ExitStack() as stack:
        watched = Watched(stack)
        queue = stack.enter_context(queue_in(tmp_path, watched.url))
        working = queue.work("--lease", "60").up()
        gate = queue.folder / "gate"
        held = [queue.submit(f"held-{n}", 2 * n, x=n, gate=str(gate)) for n in range(4)]
        queue.until(lambda: queue.states()[JobState.RUNNING] == len(held), "all to be held")
        # Sentinels do not wait for the replica to have everything, as FAILOVER does.
        until_now(lambda: watched.servers[0].command("WAIT", 1, 1000), "the replica to have all that was answered")
        getattr(watched, how)()
        watched.until_moved()
        gate.touch()
        queue.until_done()
        queue.submit_many(JOBS, prefix="later")
        queue.until_done()
        working.end()
        queue.check()
        assert {queue.calls(job.id) for job in queue.jobs()} == {1}
        assert not any(job.failures for job in queue.jobs())
