"""Text that UTF-8 can carry, whatever it was made of."""

from __future__ import annotations

from penstock.codec.text import one_line, utf8


def test_a_lone_surrogate_is_escaped_and_all_other_text_stays():
    assert utf8("naïve \U0001f600 \udc80!") == "naïve \U0001f600 \\udc80!"


def test_one_line_is_the_first_that_is_not_empty_with_question_marks_for_lone_surrogates():
    assert one_line("\n  a \udc80 reason\nTraceback ...") == "a ? reason"
    assert one_line("") == ""
