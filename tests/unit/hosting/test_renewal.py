"""What is read again: in a thread, put in force on the loop, and the old stays where the new is bad."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import ConfigError
from penstock.hosting import renewal
from penstock.hosting.renewal import Renewal, renew


@pytest.fixture(autouse=True)
def log_seen(caplog):
    caplog.set_level("INFO", logger="penstock.server")


def fail(error):
    def read(*_):
        raise error

    return read


async def test_it_is_read_in_a_thread_and_put_in_force_on_the_loop(caplog):
    where = []

    def read():
        where.append(threading.current_thread())
        return lambda: where.append(threading.current_thread())

    await renew([Renewal("the keys", read)], "SIGHUP")
    assert where[0].daemon
    assert where[1] is threading.current_thread()
    assert caplog.messages == ["SIGHUP: reloaded the keys"]


@pytest.mark.parametrize(
    ("error", "line", "trace"),
    [(ConfigError("it holds no key"), "it holds no key", False), (ValueError("a bug"), "the keys", True)],
)
async def test_what_is_bad_is_logged_and_keeps_nothing_else_from_being_renewed(caplog, error, line, trace):
    used = []
    await renew(
        [Renewal("the keys", fail(error)), Renewal("the certificate", lambda: lambda: used.append(1))], "SIGHUP"
    )
    assert used == [1]
    assert set(caplog.messages) == {
        f"SIGHUP: reload failed, keeping the old one: {line}",
        "SIGHUP: reloaded the certificate",
    }
    assert ("ValueError: a bug" in caplog.text) is trace


async def test_where_nothing_is_read_from_files_a_line_says_so(caplog):
    await renew([], "SIGHUP")
    assert caplog.messages == ["SIGHUP: nothing to reload: no certificate and no key file is set"]


async def test_a_file_that_hangs_is_given_up_and_what_it_brings_later_is_dropped(caplog, monkeypatch):
    monkeypatch.setattr(renewal, "RENEWAL_SECONDS", 0.0)
    gate, used = threading.Event(), []

    def read():
        gate.wait()
        return lambda: used.append("late")

    before = set(threading.enumerate())
    await renew([Renewal("the keys", read)], "SIGHUP")
    assert caplog.messages == ["SIGHUP: reload failed, keeping the old one: reading the keys took longer than 0 s"]
    gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    await renew([], "SIGHUP")  # the loop runs what the thread has left
    assert used == []


async def test_while_a_file_still_hangs_it_is_not_read_once_more(caplog, monkeypatch):
    monkeypatch.setattr(renewal, "RENEWAL_SECONDS", 0.0)
    gate, reads, used = threading.Event(), [], []

    def read():
        reads.append(1)
        gate.wait()
        return lambda: used.append(1)

    before = set(threading.enumerate())
    keys = Renewal("the keys", read)
    for _ in range(3):
        await renew([keys], "SIGHUP")
    assert len(reads) == 1
    assert (
        caplog.messages[1:]
        == ["SIGHUP: reload failed, keeping the old one: an earlier read of the keys has not finished"] * 2
    )
    gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    monkeypatch.setattr(renewal, "RENEWAL_SECONDS", 10.0)
    await renew([keys], "SIGHUP")
    assert (len(reads), used) == (2, [1])


async def test_a_thread_that_cannot_be_started_keeps_no_later_one_from_it(caplog, monkeypatch):
    keys = Renewal("the keys", lambda: lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail(RuntimeError("can't start new thread")))
        await renew([keys], "SIGHUP")
    await renew([keys], "SIGHUP")
    assert caplog.messages == ["SIGHUP: reload failed, keeping the old one: the keys", "SIGHUP: reloaded the keys"]
