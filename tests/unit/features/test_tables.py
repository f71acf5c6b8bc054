"""A table in each of its forms, lists in its cells, and where a refusal says that it is."""

from __future__ import annotations

import math
from collections import UserDict, deque

import msgspec
import numpy as np
import pytest

from penstock import features as f
from penstock.errors import ConfigError, InvalidItem
from penstock.features.tables import read_table
from rows import each

FEATURES = f.Features({"age": f.Numeric(), "job": f.Vocabulary(["a", "b"])}, concat_into="x")
EXPECTED = {"x": [[1.0], [2.0]], "job": [0, 2]}


class Row(msgspec.Struct, rename={"years": "age"}):
    years: float
    job: str | msgspec.UnsetType = msgspec.UNSET
    other: int = 0


class Series:
    """A column of a DataFrame, as that of pandas."""

    def __init__(self, values, dtype=object):
        self.values = np.array(values, dtype=dtype)

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __iter__(self):
        return iter(self.values)


class NullableSeries:
    """A column of polars, or of a dtype of pandas' own: its array has floats where a value is missing."""

    def __init__(self, values):
        self.values = values

    dtype = "Int64"

    def to_list(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("its array loses bits")

    def __iter__(self):
        return iter(self.values)


class NullableArray:
    """What such a column of pandas is made of."""

    def __init__(self, values):
        self.values = values

    dtype = "Int64"

    def isna(self):
        return [value is None for value in self.values]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("its array loses bits")

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)


