"""The plots of the documentation are drawn from figures, the same each time, and are caught where they are stale."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import plots
from plots import Line, Plot, Point, drawing_of, drawn, read_plot, spaced, write_plot

SVG = "{http://www.w3.org/2000/svg}"


def a_line(name: str, *medians: float, note: str = "") -> Line:
    points = [Point(2**at, median - 0.02, median, median + 0.01, note) for at, median in enumerate(medians)]
    return Line(name, points)


def a_plot(*lines: Line) -> Plot:
    found = list(lines or (a_line("held", 0.9, 0.8), a_line("not held & idle", 0.91, 0.5, note="1 ms")))
    words = ("How it went", "callers", "share", "Median of 3 rounds", "python measure.py", "2026-01-02")
    return Plot(*words, {"cpu": "some", "cores": "2"}, {"rounds": 3.0}, found)


def elements(plot: Plot, tag: str, kind: str = "") -> list[ET.Element]:
    root = ET.fromstring(drawn(plot))
    return [element for element in root.iter(SVG + tag) if kind in element.get("class", "").split() or not kind]


def test_a_drawing_has_a_title_names_of_axes_and_a_name_at_each_line():
    texts = [element.text for element in elements(a_plot(), "text")]
    assert {"How it went", "callers", "share", "Median of 3 rounds", "held", "not held & idle"} <= set(texts)
    assert {"1", "2"} <= set(texts), "each number on the scale"
    assert {"0.4", "0.5", "1.0"} <= set(texts), "from the lowest tenth to the highest"
    assert len(elements(a_plot(), "polyline")) == 2


def test_each_point_has_its_median_its_spread_and_its_note():
    assert len(elements(a_plot(), "line", "bar")) == 4
    said = [mark.findtext(SVG + "title") for mark in elements(a_plot(), "circle")]
    assert said[0] == "held, 1: 0.900, 0.880 to 0.910"
    assert said[3] == "not held & idle (1 ms), 2: 0.500, 0.480 to 0.510"


def test_higher_figures_stand_higher_and_more_callers_further_to_the_right():
    one, two, three = elements(a_plot(a_line("a", 0.2, 0.9, 0.5)), "circle")
    assert float(two.get("cy")) < float(three.get("cy")) < float(one.get("cy"))
    assert float(one.get("cx")) < float(two.get("cx")) < float(three.get("cx"))
    assert float(two.get("cx")) - float(one.get("cx")) == pytest.approx(float(three.get("cx")) - float(two.get("cx")))


def test_everything_drawn_lies_within_the_drawing():
    plot = a_plot(*(a_line(name, 0.03, 1.2, 0.7) for name in ("a", "b", "c")))
    for mark in elements(plot, "circle"):
        assert plots.LEFT <= float(mark.get("cx")) <= plots.RIGHT
        assert plots.TOP <= float(mark.get("cy")) <= plots.BOTTOM
    for label in elements(plot, "text", "label"):
        assert 0 < float(label.get("y")) < plots.HEIGHT


def test_labels_of_lines_that_end_together_do_not_touch():
    assert spaced([100.0, 200.0]) == [100.0, 200.0]
    heights = spaced([100.0, 100.0, 99.0])
    assert sorted(heights) == pytest.approx(
        [heights[2], heights[2] + plots.LABEL_GAP, heights[2] + 2 * plots.LABEL_GAP]
    )
    assert sum(heights) / 3 == pytest.approx(299 / 3), "and are no further from their lines than need be"


def test_lines_differ_in_more_than_colour_and_there_are_colours_for_dark_pages():
    drawing = drawn(a_plot(*(a_line(name, 0.5, 0.6) for name in ("a", "b", "c"))))
    assert ".two.line { stroke-dasharray: 7 4 } .three.line { stroke-dasharray: 2 4 }" in drawing
    light, dark = drawing.split("@media (prefers-color-scheme: dark)")
    for name in (".ground", ".grid", ".one", ".two", ".three", ".small", "text"):
        assert f"{name} {{" in light
        assert f"{name} {{" in dark


@pytest.mark.parametrize("count", [0, 4])
def test_a_plot_with_no_line_or_with_more_than_can_be_told_apart_is_refused(count):
    lines = [a_line("a", 0.5)] * count
    with pytest.raises(ValueError, match="1 to 3 lines"):
        drawn(Plot("t", "x", "y", "c", "m", "w", {}, {}, lines))


def test_what_is_written_is_read_again_and_drawn_the_same(tmp_path):
    figures = tmp_path / "some.plot.json"
    write_plot(a_plot(), figures)
    assert read_plot(figures) == a_plot()
    assert drawing_of(figures) == tmp_path / "some.svg"
    assert drawing_of(figures).read_text() == drawn(read_plot(figures))


def test_a_stale_drawing_is_caught_and_drawn_anew(tmp_path, capsys):
    figures = tmp_path / "some.plot.json"
    write_plot(a_plot(), figures)
    good = drawing_of(figures).read_text()
    figures.write_text(figures.read_text().replace("0.8,", "0.7,"))
    assert plots.main(["--check", str(figures)]) == 1
    assert "some.svg: stale" in capsys.readouterr().out
    assert plots.main(["--write", str(figures)]) == 0
    assert drawing_of(figures).read_text() != good
    assert plots.main(["--check", str(figures)]) == 0


def test_figures_without_a_drawing_are_caught(tmp_path):
    figures = tmp_path / "some.plot.json"
    write_plot(a_plot(), figures)
    Path(tmp_path, "some.svg").unlink()
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
