"""The cores of this process, also on a system that does not tell them."""

from __future__ import annotations

import os

import pytest

from penstock.errors import ConfigError
from penstock.runtime.affinity import allowed_cores, check_cores, pin


def test_the_allowed_cores_are_what_the_system_says(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5} if pid == 0 else set(), raising=False)
    assert allowed_cores() == frozenset({3, 5})


@pytest.mark.parametrize(("count", "cores"), [(4, {0, 1, 2, 3}), (None, {0})])
def test_where_the_system_does_not_say_all_are_allowed(monkeypatch, count, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert allowed_cores() == cores


def test_cores_that_are_not_allowed_are_named():
    check_cores("x", [1, 2], frozenset({1, 2, 3}))
    with pytest.raises(ConfigError, match=r"^x: cpus \[0, 7\] are not among the allowed cores \[1, 2\]$"):
        check_cores("x", [7, 0, 1], frozenset({2, 1}))


def test_the_calling_thread_is_pinned_where_that_can_be(monkeypatch):
    pinned = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *given: pinned.append(given), raising=False)
    pin([2, 1])
    assert pinned == [(0, {1, 2})]
    monkeypatch.delattr(os, "sched_setaffinity")
    pin([2, 1])
