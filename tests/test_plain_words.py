"""Sentences in the sources begin with the thing itself or an imperative, and texts for users have the field's words."""

from __future__ import annotations

from layer_rules import forget_parsed, read_tree
from plain_words import forbidden_words, lowered, objections, pointing, read_list


def test_a_text_that_a_user_reads_has_the_words_of_the_field():
    found = forbidden_words(read_tree())
    assert not found, "\n".join([f"{len(found)} forbidden words in texts for users:", *found])


def test_no_more_sentences_than_the_list_allows_begin_with_a_word_that_only_points():
    found = objections(read_tree(), read_list())
    forget_parsed()  # test_docs.py and test_layers.py, right before this file, have parsed the same
    assert not found, "\n".join(["first words:", *found])


def test_a_sentence_that_begins_with_such_a_word_is_found_in_docstrings_and_notes():
    for source, found in {
        '"""What it is."""': ["line 1: What it is."],
        '"""It is here.  So it\nstays."""': ["line 1: So it stays."],
        'class A:\n    """A thing.\n\n    One of them\n    is here.\n    """': ["line 4: One of them is here."],
        'def f():\n    """Do it!\n    (None is done.)"""': ["line 3: (None is done.)"],
        'async def f():\n    """Do it.\n\n    Returns:\n        Whose it is.\n    """': ["line 5: Whose it is."],
        'LIMIT = 1\n"""* Those\n* such"""': ["line 2: * Those * such"],
        'if x:\n    y: int = 1\n    """The  same as x."""': ["line 3: The same as x."],
        'class A:\n    def f(self):\n        self.x = 1\n        """Nobody\'s."""': ["line 4: Nobody's."],
    }.items():
        assert pointing(source) == found, source


def test_other_sentences_heads_of_sections_and_code_are_let_pass():
    for source in (
        '"""The thing, so that one of those is what it was."""',
        '"""Sort it.  Sort of: what.  Whatever comes.  Other, the\nsamest.  Only one."""',
        '"""Used as\n\n    one = what()\n    none = one.\n    so = 1\n\nby all."""',
        '"""Used as\n>>> one()\n... there\n"""',
        'def f():\n    """Do.\n\n    Args:\n        what: one.\n        x: so.\n    Raises:\n        E: so.\n    """',
        'x = "What it is."\nf("So it is.")  # None is here.',
    ):
        assert pointing(source) == [], source


def test_the_list_is_kept_from_both_sides_and_only_lowered():
    tree = {"a.py": '"""What a is.  So it is."""', "b.py": '"""None is b."""', "c.py": '"""C."""'}
    assert objections(tree, {"a.py": 2, "b.py": 1}) == []
    allowed = {"a.py": 3, "c.py": 1, "gone.py": 1}
    assert objections(tree, allowed) == [
        "a.py: 2, no longer 3: python tests/plain_words.py lowers the list",
        "b.py: 1 sentences begin with a word to avoid, 0 may:",
        "line 1: None is b.",
        "c.py: 0, no longer 1: python tests/plain_words.py lowers the list",
        "gone.py: 0, no longer 1: python tests/plain_words.py lowers the list",
    ]
    assert lowered(tree, allowed) == {"a.py": 2}
    assert lowered(tree, {"a.py": 1}) == {"a.py": 1}


def test_a_forbidden_word_is_found_in_each_kind_of_text_and_nowhere_else():
    errors = 'class Full(Exception):\n    """The door is closed.\n\n    Who asks again waits.\n    """'
    for source, found in {
        'log.info("gone: %s", x)': ["a.py:1: gone: 'gone: %s'"],
        'self.log.error(f"{x} goes\u0020on")': ["a.py:1: goes on: '{} goes on'"],
        'raise ValueError(\n    "nobody "\n    "says it")': [
            "a.py:2: nobody: 'nobody says it'",
            "a.py:2: says: 'nobody says it'",
        ],
        "e = Full(f\"{'so many' if x else y}\")": ["a.py:1: so many: 'so many'"],
        'x: int = option(1, "none: off")': ["a.py:1: none:: 'none: off'"],
        'p.add_argument("--ask", help="whom to ASK")': ["a.py:1: whom: 'whom to ASK'", "a.py:1: ask: 'whom to ASK'"],
        'return app.refuse(400, "come later")': ["a.py:1: come: 'come later'"],
        'CounterMetricFamily("n", "Items told.")': ["a.py:1: told: 'Items told.'"],
        'x = "nobody"\nf("gone")\n"""Who is told."""\nlog.info("replaced, besides, place-id, outcome")': [],
        'log.info("%s", tables["place"])': [],
    }.items():
        assert forbidden_words({"a.py": source, "errors.py": errors}) == [
            *found,
            "errors.py:2: door: 'The door is closed.'",
        ], source
    assert forbidden_words({"m/job_metrics.py": 'HELP = {"n": "Jobs in hand."}'}) == [
        "m/job_metrics.py:1: in hand: 'Jobs in hand.'"
    ]
