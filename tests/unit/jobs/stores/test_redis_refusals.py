"""What a Redis server that refuses means, by the library's class or by the server's word."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, StoreUnavailable
from penstock.jobs.store import StoreFull
from penstock.jobs.stores.redis_refusals import explain_refusal, may_have_moved

IN_A_SCRIPT = "Error running script (call to f_ab): @user_script:31: -{} used memory > 'maxmemory'."


@pytest.mark.parametrize(
    ("kind", "text", "means"),
    [
        ("AuthenticationError", "Authentication required.", "rejected the user name or password"),
        ("ResponseError", "WRONGPASS invalid username-password pair", "rejected the user name or password"),
        ("NoPermissionError", "this user has no permissions", "denies this user"),
        ("ResponseError", "NOPERM this user has no permissions", "denies this user"),
        ("MovedError", "12 127.0.0.1:7000", "a cluster node that does not hold this queue"),
    ],
)
def test_what_waiting_does_not_mend_is_an_error_of_the_configuration(kind, text, means):
    error = explain_refusal("Redis at h:1", kind, text, 5.0)
    assert type(error) is ConfigError
    assert str(error).startswith(f"Redis at h:1 {means}" if not means.startswith("a cluster") else "Redis at h:1 is")
    assert means in str(error)


@pytest.mark.parametrize(
    ("kind", "text"), [("OutOfMemoryError", "command not allowed"), ("ResponseError", IN_A_SCRIPT.format("OOM"))]
)
def test_a_server_without_memory_is_full_and_has_done_nothing(kind, text):
    error = explain_refusal("Redis at h:1", kind, text, 5.0)
    assert type(error) is StoreFull
    assert "is out of memory" in str(error)


@pytest.mark.parametrize(
    ("kind", "text", "means"),
    [
        ("BusyLoadingError", "Redis is loading the dataset in memory", "is loading its data from disk"),
        ("ReadOnlyError", "You can't write against a read only replica.", "is a read-only replica"),
        ("ResponseError", IN_A_SCRIPT.format("READONLY"), "is a read-only replica"),
        ("ResponseError", "MISCONF Redis is configured to save RDB snapshots, but", "cannot write to its disk"),
        ("ResponseError", "UNBLOCKED force unblock from blocking operation, instance", "has become a replica"),
        ("AskError", "12 127.0.0.1:7000", "is moving this queue to another node"),
        ("ResponseError", "NOREPLICAS Not enough good replicas to write.", "has too few replicas"),
        ("ResponseError", "BUSY Redis is busy running a script.", "is busy with a script of another client"),
        ("TimeoutError", "Timeout reading from socket", "did not respond within 5 s"),
        (
            "ConnectionError",
            "Error 111 connecting to h:1.",
            "cannot connect to Redis at h:1: Error 111 connecting to h:1.",
        ),
        ("ResponseError", "WRONGTYPE Operation against a key", "reported an error: WRONGTYPE Operation"),
    ],
)
def test_what_may_pass_is_told_as_a_store_that_cannot_be_used_now(kind, text, means):
    error = explain_refusal("Redis at h:1", kind, text, 5.0)
    assert type(error) is StoreUnavailable
    assert means in str(error)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ReadOnlyError", "You can't write against a read only replica."),
        ("ResponseError", IN_A_SCRIPT.format("READONLY")),
        ("MasterDownError", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        ("BusyLoadingError", "Redis is loading the dataset in memory"),
        ("MovedError", "12 127.0.0.1:7000"),
        ("AskError", "12 127.0.0.1:7000"),
        ("TryAgainError", "Multiple keys request during rehashing of slot"),
        ("ClusterDownError", "The cluster is down"),
        ("ResponseError", "NOREPLICAS Not enough good replicas to write."),
        ("ResponseError", "UNBLOCKED force unblock from blocking operation, instance state changed"),
    ],
)
def test_another_server_may_be_the_one_where_this_one_says_that_it_is_not(kind, text):
    assert may_have_moved(kind, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("OutOfMemoryError", "command not allowed"),
        ("ResponseError", "MISCONF Redis is configured to save RDB snapshots, but"),
        ("ResponseError", "BUSY Redis is busy running a script."),
        ("NoPermissionError", "this user has no permissions"),
        ("NoScriptError", "No matching script."),
        ("ResponseError", "WRONGTYPE Operation against a key"),
        ("TimeoutError", "Timeout reading from socket"),
    ],
)
def test_a_server_that_refuses_for_another_reason_is_still_the_one(kind, text):
    assert not may_have_moved(kind, text)
