"""What each kind takes of a value, and what it refuses, however the value arrives."""

from __future__ import annotations

import math
import sys
from enum import StrEnum
from types import SimpleNamespace

import farmhash
import msgspec
import numpy as np
import pytest

from penstock import features as f
from penstock.errors import InvalidItem
from rows import each

EXACT_IDS = [2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1]


def one(kind, value, **more):
    """The output for one value, as a Python value."""
    return f.Features({"a": kind}).encode([{"a": value, **more}])["a"].tolist()[0]


def reason(kind, value):
    with pytest.raises(InvalidItem) as caught:
        one(kind, value)
    assert caught.value.path == "$[0].a"
    return caught.value.reason


class Colour(StrEnum):
    RED = "red"


# -- categories -------------------------------------------------------------------------------------------------------


def test_an_integer_and_a_whole_float_are_the_category_of_their_digits():
    nine = farmhash.fingerprint64("9") % 1000
    for value in (9, 9.0, "9", np.int8(9), np.uint64(9), np.float32(9), np.str_("9")):
        assert one(f.Hashed(1000), value) == nine
    assert one(f.Hashed(1000), -0.0) == farmhash.fingerprint64("0") % 1000
    assert one(f.Hashed(1000), 2.0**53) == farmhash.fingerprint64(str(2**53)) % 1000
    assert one(f.Hashed(1000), 10**30) == farmhash.fingerprint64("1" + "0" * 30) % 1000
    assert one(f.Hashed(1000), Colour.RED) == one(f.Hashed(1000), "red")


@pytest.mark.parametrize(
    "column",
    [[True, False, True], [np.True_, False, "true"], np.array([True, False, True])],
    ids=["list", "mixed", "array"],
)
def test_a_boolean_is_the_category_of_its_text_in_json(column):
    known = f.Vocabulary(["false", "true", "1"])
    assert f.Features({"a": known}).encode({"a": column})["a"].tolist() == [1, 0, 1]
    learnt = f.Features({"a": f.Vocabulary(max_size=9)}).fit({"a": column})
    assert learnt.encode([{"a": True}, {"a": "true"}, {"a": False}])["a"].tolist() == [0, 0, 1]
    assert one(f.Hashed(1000), True) == one(f.Hashed(1000), "true")
    assert one(f.Vocabulary([False, True], missing_values=["false"], fill_value=True), False) == 1
    for kind in (
        f.Vocabulary([False, True], missing_values=[np.False_], fill_value=True),
        f.Hashed(1000, missing_values=[False], fill_value=True),
    ):
        assert kind.missing_values == ("false",)
        features = f.Features.from_json(f.Features({"a": kind}).to_json())
        assert features.encode({"a": column})["a"].tolist() == features.encode({"a": [True] * 3})["a"].tolist()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0.5, "a category is a string, an integer, or a whole float of at most 2**53, got 0.5"),
        (2.0**53 + 2, "a category is a string, an integer, or a whole float of at most 2**53"),
        (math.inf, "a category is a string, an integer, or a whole float"),
        (b"a", "expected a string, an integer or a boolean, got bytes b'a'"),
        (["a"], "expected a string, an integer or a boolean, got list ['a']"),
        ({"a": 1}, "expected a string, an integer or a boolean, got dict"),
        ("a\ud800", "half of a surrogate pair"),
        pytest.param(10**5000, "expected a category, got an integer of 16610 bits", id="5000 digits"),
        (np.datetime64(5, "ns"), "expected a string, an integer or a boolean, got datetime64"),
        (np.longdouble("0.1"), "expected a string, an integer or a boolean, got longdouble"),
        pytest.param(np.timedelta64(3), "got timedelta64", id="hash raises ValueError"),
        pytest.param(memoryview(bytearray(1)), "got memoryview", id="hash of a buffer raises ValueError"),
        (None, "is missing"),
        (math.nan, "is missing"),
        (np.datetime64("NaT"), "is missing"),
        (msgspec.UNSET, "is missing"),
    ],
)
def test_what_is_no_category_is_refused(value, why):
    assert why in reason(f.Hashed(9), value)


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", EXACT_IDS)
def test_large_ids_are_exact_on_every_way(value):
    features = f.Features({"a": f.Ids()})
    item = features.item_type()
    json_number = msgspec.json.decode(f'{{"a": {value}}}', type=item)
    json_string = msgspec.json.decode(f'{{"a": "{value}"}}', type=item)
    tables = [
        [{"a": value}],
        [{"a": str(value)}],
        [{"a": np.int64(value)}],
        [json_number],
        [json_string],
        {"a": [value]},
        {"a": np.array([value])},
        {"a": np.array([str(value)])},
        {"a": np.array([value], dtype=object)},
        Frame({"a": np.array([value])}),
        [{"a": value}, {"a": 1}],
        [{"a": value}, {"a": "1"}],
    ]
    for table in tables:
        found = features.encode(table)["a"]
        assert found.dtype == np.int64
        assert found[0] == value
    assert features.encode_rows([json_number, json_string]).inputs["a"].tolist() == [value, value]


