"""What memory is available, and how much there can be, from files as the kernel writes them."""

from __future__ import annotations

import resource
from pathlib import PurePosixPath

import pytest

from penstock.hosting import available_memory as module
from penstock.hosting.available_memory import (
    MemoryFiles,
    available_memory,
    memory_limit,
    read_cgroup_name,
    read_meminfo,
)

MEMINFO = "MemTotal:       16384000 kB\nMemFree:          102400 kB\nMemAvailable:    2048000 kB\nBuffers:  1 kB\n"
OF_MEMINFO = 2_048_000 * 1024
ALL_OF_MEMINFO = 16_384_000 * 1024
NO_LIMIT_OF_VERSION_1 = 0x7FFF_FFFF_FFFF_F000


@pytest.fixture
def machine(tmp_path):
    """A machine whose process is in the cgroups that `own` says; `limits` has files and what they say.

    Each of `cgroups` has its limit and what it has taken.
    """

    def machine(own="0::/a/b\n", meminfo=MEMINFO, limits=(), **cgroups):
        (tmp_path / "proc/self").mkdir(parents=True)
        if own is not None:
            (tmp_path / "proc/self/cgroup").write_text(own)
        if meminfo is not None:
            (tmp_path / "proc/meminfo").write_text(meminfo)
        said = dict(limits)
        for name, (most, taken) in cgroups.items():
            folder = name.removeprefix("root").replace("_", "/")
            said |= {f"{folder}/memory.max": most, f"{folder}/memory.current": taken}
        for name, bytes_or_word in said.items():
            if bytes_or_word is not None:
                file = tmp_path / "cgroup" / name.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{bytes_or_word}\n")
        return MemoryFiles(tmp_path / "proc", tmp_path / "cgroup")

    return machine


def test_it_is_what_the_cgroup_leaves(machine):
    assert machine(a_b=(1000, 300)).available() == 700


@pytest.mark.parametrize(
    ("cgroups", "available"),
    [
        ({"a_b": (1000, 300), "a": (2000, 1900)}, 100),
        ({"a_b": (1000, 300), "a": ("max", 1900)}, 700),
        ({"a_b": ("max", 300), "a": (2000, 1900)}, 100),
        ({"a_b": ("max", 300), "a": ("max", 1900), "root": (5000, 1000)}, 4000),
        ({"root": (5000, 1000)}, 4000),
        ({"a_b": (1000, 300), "a": (2000, 0), "other": (10, 10)}, 700),
    ],
)
def test_of_nested_cgroups_the_tightest_counts(machine, cgroups, available):
    assert machine(**cgroups).available() == available


def test_more_may_be_taken_than_the_limit_for_a_moment(machine):
    assert machine(a_b=(1000, 1004)).available() == 0


@pytest.mark.parametrize(
    "cgroups",
    [{}, {"a_b": ("max", 5), "a": ("max", 5)}, {"a_b": (None, 5)}, {"a_b": (1000, None)}, {"a_b": ("x", 5)}],
)
def test_without_a_limit_it_is_what_the_machine_has_available(machine, cgroups):
    assert machine(**cgroups).available() == OF_MEMINFO


@pytest.mark.parametrize("own", [None, "", "4:memory:/a/b\n1:name=systemd:/\n"])
def test_cgroups_of_version_1_are_not_asked(machine, own):
    assert machine(own=own, a_b=(1000, 300), root=(5, 5)).available() == OF_MEMINFO


def test_where_nothing_tells_it_is_not_known(machine):
    assert machine(own=None, meminfo=None).available() is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0::/\n", "."),
        ("4:memory:/x\n0::/a/b.slice\n", "a/b.slice"),
        ("0::/../../a\n", "a"),
        ("0::/../..\n", "."),
        ("0::/a/./b//c\n", "a/b/c"),
    ],
)
def test_the_cgroup_is_named_below_what_the_process_sees(text, name):
    assert read_cgroup_name(text) == PurePosixPath(name)


@pytest.mark.parametrize("text", ["", "MemFree: 1 kB\n", "MemAvailable:\n", "MemAvailable: x kB\n"])
def test_a_kernel_may_not_tell_what_is_available(text):
    assert read_meminfo(text, "MemAvailable") is None


