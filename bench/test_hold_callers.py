"""The lines of the plot by the number of callers: which measurements they are of, and what is written of them."""

from __future__ import annotations

import pytest

import hold_callers
from hold_callers import FIXED, NEVER, best_wait, hold_lines
from report import Run
from sample_runs import a_run, measured
from servers import FIXED_WAITS, fixed_name


def a_scene(callers: tuple[int, ...] = (1, 8)) -> Run:
    """A run in which no wait is best for a lone caller, and 1 ms for more; three rounds."""
    taken = []
    for number, change in enumerate((0.0, -0.02, 0.01)):
        for c in callers:
            shares = {fixed_name(wait): 0.8 - abs(wait - (0.0 if c == 1 else 0.001)) * 20 for wait in FIXED_WAITS}
            shares["accelerator"] = 0.9
            taken += [measured(name, c, share + change, number=number) for name, share in shares.items()]
    return a_run(*taken)


def test_the_best_fixed_wait_is_chosen_for_each_number_of_callers() -> None:
    run = a_scene()
    assert [best_wait(run, callers) for callers in (1, 8)] == [0.0, 0.001]


def test_a_line_has_the_least_the_median_and_the_most_of_the_rounds() -> None:
    lines = {line.name: line for line in hold_lines(a_scene())}
    default = hold_callers.default_name()
    assert list(lines) == [default, FIXED, NEVER]
    auto, fixed, never = (lines[name].points[1] for name in (default, FIXED, NEVER))
    assert (auto.x, auto.low, auto.median, auto.high) == (8, 0.88, 0.9, 0.91)
    assert (fixed.median, fixed.note) == (0.8, "1 ms")
    assert (never.median, never.note) == (0.78, "")
    assert lines[FIXED].points[0].note == "0"


def test_figures_of_another_default_are_not_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hold_callers, "default_wait", lambda: 0.0)
    with pytest.raises(SystemExit):
        hold_callers.main(["--write"])
    assert 'max_wait="auto"' in capsys.readouterr().err