class Frame:
    """A DataFrame as far as a table needs it."""

    def __init__(self, columns):
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return len(next(iter(self._columns.values())))


@each(
    "value",
    ["+1", "01", " 1", "1 ", "1_0", "-0", "", "1.0", "0x1", "٣", "²", 0.5, 2.0**53 + 2, True, b"1", [1], math.inf],
)
def test_what_is_not_the_one_way_to_write_an_id_is_refused(value):
    assert "expected an integer or its decimal string" in reason(f.Ids(), value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, str(2**63), np.uint64(2**63), 10**400])
def test_an_id_outside_of_int64_is_refused(value):
    assert reason(f.Ids(), value).endswith(("is outside of int64", "got str '9223372036854775808'"))


@pytest.mark.parametrize("dtype", ["<u8", ">u8"])
def test_an_id_in_a_column_is_refused_where_it_is_outside_of_int64_in_either_byte_order(dtype):
    features = f.Features({"a": f.Ids()})
    assert features.encode({"a": np.array([2**63 - 1], dtype=dtype)})["a"].tolist() == [2**63 - 1]
    with pytest.raises(InvalidItem, match=r"9223372036854775808 is outside of int64 at `\$\[1\]\.a`"):
        features.encode({"a": np.array([1, 2**63], dtype=dtype)})


def test_ids_of_each_form_are_the_same():
    features = f.Features({"a": f.Ids(fill_value=5, missing_values=["-1", 7.0])})
    expected = [3, 5, 5, 5, -7]
    assert features.encode([{"a": v} for v in ("3", -1, 7, None, -7.0)])["a"].tolist() == expected
    assert features.encode({"a": np.array([3.0, -1, 7, math.nan, -7], dtype=np.float32)})["a"].tolist() == expected
    assert features.encode({"a": np.array([3, -1, 7, 5, -7], dtype=np.int16)})["a"].tolist() == expected
    assert features.encode({"a": [3, -1, 7, 5, -7]})["a"].tolist() == expected
    encoded = f.Features({"a": f.Ids()}).encode({"a": np.array([2**63 - 1], dtype=np.uint64)})
    assert encoded["a"].tolist() == [2**63 - 1]


def test_a_column_of_another_dtype_has_no_ids():
    features = f.Features({"a": f.Ids(fill_value=3)})
    for column in (np.array([True]), np.array([5], dtype="datetime64[ns]")):
        with pytest.raises(InvalidItem, match="expected an integer or its decimal string, got"):
            features.encode({"a": column})
    assert features.encode({"a": np.array(["NaT"], dtype="datetime64[ns]")})["a"].tolist() == [3]


def test_a_column_of_numbers_with_an_id_that_is_none_says_where():
    features = f.Features({"a": f.Ids()})
    for column in (np.array([1.0, 2.5]), np.array([1, 2**63], dtype=np.uint64), [1, 2**63], np.array([1, 2.0**60])):
        with pytest.raises(InvalidItem) as caught:
            features.encode({"a": column})
        assert caught.value.path == "$[1].a"


@pytest.mark.parametrize("value", [-1, 5, 2**63 - 1])
def test_an_id_outside_of_its_size_is_refused(value):
    assert reason(f.Ids(5), value) == f"{value} is not an id of 0 to 4"
    assert one(f.Ids(5, unknown=2), value) == 2
    assert one(f.Ids(5, one_hot=True, unknown=f.EMPTY), value) == [0] * 5


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [0, 2**24, 2**24 + 1, -(2**24) - 1, 25_000_001, 2**31 + 5, 2**53 - 1, -(2**53), 2**63, 2**100, 3 * 2**126]
)
def test_an_integer_is_the_float_that_it_is_and_rounded_once(value):
    expected = np.float32(float(value))
    for table in ([{"a": value}], [{"a": value}, {"a": "n/a"}], {"a": np.array([float(value)])}):
        features = f.Features({"a": f.Numeric(missing_values=["n/a"], fill_value=0)})
        assert features.encode(table)["a"][0] == expected
    if value < 2**63:
        assert one(f.Numeric(), np.int64(value)) == expected
        assert f.Features({"a": f.Numeric()}).encode({"a": np.array([value])})["a"] == [expected]


