"""What is right and what is wrong with a queue's file."""

from __future__ import annotations

import pytest

from penstock.config import MIB
from penstock.jobs.stores.sqlite_advice import advise_on_file


def test_a_file_on_a_disk_has_nothing_wrong():
    found = advise_on_file("/var/q.db", "ext4", "FULL", (100 * MIB, 8 * MIB, True))
    assert [(advice.what, advice.found, advice.wrong) for advice in found] == [
        ("file", "/var/q.db", False),
        ("file system", "ext4", False),
        ("synchronous", "FULL", False),
        ("disk", "100.0 MiB free, 8 MiB reserved, a spare file", False),
    ]


def test_a_disk_that_takes_no_new_jobs_is_wrong_and_one_without_a_reserve_is_told():
    *_, full = advise_on_file("/q.db", "ext4", "FULL", (2 * MIB, 8 * MIB, False))
    assert (full.found, full.wrong) == ("2.0 MiB free, 8 MiB reserved, no spare file", True)
    *_, without = advise_on_file("/q.db", "ext4", "FULL", None)
    assert (without.found, without.wrong) == ("no reserve", False)


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_a_file_in_memory_is_wrong_and_the_remedy_says_why(kind):
    _, place, *_ = advise_on_file("/dev/shm/q.db", kind, "FULL")
    assert place.wrong
    assert "lost when the machine restarts" in place.remedy


def test_what_a_power_cut_may_lose_is_told():
    *_, normal, _ = advise_on_file("/q.db", "", "NORMAL")
    assert (normal.found, normal.wrong) == ("NORMAL", False)
    assert "a power cut may lose the last moments" in normal.remedy
