"""Rows that are made of the given ones."""

from penstock import features as f
from penstock.export.made_rows import FLOAT32_WHOLE, LARGEST, MOST_MADE, NEVER_SEEN, made_rows, rewritten_texts

ROWS = [
    {"age": 3.0, "shop": 4, "town": "a", "note": "Straße οδος", "list": ["x"], "w": [2.0]},
    {"age": 8.0, "shop": 7, "town": "b", "note": "istanbul", "list": [], "w": []},
]
SPEC = f.Features(
    {
        "age": f.Numeric(),
        "shop": f.Ids(),
        "few": f.Ids(9, column="shop"),
        "town": f.Vocabulary(values=("a", "b", "c")),
        "note": f.Text(),
        "list": f.Hashed(9, max_length=2, weights="w"),
    }
)


def made(column):
    """The values that a column is given, each with whether the answers are compared."""
    found = [(one.row[column], one.is_compared) for one in made_rows(SPEC, ROWS)]
    return [(value, compared) for value, compared in found if value != ROWS[0][column]]


def test_each_row_is_the_first_with_another_value_in_one_column():
    for one in made_rows(SPEC, ROWS):
        changed = {column for column in ROWS[0] if one.row[column] != ROWS[0][column]}
        assert len(changed - {"w"}) <= 1


def test_numbers_are_tried_beyond_those_that_were_given_and_only_asked_for_an_answer():
    assert made("age") == [(value, False) for value in (None, 0.0, -1.0, 9.5, LARGEST, -LARGEST)]


def test_ids_are_tried_at_their_limits_and_compared_where_float32_holds_them():
    found = dict(made("shop"))
    assert {None, 0, -1, 8, 2**31, 2**63 - 1} == set(found)
    assert [found[value] for value in (0, 8, -1, 2**63 - 1)] == [True, True, False, False]
    assert all(compared is (value is None or 0 <= value < FLOAT32_WHOLE) for value, compared in found.items())
    assert {one.row["shop"] for one in made_rows(SPEC, ROWS) if one.has_far_id} == {-1, 2**31, 2**63 - 1}


def test_categories_are_the_known_ones_and_one_that_is_in_no_row():
    assert made("town") == [(value, True) for value in (None, "", NEVER_SEEN, "b", "c")]


def test_a_list_has_one_odd_element_with_its_weight():
    rows = [one.row for one in made_rows(SPEC, ROWS) if one.row["list"] == [NEVER_SEEN]]
    assert [row["w"] for row in rows] == [[1.0]]


def test_texts_are_written_in_other_cases_and_scripts_and_with_other_spaces():
    texts = rewritten_texts([row["note"] for row in ROWS])
    assert {"STRASSE ΟΔΟΣ", "ISTANBUL", "\u0130stanbul", "Stra\u1e9ee οδος", "  istanbul  "} <= set(texts)
    spaces = {"red\u00a0sea", "red\U0001f600sea", "red\nsea", "r\u0301e\u0301d\u0301 s\u0301e\u0301a\u0301"}
    assert spaces <= set(rewritten_texts(["red sea"]))
    assert set(texts) <= {value for value, _ in made("note")} | {ROWS[0]["note"]}


def test_there_are_not_more_than_can_be_asked():
    wide = f.Features({f"n{place}": f.Numeric() for place in range(900)})
    assert len(made_rows(wide, [dict.fromkeys(wide.columns, 1.0)])) == MOST_MADE
