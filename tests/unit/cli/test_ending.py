"""What is said of what keeps a process from its end."""

from __future__ import annotations

import pytest

from penstock.cli.ending import what_goes_on


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        ([], "the process ends although functions registered with atexit go on"),
        (["a"], "the process ends although threads go on: a"),
        ([*"abcdefghij"], "the process ends although threads go on: a, b, c, d, e, f, g, h, i, j"),
        ([*"abcdefghijkl"], "the process ends although threads go on: a, b, c, d, e, f, g, h, i, j and 2 more"),
    ],
)
def test_the_threads_that_go_on_are_named_in_one_short_line(threads, words):
    assert what_goes_on(threads) == words