def test_an_integer_is_scaled_before_it_is_rounded():
    features = f.Features({"a": f.Numeric(scale="minmax")}).fit({"a": [25_000_000, 25_000_004]})
    for number in (int, float, np.int32, np.uint64):
        assert features.encode([{"a": number(25_000_001)}])["a"].tolist() == [0.25]


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_integers_of_every_size_are_numbers_to_their_ends(dtype):
    info = np.iinfo(dtype)
    ends = [number for number in (info.min, 0, info.max) if float(number) == number and number < 2**63 - 1]
    column = np.array(ends, dtype=dtype)
    for kind in (f.Numeric(), f.Bucketized([0.0, 200.0])):
        features = f.Features({"a": kind})
        expected = features.encode([{"a": float(number)} for number in ends])["a"].tolist()
        assert features.encode({"a": column})["a"].tolist() == expected
        assert features.encode({"a": list(column)})["a"].tolist() == expected


@pytest.mark.parametrize("kind", [f.Numeric(), f.Bucketized([0.0])])
def test_an_integer_that_no_float_is_is_refused(kind):
    for value in (10**400, 2**1024, 2**53 + 1, -(2**53) - 1, 2**63 - 1):
        assert "cannot be represented exactly as float64" in reason(kind, value)
    for column in (np.array([2**53 + 1]), np.array([2**64 - 1], dtype=np.uint64), [np.int64(2**53 + 1)]):
        with pytest.raises(InvalidItem, match=r"cannot be represented exactly as float64: .* at `\$\[0\]\.a`"):
            f.Features({"a": kind}).encode({"a": column})
    assert one(f.Bucketized([0.0]), 2**60) == one(f.Bucketized([0.0]), np.uint64(2**63)) == 1


def test_the_refusal_of_what_javascript_writes_for_a_large_float_says_what_to_write():
    column = np.array([1764354000123456789.0, 2.0**63])
    features = f.Features({"a": f.Numeric(scale="minmax")}).fit({"a": column})
    written, better = "1764354000123456800", "1.7643540001234568e+18"
    rows = [msgspec.json.decode(f'{{"a": {text}}}', type=features.item_type()) for text in (written, better)]
    encoded = features.encode_rows(rows)
    assert encoded.inputs["a"].tolist() == [0]
    advice = f"write {better} if it may be rounded, and give an id as text, to Ids or Vocabulary"
    assert encoded.invalid[0].reason == f"{written} cannot be represented exactly as float64: {advice}"
    assert one(f.Ids(), written) == int(written)
    for value in (2**1024 - 1, 10**400):  # no float is near
        assert reason(f.Numeric(), value).endswith("cannot be represented exactly as float64")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.inf, "expected a finite number, got inf"),
        (np.float32("-inf"), "expected a finite number, got -inf"),
        (True, "expected a number, got bool True"),
        ("3", "expected a number, got str '3'"),
        (1 + 2j, "expected a number, got complex"),
        (3.5e38, "3.5e+38 is not a finite number as float32"),
        (None, "is missing"),
    ],
)
def test_what_is_no_number_is_refused(value, why):
    assert why in reason(f.Numeric(), value)


def test_a_number_is_rounded_once_to_the_nearest_even():
    features = f.Features({"a": f.Numeric()})
    numbers = np.array([0.1, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 3.4028235677973362e38, -0.0])
    assert features.encode({"a": numbers})["a"].tobytes() == numbers.astype(np.float32).tobytes()


def test_a_number_is_refused_from_where_it_would_be_rounded_to_infinity():
    end = 2.0**128 - 2.0**103
    assert one(f.Numeric(), math.nextafter(end, 0)) == 2.0**128 - 2.0**104
    assert reason(f.Numeric(), end) == f"{end!r} is not a finite number as float32"


def test_a_number_is_zero_up_to_where_it_is_rounded_to_the_least_normal_float32():
    begin = 2.0**-126 - 2.0**-151
    assert (one(f.Numeric(), begin), one(f.Numeric(), math.nextafter(begin, 0))) == (2.0**-126, 0)


def test_a_subnormal_float32_is_zero_with_its_sign():
    found = f.Features({"a": f.Numeric()}).encode({"a": [1e-40, -1e-40, 2.0**-126, -5e-324]})["a"]
    assert found.tolist() == [0, 0, 2.0**-126, 0]
    assert np.signbit(found).tolist() == [False, True, False, True]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint32, np.longdouble])
