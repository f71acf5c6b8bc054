"""The words of a text, without scikit-learn: as its vectorizers take them."""

import msgspec
import numpy as np
import pytest

from penstock.errors import ArtifactInvalid
from penstock.graphs.words import Words, with_words, words_from_text, words_to_text

PLAIN = Words(
    name="words",
    input="note",
    analyzer="word",
    lower=True,
    accents=None,
    pattern=r"(?u)\b\w\w+\b",
    shortest=1,
    longest=1,
    stop_words=None,
)


def terms(text, **changes):
    return msgspec.structs.replace(PLAIN, **changes).terms(text)


def test_lower_case_is_that_of_python():
    assert terms("ΟΔΟΣ ΟΔΟΣΑ") == ["οδος", "οδοσα"]
    assert terms("İSTANBUL") == ["stanbul"]  # the dot above is a character of its own, and no letter
    assert terms("STRA\u1e9eE") == ["straße"]
    assert terms("Red", lower=False) == ["Red"]


def test_accents_are_stripped_after_that():
    assert terms("ÉTÉ ﬁn", accents="unicode") == ["ete", "fin"]
    assert terms("Été 東京x", accents="ascii") == ["ete"]


def test_stop_words_go_before_words_are_joined():
    assert terms("red is blue", longest=2, stop_words=frozenset({"is"})) == ["red", "blue", "red blue"]
    assert terms("red is blue", shortest=2, longest=3) == ["red is", "is blue", "red is blue"]


def test_characters_are_joined_over_one_space():
    assert terms("A \n b", analyzer="char", shortest=2, longest=2) == ["a ", " b"]
    assert terms("ab c", analyzer="char_wb", shortest=2, longest=4) == (
        [" a", "ab", "b ", " ab", "ab ", " ab ", " c", "c ", " c "]
    )


def test_a_graph_is_given_each_text_with_an_end_behind_each_word():
    inputs = {"note": np.array(["Red sea", "", "x\x1fyy zz"], dtype=object)}
    given = with_words(inputs, [PLAIN])
    assert given["words"].tolist() == [["red\x1fsea"], [""], ["yy\x1fzz"]]
    assert given["note"] is inputs["note"]
    one = msgspec.structs.replace(PLAIN, analyzer="char")
    assert one.given(np.array(["a\x1f"], dtype=object)).tolist() == [["a"]]


def test_a_file_has_the_list_and_no_other_is_read():
    assert words_from_text(words_to_text([PLAIN])) == [PLAIN]
    for text in ("", "{}", '[{"name":1}]', words_to_text([PLAIN]).replace("w+", "w+(")):
        with pytest.raises(ArtifactInvalid, match="_words"):
            words_from_text(text)
