"""Large blocks are kept for the next ones, unless the user has said what is to be kept."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from penstock.hosting.malloc_thresholds import keep_large_blocks

MIB = 1024 * 1024

FAULTS = """
import os, resource
from penstock.hosting.malloc_thresholds import keep_large_blocks

if {kept}:
    keep_large_blocks(os.environ)
body = memoryview(bytes(600_000))
copies = [None] * 8
for turn in range(20):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for i in range(8):
        copies[i] = bytes(body)
    for i in range(8):
        copies[i] = None
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Prints how many page faults 80 copies cost, each of which has 146 pages."""


@pytest.fixture
def options_set(monkeypatch):
    """What the C library was told, in a list of (name, value)."""
    told = []
    library = SimpleNamespace(mallopt=lambda name, value: told.append((name, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    return told


def faults(*, kept, **variables):
    environ = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", FAULTS.format(kept=kept)]
    done = subprocess.run(command, env=environ | variables, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_both_thresholds_are_raised(options_set):
    keep_large_blocks({"MALLOC_ARENA_MAX": "2", "GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert options_set == [(-3, 32 * MIB), (-1, 64 * MIB)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "131072"),
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2:glibc.malloc.trim_threshold=131072"),
    ],
)
def test_what_the_user_has_set_is_left_alone(options_set, name, value):
    keep_large_blocks({name: value})
    assert options_set == []


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_large_blocks({})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these thresholds")
def test_copies_of_large_bodies_cost_no_page_faults():
    assert faults(kept=True) < 500
    assert faults(kept=False) > 5000  # else the figure above would tell nothing
    assert faults(kept=True, MALLOC_TRIM_THRESHOLD_="131072") > 5000
