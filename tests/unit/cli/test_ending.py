"""What is said of what keeps a process from its end."""

from __future__ import annotations

import pytest

from penstock.cli.ending import what_goes_on


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        ([], "exiting while functions registered with atexit are still running"),
        (["a"], "exiting with non-daemon threads still running: a"),
        ([*"abcdefghij"], "exiting with non-daemon threads still running: a, b, c, d, e, f, g, h, i, j"),
        ([*"abcdefghijkl"], "exiting with non-daemon threads still running: a, b, c, d, e, f, g, h, i, j and 2 more"),
    ],
)
def test_the_threads_that_go_on_are_named_in_one_short_line(threads, words):
    assert what_goes_on(threads) == words