class ArrowArray:
    """An array of pyarrow, whose elements are objects of pyarrow's own."""

    def __init__(self, values):
        self.values = values

    def to_pylist(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("its array loses bits")

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return map(object, self.values)


class Frame:
    def __init__(self, columns, length=None):
        self._columns = columns
        self._length = length
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return self._length


TABLES = [
    [{"age": 1, "job": "a", "more": 1}, {"age": 2, "job": "z"}],
    ({"age": 1, "job": "a"}, {"age": 2, "job": "z"}),
    [UserDict(age=1, job="a"), {"age": 2, "job": "z"}],
    [Row(1, "a"), Row(2, "z")],
    [Row(1, "a"), {"age": 2, "job": "z"}],
    {"age": [1, 2], "job": ["a", "z"], "more": [1]},
    {"age": (1, 2), "job": np.array(["a", "z"])},
    {"age": range(1, 3), "job": deque(["a", "z"])},
    UserDict(age=np.array([1, 2], dtype=np.int8), job=["a", "z"]),
    Frame({"age": Series([1, 2], float), "job": Series(["a", "z"])}),
    Frame({"age": NullableSeries([1, 2]), "job": NullableSeries(["a", "z"])}),
    {"age": NullableArray([1, 2]), "job": NullableArray(["a", "z"])},
    {"age": ArrowArray([1, 2]), "job": ArrowArray(["a", "z"])},
]


@each("table", TABLES)
def test_a_table_of_each_form_is_the_same_table(table):
    assert {name: array.tolist() for name, array in FEATURES.encode(table).items()} == EXPECTED


@each(
    ("table", "why"),
    [
        (3, "a table must be a list of rows, a dict of columns, or a DataFrame, got int 3"),
        ("ab", "a table must be a list of rows"),
        ({"age": [1], "job": ["a", "b"]}, "must have the same length, got {'age': 1, 'job': 2}"),
        ({"age": 3, "job": ["a"]}, "the column 'age' must be a sequence, got int 3"),
        ({"age": [3], "job": "a"}, "the column 'job' must be a sequence, got str 'a'"),
        ({"age": {3}, "job": ["a"]}, "the column 'age' must be a sequence, got set {3}"),
        ({"age": frozenset({3}), "job": ["a"]}, "the column 'age' must be a sequence, got frozenset"),
        ({"age": [3], "job": (job for job in "a")}, "the column 'job' must be a sequence, got generator"),
        ({"age": [3], "job": iter("a")}, "the column 'job' must be a sequence, got str_"),
        ({"age": np.array(3), "job": ["a"]}, "the column 'age' must be a sequence, got ndarray"),
        ({"Age": [3], "job": ["a"]}, "no column 'age', which the feature 'age' needs; did you mean 'Age'?"),
        ({"zzzz": [3], "job": ["a"]}, "no column 'age', which the feature 'age' needs; it has ['zzzz', 'job']"),
        (Frame({"job": Series(["a"])}, 1), "no column 'age'"),
    ],
)
def test_what_is_no_table_is_refused(table, why):
    with pytest.raises(ConfigError) as caught:
        FEATURES.encode(table)
    assert why in str(caught.value)


def test_a_row_that_is_none_is_refused_alone():
    with pytest.raises(InvalidItem, match="expected an object, got int 3") as caught:
        FEATURES.encode([{"age": 1, "job": "a"}, 3])
    assert caught.value.path == "$[1]"
    encoded = FEATURES.encode_rows([3, {"age": 1, "job": "a"}])
    assert encoded.kept == [1]
    assert str(encoded.invalid[0]) == "expected an object, got int 3"


def test_a_row_with_an_unknown_key_is_refused_by_its_name():
    encoded = FEATURES.encode_rows([{"age": 1, "job": "a", "jop": "b"}, {"age": 1, "job": "a"}, {1: 2}])
    assert encoded.invalid[0].reason == "there is no feature column 'jop': did you mean 'job'?"
    assert encoded.invalid[2].reason == "there is no feature column 1"
    assert encoded.inputs["x"].tolist() == [[1.0]]


@pytest.mark.parametrize("table", [[], (), {"age": [], "job": []}, Frame({"age": Series([]), "job": Series([])})])
def test_an_empty_table_has_empty_arrays(table):
    features = f.Features(
        {"age": f.Numeric(), "job": f.Hashed(3, one_hot=True), "tags": f.Ids(9, max_length=2, fill_value=f.EMPTY)},
        concat_into="x",
    )
    found = features.encode(table)
    assert {name: (array.dtype.name, array.shape) for name, array in found.items()} == {
        "x": ("float32", (0, 4)),
        "tags": ("int64", (0, 2)),
        "tags_weight": ("float32", (0, 2)),
    }
    assert features.encode_rows([]).inputs["x"].shape == (0, 4)


def test_a_column_that_is_not_there_is_missing_where_something_stands_for_it():
    features = f.Features({"age": f.Numeric(fill_value=7), "t": f.Text(fill_value="?"), "i": f.Ids(fill_value=3)})
    for table in ({"more": [1, 2]}, Frame({}, 2), [{}, {}], [Row(1), Row(2)]):
        found = features.encode(table)
        assert found["t"].tolist() == ["?", "?"]
        assert found["i"].tolist() == [3, 3]
    assert features.encode({})["age"].shape == (0,)


def test_the_arrays_are_not_the_tables_own():
    ids, numbers = np.array([1, 2]), np.array([1, 2], dtype=np.float32)
    found = f.Features({"i": f.Ids(), "n": f.Numeric()}).encode({"i": ids, "n": numbers})
    found["i"][0] = found["n"][0] = 9
    assert ids.tolist() == numbers.tolist() == [1, 2]


# -- lists ------------------------------------------------------------------------------------------------------------


def test_a_single_id_that_is_empty_has_weight_0():
    features = f.Features(
        {
            "job": f.Vocabulary(["a", "b"], num_oov_indices=0, unknown=f.EMPTY, fill_value="b"),
            "i": f.Ids(9, fill_value=f.EMPTY),
            "both": f.Crossed(["job", "i"], 1000, fill_value=f.EMPTY),
        }
    )
    found = features.encode([{"job": "b", "i": 3}, {"job": "c", "i": 3}, {}])
    assert [tensor.name for tensor in features.inputs] == ["job", "job_weight", "i", "i_weight", "both", "both_weight"]
    assert {tensor.shape for tensor in features.inputs} == {()}
    assert [found["job"].tolist(), found["job_weight"].tolist()] == [[1, 0, 1], [1, 0, 1]]
    assert [found["i"].tolist(), found["i_weight"].tolist()] == [[3, 3, 0], [1, 1, 0]]
    assert [found["both"].tolist()[1:], found["both_weight"].tolist()] == [[0, 0], [1, 0, 0]]


LISTS = f.Features(
    {"tags": f.Vocabulary(["a", "b", "c"], num_oov_indices=0, max_length=3, weights="w", fill_value=f.EMPTY)}
)


@pytest.mark.parametrize(
    ("tags", "weights", "ids", "weight"),
    [
        ([], [], [0, 0, 0], [0, 0, 0]),
        (None, None, [0, 0, 0], [0, 0, 0]),
        (math.nan, [], [0, 0, 0], [0, 0, 0]),
        (["b", "c"], [0.5, -2], [1, 2, 0], [0.5, -2, 0]),
        (("b", None, "c"), (1, 1, 3), [1, 0, 2], [1, 0, 3]),
        (np.array(["c", "b"]), np.array([0.1, 1e-42]), [2, 1, 0], [np.float32(0.1), 0, 0]),
    ],
)
def test_a_list_is_padded_with_id_and_weight_0(tags, weights, ids, weight):
    found = LISTS.encode([{"tags": tags, "w": weights}])
    assert found["tags"].tolist() == [ids]
    assert found["tags_weight"].tolist() == [weight]
    assert found["tags_weight"].dtype == np.float32


@each(
    ("tags", "weights", "path", "why"),
    [
        (["a"] * 4, [1] * 4, "$.tags", "expected a list of at most 3 values, got 4"),
        ("abc", None, "$.tags", "expected a list, got str 'abc'"),
        ({"a"}, [1], "$.tags", "expected a list, got set {'a'}"),
        (np.array([["a"]]), [1], "$.tags", "expected a list, got ndarray array([['a']], dtype='<U1')"),
        (["a", "z"], [1, 1], "$.tags[1]", "'z' is not one of the 3 known values"),
        (["a", b"b", 0.5], [1, 1, 1], "$.tags[1]", "expected a string, an integer or a boolean, got bytes b'b'"),
        (["a"], None, "$.w", "has 0 weights for 1 values"),
        (["a"], [1, 2], "$.w", "has 2 weights for 1 values"),
        (None, [1], "$.w", "has 1 weights for 0 values"),
        (["a"], 1, "$.w", "expected a list, got int 1"),
        (["a", "b"], [1, None], "$.w[1]", "is missing"),
        (["a", "b"], [1, math.inf], "$.w[1]", "expected a finite number, got inf"),
        (["a", "b"], [1, 1e39], "$.w[1]", "is not a finite number as float32"),
        (["a", "b"], [1, 10**400], "$.w[1]", "an integer of 1329 bits cannot be represented exactly as float64"),
        (["a", "b"], [1, "1"], "$.w[1]", "expected a number, got str '1'"),
    ],
)
def test_a_list_that_is_refused_says_where(tags, weights, path, why):
    rows = [{"tags": ["a"], "w": [1]}, {"tags": tags, "w": weights}, {"tags": ["b", "b"], "w": [2, 3]}]
    encoded = LISTS.encode_rows(rows)
    assert encoded.kept == [0, 2]
    assert (encoded.invalid[1].path, encoded.invalid[1].reason) == (path, why)
    assert encoded.inputs["tags"].tolist() == [[0, 0, 0], [1, 1, 0]]
    assert encoded.inputs["tags_weight"].tolist() == [[1, 0, 0], [2, 3, 0]]


def test_a_list_is_refused_where_nothing_stands_for_it():
    features = f.Features({"tags": f.Hashed(3, max_length=2)})
    encoded = features.encode_rows([{"tags": None}, {}, {"tags": [None]}, {"tags": []}])
    assert {row: str(why) for row, why in encoded.invalid.items()} == {
        0: "is missing at `$.tags`",
        1: "is missing at `$.tags`",
        2: "is missing at `$.tags[0]`",
    }


def test_a_fill_value_is_a_list_of_one_that_weighs_1():
    features = f.Features({"tags": f.Ids(9, max_length=2, fill_value=7, weights="w")})
    found = features.encode([{"tags": None, "w": None}, {"tags": [None, 3], "w": [0.5, 2]}])
    assert found["tags"].tolist() == [[7, 0], [7, 3]]
    assert found["tags_weight"].tolist() == [[1, 0], [0.5, 2]]
    refused = features.encode_rows([{"tags": None, "w": [1]}])
    assert str(refused.invalid[0]) == "has 1 weights for 0 values at `$.w`"


def test_one_hot_lists_count_and_sum():
    counts = f.Features({"tags": f.Ids(3, max_length=4, one_hot=True)}).encode([{"tags": [0, 2, 2]}, {"tags": []}])
    assert counts["tags"].tolist() == [[1, 0, 2], [0, 0, 0]]
    assert list(counts) == ["tags"]
    features = f.Features({"tags": f.Ids(3, max_length=4, one_hot=True, weights="w", fill_value=f.EMPTY)})
    rows = [{"tags": [0, 0, None], "w": [0.5, 0.25, 9]}, {"tags": [1, 1], "w": [3e38, 3e38]}]
    encoded = features.encode_rows(rows)
    assert encoded.inputs["tags"].tolist() == [[0.75, 0, 0]]
    assert str(encoded.invalid[1]) == "has a sum that is not a finite number as float32 at `$.w`"


def test_a_column_of_lists_may_be_an_array():
    features = f.Features({"tags": f.Ids(9, max_length=2)})
    assert features.encode({"tags": np.array([[1, 2], [3, 4]])})["tags"].tolist() == [[1, 2], [3, 4]]
    assert features.encode({"tags": np.zeros((2, 0))})["tags"].tolist() == [[0, 0], [0, 0]]
    scalar = f.Features({"tags": f.Ids(9)})
    with pytest.raises(InvalidItem, match="expected an integer or its decimal string, got ndarray"):
        scalar.encode({"tags": np.array([[1, 2], [3, 4]])})


def test_plain_rows_have_what_json_has():
    features = f.Features(
        {"n": f.Numeric(fill_value=0), "tags": f.Ids(9, max_length=2, fill_value=f.EMPTY), "t": f.Text()}
    )
    table = {
        "n": np.array([0.1, math.nan], dtype=np.float32),
        "tags": [np.array([1, 2]), None],
        "t": ["é", np.str_("x")],
    }
    rows = features.to_rows(table)
    assert rows == [
        {"n": 0.1, "tags": [1, 2], "t": "é"},
        {"n": None, "tags": None, "t": "x"},
    ]
    assert {type(cell) for row in rows for cell in row.values()} == {float, list, str, type(None)}
    assert features.to_rows([{"t": "x"}]) == [{"n": None, "tags": None, "t": "x"}]


def test_what_is_masked_is_missing():
    features = f.Features({"a": f.Ids(fill_value=3), "n": f.Numeric(column="a", fill_value=0.5)})
    found = features.encode({"a": np.ma.MaskedArray([1, 2], mask=[False, True])})
    assert (found["a"].tolist(), found["n"].tolist()) == ([1, 3], [1, 0.5])


def test_a_value_that_cannot_be_shown_is_refused_like_any_other():
    encoded = f.Features({"a": f.Numeric()}).encode_rows([{"a": [10**5000]}, {"a": 1}, {10**5000: 1}])
    assert encoded.kept == [1]
    assert encoded.invalid[0].reason == "expected a number, got list that cannot be shown"
    assert encoded.invalid[2].reason == "there is no feature column an integer of 16610 bits"


def test_a_table_with_two_columns_of_one_name_is_told_as_that_where_the_name_is_asked_for():
    frame = Frame({"a": [1], "b": [2]})
    frame.columns = ["a", "b", "a"]
    with pytest.raises(ConfigError, match="the table has 2 columns of the name 'a': leave one of them"):
        read_table(frame, ["b", "a"])
    assert read_table(frame, ["b"]).column("b") == [2]


def test_a_table_tells_which_columns_it_has():
    table = read_table({"a": [1], "b": [2]}, ["a", "c"])
    assert "a" in table
    assert "c" not in table
