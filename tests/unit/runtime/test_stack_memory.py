"""The memory in which a worker leaves its stacks, at its end."""

from __future__ import annotations

import pytest

from penstock.runtime.stack_memory import StackMemory


def test_memory_that_was_closed_with_its_worker_reads_as_empty():
    memory = StackMemory.make()
    if memory is None:
        pytest.skip("this system has no such memory")
    memory.close()
    assert memory.read() == ""
