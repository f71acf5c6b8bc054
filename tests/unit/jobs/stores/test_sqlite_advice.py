"""What is right and what is wrong with a queue's file."""

from __future__ import annotations

import pytest

from penstock.jobs.stores.sqlite_advice import advise_on_file


def test_a_file_on_a_disk_has_nothing_wrong():
    found = advise_on_file("/var/q.db", "ext4", "FULL")
    assert [(advice.what, advice.found, advice.wrong) for advice in found] == [
        ("file", "/var/q.db", False),
        ("file system", "ext4", False),
        ("synchronous", "FULL", False),
    ]


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_a_file_in_memory_is_wrong_and_the_remedy_says_why(kind):
    _, place, _ = advise_on_file("/dev/shm/q.db", kind, "FULL")
    assert place.wrong
    assert "gone when the machine is started again" in place.remedy


def test_what_a_power_cut_may_lose_is_told():
    *_, normal = advise_on_file("/q.db", "", "NORMAL")
    assert (normal.found, normal.wrong) == ("NORMAL", False)
    assert "a power cut may lose the last moments" in normal.remedy
