"""Counting in a worker: where it counts, what is sent, and when."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import penstock as ps
from penstock.core.series import MOST_SERIES
from penstock.errors import ConfigError
from penstock.worker import counting
from penstock.worker.counting import Counting, count_own, flush_counts

PATIENCE_SECONDS = 20.0
"""Only a broken test waits so long."""


class Sent:
    """The other end of a worker's counts; refuses them while `gone`."""

    def __init__(self):
        self.gone = False
        self.all = []
        self.first = queue.SimpleQueue()

    def __call__(self, counted):
        if self.gone:
            return counted
        self.all += counted
        self.first.put(threading.current_thread().name)
        return []

    @property
    def totals(self):
        totals = {}
        for (name, labels), amount in self.all:
            key = (name, *[f"{label}={value}" for label, value in labels])
            totals[key] = totals.get(key, 0.0) + amount
        return totals


@pytest.fixture
def sent():
    return Sent()


@pytest.fixture
def worker(sent):
    """Makes this thread, or with `whole_process` this process, a worker."""
    return lambda whole_process=False: Counting(sent, whole_process=whole_process)


def test_what_was_counted_is_sent_at_the_end_and_nothing_is_counted_after_it(worker, sent):
    with worker():
        ps.count("hits")
        ps.count("hits", 2.5)
        ps.count("hits_by", np.int64(3), lang="en", top=5)
        ps.count("errors", 0)
        count_own("rows_fetched", 7, table="user")
    ps.count("hits")
    assert sent.totals == {
        ("user_hits",): 3.5,
        ("user_hits_by", "lang=en", "top=5"): 3.0,
        ("user_errors",): 0.0,
        ("rows_fetched", "table=user"): 7.0,
    }


def test_a_count_is_sent_by_a_thread_while_the_worker_is_at_work(worker, sent, monkeypatch):
    monkeypatch.setattr(counting, "INTERVAL_SECONDS", 0.0)
    with worker():
        for total in (1, 2):
            ps.count("hits")
            assert sent.first.get(timeout=PATIENCE_SECONDS) == "penstock-counts"
            assert sent.totals == {("user_hits",): total}


def test_a_worker_that_counts_nothing_has_no_thread(worker, sent):
    before = threading.active_count()
    with worker():
        assert threading.active_count() == before
    assert sent.all == []


def test_nothing_counted_by_several_threads_of_a_process_is_lost(worker, sent, monkeypatch):
    monkeypatch.setattr(counting, "INTERVAL_SECONDS", 0.0)

    def work():
        for i in range(2000):
            ps.count("hits", lang="en" if i % 2 else "de")

    with worker(whole_process=True):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sent.totals == {("user_hits", "lang=de"): 8000.0, ("user_hits", "lang=en"): 8000.0}


def test_workers_that_are_threads_count_apart_and_their_threads_count_nothing(sent):
    other = Sent()

    def work():
        with Counting(other, whole_process=False):
            ps.count("hits", 5)

    with Counting(sent, whole_process=False):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        thread = threading.Thread(target=ps.count, args=("hits", 100))
        thread.start()
        thread.join()
        ps.count("hits", 3)
    assert (sent.totals, other.totals) == ({("user_hits",): 3.0}, {("user_hits",): 5.0})


def test_what_cannot_be_sent_is_sent_later_and_once(worker, sent):
    with worker():
        sent.gone = True
        ps.count("hits")
        flush_counts()
        ps.count("hits")
        sent.gone = False
        flush_counts()
        flush_counts()
    assert sent.all == [(("user_hits", ()), 2.0)]


def test_series_are_kept_up_to_one_more_than_the_coordinator_takes(worker, sent):
    with worker():
        for i in range(MOST_SERIES + 5):
            ps.count("hits", user=i)
        flush_counts()
        ps.count("hits", user=3)
        ps.count("hits", user=MOST_SERIES + 3)
    assert len(sent.totals) == MOST_SERIES + 1
    assert sent.totals["user_hits", "user=3"] == 2.0


def test_a_counter_has_the_same_labels_each_time(worker, sent):
    with worker():
        ps.count("hits", lang="en")
        ps.count("hits", lang="de")
        with pytest.raises(
            ConfigError, match=r"'hits' was used before with the labels \(lang\), now with \(lang, top\)"
        ):
            ps.count("hits", lang="en", top=1)
    assert set(sent.totals) == {("user_hits", "lang=en"), ("user_hits", "lang=de")}


def test_a_value_is_cut_and_loses_what_cannot_be_sent(worker, sent):
    with worker():
        ps.count("long", path="ä" * 300)
        ps.count("odd", path=os.fsdecode(b"a\xffb"))
    assert set(sent.totals) == {("user_long", "path=" + "ä" * 200), ("user_odd", "path=a?b")}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("name", "n", "labels"), [("Hits", 1, {}), ("hits", -1, {}), ("hits", 1, {"stage": "x"})])
def test_what_cannot_be_counted_is_refused_also_where_nothing_is_counted(worker, sent, inside, name, n, labels):
    if inside:
        with worker(), pytest.raises(ConfigError):
            ps.count(name, n, **labels)
    else:
        with pytest.raises(ConfigError):
            ps.count(name, n, **labels)
    assert sent.all == []


def test_penstock_counts_only_what_it_knows_of_itself():
    with pytest.raises(ConfigError, match="'rows' is not one of Penstock's own counters: rows_fetched"):
        count_own("rows", 1)


def test_a_fork_of_a_worker_counts_nothing_and_waits_for_nobody():
    program = """
        import os
        import penstock as ps
        from penstock.worker.counting import Counting

        def send(counted):
            print(os.getpid() == PARENT, counted, flush=True)
            return []

        PARENT = os.getpid()
        worker = Counting(send, whole_process=True)
        with worker:
            ps.count("hits")
            with worker._lock:  # as if a thread of the worker counted at the moment of the fork
                if os.fork() == 0:
                    ps.count("hits")
                    os._exit(0)
            os.wait()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True [(('user_hits', ()), 1.0)]\n", done.stderr