def test_a_column_of_any_dtype_of_numbers_is_taken(dtype):
    column = np.array([3, 4], dtype=dtype)
    assert f.Features({"a": f.Numeric()}).encode({"a": column})["a"].tolist() == [3, 4]
    assert f.Features({"a": f.Hashed(99)}).encode({"a": column})["a"].tolist() == [
        farmhash.fingerprint64("3") % 99,
        farmhash.fingerprint64("4") % 99,
    ]


def test_a_long_double_that_no_float_is_is_refused():
    with pytest.raises(InvalidItem):
        f.Features({"a": f.Numeric()}).encode({"a": np.array([np.longdouble(1) / 3])})
    features = f.Features({"a": f.Numeric(fill_value=1)})
    assert features.encode({"a": np.array([np.longdouble("nan")])})["a"].tolist() == [1]


def test_a_time_is_no_number():
    for column in (np.array([5], dtype="datetime64[ns]"), np.array([5], dtype="timedelta64[ns]")):
        with pytest.raises(InvalidItem, match="expected a number, got"):
            f.Features({"a": f.Numeric()}).encode({"a": column})
    features = f.Features({"a": f.Numeric(fill_value=1)})
    assert features.encode({"a": np.array(["NaT"], dtype="datetime64[ns]")})["a"].tolist() == [1]


def test_a_boundary_belongs_above_and_is_compared_in_float64():
    found = f.Features({"a": f.Bucketized([0.0, 0.1, 16777217.0])}).encode(
        {"a": [-5e-324, 0.1, float(np.float32(0.1)), math.nextafter(0.1, 0), 16777216, 16777217]}
    )
    assert found["a"].tolist() == [1, 2, 2, 1, 2, 3]  # float32's 0.1 is above; what is subnormal counts as 0


# -- what is missing --------------------------------------------------------------------------------------------------


def test_what_is_ignored_is_missing_in_every_form():
    features = f.Features({"a": f.Numeric(fill_value=7, missing_values=["n/a", -1, math.inf, 2**24 + 1])})
    assert features.encode({"a": ["n/a", -1, -1.0, math.inf, 2**24 + 1, None, 3]})["a"].tolist() == [7] * 6 + [3]
    assert features.encode({"a": np.array([-1, math.inf, math.nan, 3])})["a"].tolist() == [7, 7, 7, 3]
    assert features.encode({"a": np.array([-1, 2**24 + 1, 3])})["a"].tolist() == [7, 7, 3]
    words = f.Features({"a": f.Vocabulary(["7", "9"], fill_value=7, missing_values=[-1, 0.5])})
    assert words.encode({"a": [-1, "-1", -1.0, 0.5, None, 9]})["a"].tolist() == [0] * 5 + [1]
    text = f.Features({"a": f.Text(fill_value="?", missing_values=["", 3])})
    assert text.encode({"a": ["", 3, None, "x"]})["a"].tolist() == ["?", "?", "?", "x"]


def test_true_is_not_the_ignored_one():
    assert "got bool True" in reason(f.Numeric(missing_values=[1], fill_value=0), True)


def test_the_missing_values_of_pandas_are_missing(monkeypatch):
    na, nat = object(), object()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(NA=na, NaT=nat))
    for kind, fill_value in ((f.Numeric(fill_value=7), 7), (f.Ids(fill_value=7), 7), (f.Text(fill_value="?"), "?")):
        assert [one(kind, na), one(kind, nat)] == [fill_value] * 2
    monkeypatch.delitem(sys.modules, "pandas")
    assert "expected a number, got object" in reason(f.Numeric(fill_value=7), na)


def test_a_fill_value_outside_of_a_closed_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"fill_value='z' is not one of the known values"):
        f.Features({"a": f.Vocabulary(["a"], num_oov_indices=0, fill_value="z")})
    known = f.Features({"a": f.Vocabulary(["a", "b"], num_oov_indices=0, unknown="b", fill_value="z")})
    assert known.encode([{"a": None}])["a"].tolist() == [1]


@pytest.mark.parametrize("value", [3, 0.5, True, b"a", ["a"]])
def test_a_text_is_a_string_and_nothing_else(value):
    assert "expected a string, got" in reason(f.Text(), value)
    assert "half of a surrogate pair" in reason(f.Text(), "\udc00")
    assert one(f.Text(), "x\0é") == "x\0é"
    assert reason(f.Text(), None) == "is missing"
