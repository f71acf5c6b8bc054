"""What a service that starts says of itself."""

from __future__ import annotations

import pytest

from penstock.core.load_progress import Loading, cut_to_width, loading_words


@pytest.mark.parametrize(
    ("loading", "words"),
    [
        (Loading("M", 1, 1, 0.0), "M is loading, 0 s"),
        (Loading("M", 1, 1, 12.99), "M is loading, 12 s"),
        (Loading("M", 4, 4, 61.0), "M is loading (4 of 4 workers), 61 s"),
        (Loading("M", 1, 4, 3.0), "M is loading (1 of 4 workers), 3 s"),
        (Loading("M", 1, 1, 3.0, "signal SIGKILL"), "M is loading, 3 s; the last attempt failed: signal SIGKILL"),
    ],
)
def test_it_says_who_loads_and_since_when(loading, words):
    assert str(loading) == words


def test_several_stages_are_told_in_a_line():
    assert loading_words([Loading("A", 1, 1, 2.0), Loading("B", 2, 3, 1.0)]) == (
        "A is loading, 2 s; B is loading (2 of 3 workers), 1 s"
    )
    assert loading_words([]) == ""


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (80, "M is loading"),
        (13, "M is loading"),
        (12, "M is loa..."),
        (5, "M..."),
        (4, "..."),
        (3, ".."),
        (1, ""),
        (0, ""),
    ],
)
def test_a_line_leaves_the_last_column_free(columns, line):
    assert cut_to_width("M is loading", columns) == line
