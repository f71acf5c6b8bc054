"""Keep what leads to our workers from the forks of this process.

A fork shares every open file with its parent.  An event loop that ends there, or that only collects its transports,
takes their descriptors out of the parent's epoll; one that runs on reads the parent's answers.  So in a fork each
descriptor of a worker becomes that of a socket whose other end is closed: what is done to it never reaches the parent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Protocol


class DescriptorOwner(Protocol):
    """Something that has descriptors, and that weak references can refer to."""

    def own_descriptors(self) -> list[int]:
        """Those that are open and its own; any other file that got such a number would be lost in a fork."""


_owners: weakref.WeakSet[DescriptorOwner] = weakref.WeakSet()


def keep_from_forks(owner: DescriptorOwner) -> None:
    """From now on, and while `owner` lives, forks of this process get nothing by its descriptors."""
    _owners.add(owner)


def _replace_descriptors() -> None:
    owners = list(_owners)
    if not owners:
        return
    _owners.clear()
    ours, theirs = socket.socketpair()
    ours.setblocking(True)  # whatever default timeout the user's module has set
    theirs.close()
    with ours:
        for owner in owners:
            for descriptor in owner.own_descriptors():
                with contextlib.suppress(OSError):
                    os.dup2(ours.fileno(), descriptor, inheritable=False)


os.register_at_fork(after_in_child=_replace_descriptors)
