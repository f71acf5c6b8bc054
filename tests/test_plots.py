"""The plots of the documentation are drawn from figures, and are caught where they are stale.

What a drawing looks like is compared with the one in the documentation.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

import plots
from plots import Line, Plot, Point, drawing_of, drawn, read_plot, write_plot

LINE = Line("held & idle", [Point(2**at, 0.7, 0.8, 0.9, "< 1 ms") for at in range(2)])
PLOT = Plot(
    "How it went", "callers", "share", "3 rounds", "python measure.py", "2026-01-02", {}, {"rounds": 3.0}, [LINE]
)


@pytest.fixture
def figures(tmp_path):
    write_plot(PLOT, tmp_path / "some.plot.json")
    return tmp_path / "some.plot.json"


def test_whatever_a_line_is_called_its_drawing_is_xml():
    texts = [element.text for element in ET.fromstring(drawn(PLOT)).iter()]
    assert "held & idle" in texts
    assert "held & idle (< 1 ms), 2: 0.800, 0.700 to 0.900" in texts


@pytest.mark.parametrize("count", [0, 4])
def test_a_plot_with_no_line_or_with_more_than_can_be_told_apart_is_refused(count):
    with pytest.raises(ValueError, match="1 to 3 lines"):
        drawn(Plot("t", "x", "y", "c", "m", "w", {}, {}, [LINE] * count))


def test_what_is_written_is_read_again(figures):
    assert read_plot(figures) == PLOT


def test_a_stale_drawing_is_caught_and_drawn_anew(figures, capsys):
    good = drawing_of(figures).read_text()
    figures.write_text(figures.read_text().replace("0.8,", "0.75,"))
    assert plots.main(["--check", str(figures)]) == 1
    assert "some.svg: stale" in capsys.readouterr().out
    assert plots.main(["--write", str(figures)]) == 0
    assert drawing_of(figures).read_text() != good
    assert plots.main(["--check", str(figures)]) == 0


def test_figures_without_a_drawing_are_caught(figures):
    drawing_of(figures).unlink()
    assert plots.main(["--check", str(figures)]) == 1


def test_each_drawing_of_the_documentation_shows_its_figures_and_stands_in_a_page():
    figures = sorted(plots.DOCS.rglob(f"*{plots.FIGURES}"))
    assert plots.DOCS / "explanation" / "hold-by-callers.plot.json" in figures
    assert not [path for path in figures if plots.is_stale(path)]
    shown = {
        (page.parent / drawing).resolve()
        for page in plots.DOCS.rglob("*.md")
        for drawing in re.findall(r"!\[.+?\]\((.+?\.svg)\)", page.read_text())
    }
    assert {drawing_of(path) for path in figures} == shown == set(plots.DOCS.rglob("*.svg"))
