"""Text that UTF-8 can carry, whatever it was made of, and however long it was."""

from __future__ import annotations

import random

import pytest

from penstock.codec.text import cut_line, cut_middle, one_line, printable, printable_lines, utf8, without_controls
from rows import each


def test_control_characters_are_escaped_but_line_breaks_and_tabs():
    assert without_controls("a\n\tb\x00\x1b[2J\r\x7f\x9b\u3000é") == "a\n\tb\\x00\\x1b[2J\\x0d\\x7f\\x9b\u3000é"


def test_a_lone_surrogate_is_escaped_and_all_other_text_stays():
    assert utf8("naïve \U0001f600 \udc80!") == "naïve \U0001f600 \\udc80!"


def test_one_line_is_the_first_that_is_not_empty_with_question_marks_for_lone_surrogates():
    assert one_line("\n  a \udc80 reason\nTraceback ...") == "a ? reason"
    assert one_line("") == ""


@pytest.mark.parametrize(("character", "nbytes"), [("x", 1), ("é", 2), ("€", 3), ("\U0001f600", 4), ("\ud800", 6)])
def test_a_text_of_just_the_limit_stays_and_one_more_byte_costs_the_middle(character, nbytes):
    fits = character * (8184 // nbytes) + "y" * (8192 - 8184 // nbytes * nbytes)
    assert cut_middle(fits, 8192) == utf8(fits)
    cut = cut_middle(fits + "z", 8192)
    assert f" [... cut: {len(fits) + 1} characters in all ...] " in cut
    assert 8192 - 8 < len(cut.encode()) <= 8192
    assert cut.startswith(utf8(character * 100))
    assert cut.endswith("yz")


def test_the_head_and_the_tail_are_those_of_the_text():
    text = "".join(map(str, range(100_000)))
    head, _, tail = cut_middle(text, 1000).partition(" [... cut: 488890 characters in all ...] ")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) == len(tail) == (1000 - 41) // 2


def test_a_line_is_cut_as_any_text_is():
    assert cut_line("x" * 100 + "\nmore", 100) == "x" * 100
    line = cut_line("x" * 101 + "\nmore", 100)
    assert "[... cut: 101 characters in all ...]" in line
    assert len(line) <= 100


def test_a_line_of_a_text_that_was_cut_before_tells_the_length_of_that_text():
    message = cut_middle("m" * 15_000_000, 8192)
    line = cut_line(f"stage 'x' raised ValueError: {message}\nmore", 1024)
    assert line.startswith("stage 'x' raised ValueError: mmm")
    assert "[... cut: 15000000 characters in all ...]" in line
    assert line.count("cut:") == 1
    assert len(line.encode()) <= 1024


def test_a_line_may_claim_to_be_cut_with_any_number():
    text = f"x [... cut: {'9' * 5000} characters in all ...] x"
    assert f" [... cut: {len(text)} characters in all ...] " in cut_line(text, 1024)


@each("seed", range(50))
def test_what_is_cut_anywhere_is_utf_8_within_the_limit(seed):
    rng = random.Random(seed)
    text = "".join(rng.choices("aé€\U0001f600\udc80\ud83d\n", k=rng.randint(1, 2000)))
    for limit in range(100, 140):
        cut = cut_middle(text, limit)
        assert len(cut.encode()) <= limit  # which also raises where there is a surrogate
        assert ("cut:" in cut) == (len(utf8(text).encode()) > limit)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a b/ä.py", "a b/ä.py"), ("a\nb\x1b[K", "a\\nb\\x1b[K"), ("\udcff", "\\udcff"), ("\u2028", "\\u2028")],
)
def test_what_could_break_a_line_is_shown_as_an_escape(text, shown):
    assert printable(text) == shown


def test_lines_stay_lines_where_other_characters_are_escaped():
    assert printable_lines("über\r\n\n\x1b[31m\tимя\n") == "über\\r\n\n\\x1b[31m\\tимя\n"
