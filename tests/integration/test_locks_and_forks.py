"""A process that was forked from the holder of a lock has no part in it."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.hosting import kernel_locks
from penstock.hosting.folder_lock import FolderLocked, folder_lock


def test_a_fork_has_no_part_in_a_lock(tmp_path):
    ready, tell = os.pipe()
    with folder_lock(tmp_path):
        child = os.fork()
        if not child:
            os.write(tell, b"%d" % len(kernel_locks._held))
            signal.pause()
        assert os.read(ready, 1) == b"0"
    with folder_lock(tmp_path, wait=0.0):  # the child lives, and has the descriptor no more
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)


def test_what_a_fork_does_to_the_lock_is_nothing(tmp_path):
    lock = folder_lock(tmp_path)
    lock.__enter__()
    child = os.fork()
    if not child:
        lock.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(FolderLocked):
        folder_lock(tmp_path, wait=0.0).__enter__()
    lock.__exit__(None, None, None)