@pytest.mark.parametrize(
    ("addresses", "limit"),
    [(ALL_OF_MEMINFO - 1, ALL_OF_MEMINFO - 1), (ALL_OF_MEMINFO + 1, ALL_OF_MEMINFO), (-1, ALL_OF_MEMINFO)],
)
def test_the_limit_of_addresses_is_one_of_memory(tmp_path, monkeypatch, addresses, limit):
    monkeypatch.setattr(module, "HERE", MemoryFiles(tmp_path, tmp_path))
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (addresses, -1)}.get)
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert memory_limit() == limit


def test_this_machine_is_asked_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    monkeypatch.setattr(module, "HERE", MemoryFiles(tmp_path, tmp_path))
    assert (available_memory(), memory_limit()) == (None, None)
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert (available_memory(), memory_limit()) == (OF_MEMINFO, ALL_OF_MEMINFO)


# -- the limit --------------------------------------------------------------------------------------------------------


OF_VERSION_1 = "9:name=systemd:/x\n4:cpu,memory:/a/b\n1:cpu,cpuacct:/y\n0::/\n"


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"a/b/memory.max": 1000}, 1000),
        ({"a/b/memory.max": 1000, "a/memory.max": 900}, 900),
        ({"a/b/memory.max": "max", "a/memory.max": 900, "memory.max": 800}, 800),
        ({"memory.max": 800}, 800),
        ({"a/b/memory.max": 1000, "a/b/memory.current": 999}, 1000),
        ({"a/b/memory.max": 0}, 0),
        ({"a/b/memory.max": ALL_OF_MEMINFO + 1}, ALL_OF_MEMINFO),
        ({"a/b/memory.max": "max"}, ALL_OF_MEMINFO),
        ({"a/b/memory.max": ""}, ALL_OF_MEMINFO),
        ({"other/memory.max": 10}, ALL_OF_MEMINFO),
        ({}, ALL_OF_MEMINFO),
    ],
)
def test_the_limit_is_the_smallest_of_the_machine_and_its_cgroups(machine, limits, limit):
    assert machine(limits=limits).limit() == limit


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"memory/a/b/memory.limit_in_bytes": 1000}, 1000),
        ({"memory/a/b/memory.limit_in_bytes": 1000, "memory/a/memory.limit_in_bytes": 900}, 900),
        ({"memory/a/b/memory.limit_in_bytes": NO_LIMIT_OF_VERSION_1, "memory/memory.limit_in_bytes": 800}, 800),
        ({"memory/memory.limit_in_bytes": 800}, 800),
        ({"memory/a/b/memory.limit_in_bytes": 1000, "memory.max": 700}, 700),
        ({"memory/a/b/memory.limit_in_bytes": NO_LIMIT_OF_VERSION_1}, ALL_OF_MEMINFO),
        ({"memory/y/memory.limit_in_bytes": 10, "a/b/memory.limit_in_bytes": 10, "a/b/memory.max": 10}, ALL_OF_MEMINFO),
    ],
)
def test_cgroups_of_version_1_have_limits_too(machine, limits, limit):
    assert machine(OF_VERSION_1, limits=limits).limit() == limit


def test_no_limit_of_version_1_is_none_where_the_machine_does_not_tell(machine):
    assert machine(OF_VERSION_1, "", {"memory/a/b/memory.limit_in_bytes": NO_LIMIT_OF_VERSION_1}).limit() is None


def test_a_limit_is_known_where_the_machine_does_not_tell(machine):
    assert machine(OF_VERSION_1, "", {"memory/a/b/memory.limit_in_bytes": 1000}).limit() == 1000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4:memory:/x\n0::/a/b.slice\n", "x"),
        ("4:cpu,memory:/x/y\n", "x/y"),
        ("4:memory:/../x\n", "x"),
        ("4:memory:/\n", "."),
        ("4:memory:/a:b\n", "a:b"),
        ("0::/a\n", None),
        ("0:memory:/a\n", None),
        ("4:memory_recursiveprot:/a\n4:name=memory:/a\n", None),
        ("4:memory\nmemory\n", None),
    ],
)
def test_the_cgroup_of_version_1_is_the_one_that_has_memory(text, name):
    assert read_cgroup_name(text, "memory") == (None if name is None else PurePosixPath(name))


@pytest.mark.parametrize("text", ["0:\n", "0::\n", "0::a\n", "4::/a\n", "0:memory:/a\n"])
def test_a_line_of_another_form_names_no_cgroup(text):
    assert read_cgroup_name(text) is None
