"""Have the words of a text be taken before the graph, and the graph count them: see `penstock.graphs.words`."""

from __future__ import annotations

import copy
from typing import Any, Final

from penstock.export.class_names import class_names
from penstock.graphs.words import END_OF_WORD, Words

TERMS = f"[^{END_OF_WORD}]+"
"""The pattern by which the graph finds the terms again."""
FUNCTIONS: Final = ("analyzer", "preprocessor", "tokenizer", "strip_accents")
"""The parameters of a vectorizer that may be functions."""


def takes_words(part: Any) -> bool:
    """Whether a part takes words."""
    return "sklearn.CountVectorizer" in class_names(part)


def own_function(part: Any) -> str:
    """The parameter of a vectorizer that is a function of the user's, which no graph has; "" where there is none."""
    own = (name for name in FUNCTIONS if callable(getattr(part, name)))
    return next(own, "") if takes_words(part) else ""


def words_of(part: Any, operator: Any, scope: Any) -> Words:
    """Have the operator of a vectorizer take words, as an input of the graph, and say which these are.

    Raises:
        ValueError: its text is no input of the model, or the graph cannot be given a term that it counts.
    """
    from skl2onnx.common.data_types import StringTensorType

    (text,) = operator.inputs
    if not text.is_root:
        raise ValueError(
            "its text is the output of another step, and the runtime lowercases and tokenizes it "
            "differently than Python; use a column directly, and prepare the text before it is passed to "
            "the features"
        )
    if lost := sorted(term for term in part.vocabulary_ if not term or END_OF_WORD in term):
        raise ValueError(
            f"it counts the term {lost[0]!r}, which a graph cannot store: {END_OF_WORD!r} separates "
            "terms, and an empty term is lost; remove such characters from the text before it is passed "
            "to the features, and let the pattern of a word match at least one character"
        )
    words = scope.declare_local_input("words", StringTensorType([None, 1]))
    words.init_status(is_fed=True, is_root=True)
    operator.inputs = [words]
    operator.raw_operator = _counting(part)
    return words_told(part, name=words.onnx_name, source=text.raw_name)


def words_told(part: Any, *, name: str, source: str) -> Words:
    """Which words a vectorizer takes of the input `source`, as the input `name` of a graph."""
    stop_words = part.get_stop_words()
    return Words(
        name=name,
        input=source,
        analyzer=part.analyzer,
        lower=bool(part.lowercase),
        accents=part.strip_accents or None,
        pattern=part.token_pattern or "",
        shortest=part.ngram_range[0],
        longest=part.ngram_range[1],
        stop_words=None if stop_words is None or part.analyzer != "word" else frozenset(stop_words),
    )


def _counting(part: Any) -> Any:
    """A vectorizer to which each term is a word, and whose text is as it is to be."""
    plain = copy.copy(part)
    plain.analyzer, plain.ngram_range = "word", (1, 1)
    plain.lowercase, plain.strip_accents, plain.stop_words = False, None, None
    return plain
