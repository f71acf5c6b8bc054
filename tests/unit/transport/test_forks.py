"""What a fork does with the descriptors that lead to the workers of its parent."""

from __future__ import annotations

import os
import socket

import pytest

from penstock.transport import forks


class Owner:
    def __init__(self, *descriptors):
        self.descriptors = list(descriptors)

    def own_descriptors(self):
        return self.descriptors


@pytest.fixture(autouse=True)
def owners(monkeypatch):
    monkeypatch.setattr(forks, "_owners", type(forks._owners)())


def test_nothing_done_to_the_descriptor_of_a_worker_reaches_it_from_a_fork():
    ours, theirs = socket.socketpair()
    with ours, theirs, os.fdopen(os.dup(ours.fileno()), "wb") as parents:  # the fork's copy, and the parent's
        owner = Owner(ours.fileno())
        forks.keep_from_forks(owner)
        forks._replace_descriptors()
        assert not os.get_inheritable(ours.fileno())
        assert ours.recv(1) == b""
        with pytest.raises(OSError, match="Broken pipe"):
            ours.send(b"from the fork")
        parents.write(b"from the parent")
        parents.flush()
        assert theirs.recv(100) == b"from the parent"


def test_each_owner_is_asked_once_and_one_that_is_gone_or_has_closed_is_none():
    gone = Owner(10_000)
    forks.keep_from_forks(gone)
    del gone
    closed = Owner()
    forks.keep_from_forks(closed)
    forks._replace_descriptors()
    assert list(forks._owners) == []
    forks._replace_descriptors()
