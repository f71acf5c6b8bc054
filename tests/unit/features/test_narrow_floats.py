"""Numbers of float16 and float32 count as their shortest decimal, in every form of a column."""

from __future__ import annotations

import json
import math
from array import array
from random import Random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from penstock import features as f
from penstock.codec.numpy_ import widen
from penstock.errors import ConfigError, InvalidItem
from penstock.features.narrow_floats import widen_all
from rows import each


def random_narrow(count: int) -> np.ndarray:
    """Numbers of every size, decimals, large integers, powers of two, what lies beside them, and what is no number."""
    random = np.random.default_rng(0)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [
            random.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32),
            random.normal(size=count),
            np.round(random.uniform(-1000, 1000, count), 2),
            random.integers(-(2**31), 2**31, count),
            2.0 ** np.arange(-149, 128),
            10.0 ** np.arange(-45, 39),
        ]
        numbers = np.concatenate([part.astype(np.float32) for part in parts])
        return np.concatenate([numbers, np.nextafter(numbers, np.float32(np.inf)), np.float32([0.0, -0.0, np.inf])])


NARROW = random_narrow(4000)
EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize(
    "numbers",
    [NARROW, EVERY_HALF, NARROW.astype(">f4")],
    ids=["float32", "float16", "big-endian float32"],
)
def test_a_number_is_the_float64_of_the_text_that_python_and_numpy_write(numbers):
    expected = np.array([float(str(number)) for number in numbers])
    finite = np.isfinite(numbers)
    for found in (widen_all(numbers), np.array([widen(number) for number in numbers])):
        assert found[finite].tobytes() == expected[finite].tobytes()  # -0.0 too
        assert found[~finite].tolist() == pytest.approx(expected[~finite].tolist(), nan_ok=True)
    with np.errstate(over="ignore"):
        assert (widen_all(numbers)[finite].astype(numbers.dtype) == numbers[finite]).all()


def test_print_options_do_not_change_a_number():
    with np.printoptions(legacy="1.13", precision=2, floatmode="fixed"):
        assert widen(np.float32(0.123456789)) == 0.12345679
        assert widen_all(np.float32([0.123456789, 1e-30])).tolist() == [0.12345679, 1e-30]


def test_no_numbers_are_no_numbers():
    assert widen_all(np.float32([])).tolist() == widen_all(np.float16([])).tolist() == []


# -- every form of a column -------------------------------------------------------------------------------------------


class PyArrow:
    """An array of pyarrow: its list has lost the precision, and its array has kept it."""

    def __init__(self, values, type_, dtype):
        self.values, self.type, self._dtype = values, type_, dtype

    def to_pylist(self):
        return [None if math.isnan(value) else float(self._dtype(value)) for value in self.values]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=self._dtype)

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        raise AssertionError("its elements are objects of its own")


class Lists(PyArrow):
    """One of lists, one of which is missing."""

    def to_pylist(self):
        return [None if value is None else value.tolist() for value in self.values]

    def __array__(self, dtype=None, copy=None):
        cells = np.empty(len(self.values), dtype=object)
        cells[:] = self.values
        return cells


class Categories(PyArrow):
    """A column of categories, of pandas."""

    def __init__(self, values, dtype):
        super().__init__(values, None, dtype)
        self.dtype = SimpleNamespace(categories=SimpleNamespace(dtype=np.dtype(dtype)))

    to_list = PyArrow.to_pylist


DECIMALS = [0.3, math.nan, 0.7, -99.9]
COLUMNS = [
    np.float32(DECIMALS),
    np.float16(DECIMALS),
    np.array(DECIMALS, dtype=">f4"),
    np.array(DECIMALS, dtype=">f2"),
    np.array([np.float32(0.3), None, np.float32(0.7), np.float32(-99.9)], dtype=object),
    np.float32(DECIMALS)[::-1][::-1],
    list(np.float32(DECIMALS)),
    tuple(np.float16(DECIMALS)),
    [np.float32(0.3), None, 0.7, np.float16(-99.9)],
    array("f", DECIMALS),
    memoryview(np.float16(DECIMALS)),
    np.ma.MaskedArray(np.float32([0.3, 5, 0.7, -99.9]), mask=[False, True, False, False]),
    PyArrow(DECIMALS, "float", np.float32),
    PyArrow(DECIMALS, "halffloat", np.float16),
    PyArrow(DECIMALS, "dictionary<values=float, indices=int32, ordered=0>", np.float32),
    Categories(DECIMALS, np.float32),
]
READ = f.Features(
    {
        "bucket": f.Bucketized([0.3, 0.7], column="a", fill_value=0.0, missing_values=[-99.9]),
        "number": f.Numeric(column="a", fill_value=5.0, missing_values=[-99.9]),
        "word": f.Hashed(9, column="b", fill_value="none", missing_values=[0.3, 0.7, -99.9]),
        "id": f.Ids(9, column="b", fill_value=8, missing_values=[0.3, 0.7, -99.9]),
        "cut": f.Bucketized([0.3, 0.7], column="a", cross_only=True, fill_value=f.EMPTY, missing_values=[-99.9]),
        "cross": f.Crossed(["cut", "cut too"], 1000, one_hot=True, fill_value=f.EMPTY),
        "cut too": f.Bucketized(
            [0.7], column="a", cross_only=True, fill_value=f.EMPTY, missing_values=[np.float32(-99.9)]
        ),
    }
)


@each("column", COLUMNS)
def test_a_column_of_each_form_is_read_as_its_decimals_are(column):
    rows = [{"a": value, "b": value} for value in (0.3, None, 0.7, -99.9)]
    table = {"a": column, "b": column}
    expected, found = READ.encode(rows), READ.encode(table)
    assert expected["bucket"].tolist() == [1, 0, 2, 0]
    assert {name: values.tolist() for name, values in found.items()} == {
        name: values.tolist() for name, values in expected.items()
    }
    assert READ.to_rows(table) == rows
    spec = f.Features(
        {"a": f.Numeric(scale="standard", missing_values=[-99.9], fill_value=f.MEAN), "b": f.Bucketized(quantiles=4)}
    )
    assert spec.fit(table) == spec.fit(rows)


@each(
    "column",
    [
        [np.float32([0.3, 0.7]), None],
        [list(np.float16([0.3, 0.7])), None],
        [[np.float32(0.3), 0.7], math.nan],
        Lists([np.float32([0.3, 0.7]), None], "list<item: float>", np.float32),
    ],
)
def test_lists_are_read_as_their_decimals_are(column):
    features = f.Features(
        {"a": f.Bucketized([0.3, 0.7], max_length=2, weights="w", fill_value=f.EMPTY)},
    )
    table = {"a": column, "w": column}
    assert features.to_rows(table) == [{"a": [0.3, 0.7], "w": [0.3, 0.7]}, {"a": None, "w": None}]
    found = features.encode(table)
    assert found["a"].tolist() == [[1, 2], [0, 0]]
    assert found["a_weight"].tolist() == [np.float32([0.3, 0.7]).tolist(), [0, 0]]


def test_a_table_of_lists_of_one_length_is_read_as_its_decimals_are():
    features = f.Features({"a": f.Bucketized([0.3, 0.7], max_length=2)})
    assert features.encode({"a": np.float32([[0.3, 0.7], [0.5, 0.2]])})["a"].tolist() == [[1, 2], [1, 0]]


def test_options_count_as_their_decimals():
    kind = f.Bucketized(np.float32([0.3, 0.7]), fill_value=np.float16(0.3), missing_values=np.float32([-99.9]))
    assert kind == f.Bucketized([0.3, 0.7], fill_value=0.3, missing_values=[-99.9])


def test_random_numbers_have_the_same_bucket_in_training_and_through_the_text_of_json():
    random = Random(0)
    column = np.float32([random.choice([1e-3, 1, 1e6]) * random.gauss(0, 1) for _ in range(25_000)])
    column[::50] = np.round(column[::50], 1)
    features = f.Features(
        {
            "cut": f.Bucketized(quantiles=1000, column="a"),
            "given": f.Bucketized(sorted({float(str(number)) for number in column[:500]}), column="a"),
            "number": f.Numeric(scale="standard", column="a"),
            "key": f.Bucketized(quantiles=50, column="a", cross_only=True),
            "other": f.Bucketized([0.0], column="a", cross_only=True),
            "cross": f.Crossed(["key", "other"], 5000),
        }
    ).fit({"a": column})
    trained = features.encode({"a": column})
    written = "[" + ",".join(f'{{"a":{number!s}}}' for number in column) + "]"  # as numpy and Python write each
    for text in (written, json.dumps(features.to_rows({"a": column}))):
        served = features.encode_rows(msgspec.json.decode(text, type=list[features.item_type()]))
        assert not served.invalid
        for name, values in trained.items():
            assert served.inputs[name].tobytes() == values.tobytes(), name


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 2**24), (np.float16, 2**11)])
@pytest.mark.parametrize("kind", [f.Ids(), f.Hashed(9), f.Vocabulary(max_size=9)])
def test_a_whole_number_that_may_have_been_another_is_no_id_and_no_category(kind, dtype, largest):
    features = f.Features({"a": kind}).fit({"a": [1]})
    good = np.array([0, -7, largest - 1, largest, -largest], dtype=dtype)
    assert features.encode({"a": good})["a"].tolist() == features.encode({"a": good.astype(int)})["a"].tolist()
    bad = np.nextafter(dtype(largest), dtype(np.inf))
    for column in (np.append(good[:1], bad), [dtype(0), bad], [dtype(0), bad, "x"]):
        with pytest.raises(InvalidItem) as caught:
            features.encode({"a": column})
        assert caught.value.path == "$[1].a"
        assert f"beyond {largest} a {dtype.__name__} cannot represent every integer" in caught.value.reason
    if isinstance(kind, f.Vocabulary):
        with pytest.raises(InvalidItem, match=r"`\$\[0\]\.a`"):
            f.Features({"a": kind}).fit({"a": np.array([bad])})


def test_a_column_that_numpy_cannot_read_is_refused_by_its_name():
    class Tensor:
        dtype = "bfloat16"

        def __array__(self, dtype=None, copy=None):
            raise TypeError("Got unsupported ScalarType BFloat16")

        def __len__(self):
            return 1

        def __iter__(self):
            return iter([object()])

    tensor = Tensor()
    for read in (f.Features({"price": f.Numeric(scale="minmax")}).fit, f.Features({"price": f.Numeric()}).encode):
        with pytest.raises(ConfigError, match=r"the column 'price' cannot be read as an array: .* BFloat16"):
            read({"price": tensor})


@pytest.mark.parametrize("kind", [f.Numeric(), f.Bucketized([0.0])])
def test_what_is_no_number_in_a_narrow_column_is_missing_or_refused(kind):
    features = f.Features({"a": kind})
    for dtype in (np.float16, np.float32):
        for value, reason in ((np.nan, "is missing"), (np.inf, "expected a finite number, got inf")):
            with pytest.raises(InvalidItem) as caught:
                features.encode({"a": np.array([1, value], dtype=dtype)})
            assert (caught.value.path, caught.value.reason) == ("$[1].a", reason)


def test_the_ends_of_narrow_numbers_keep_their_sign_and_their_bucket():
    features = f.Features({"n": f.Numeric(column="a"), "b": f.Bucketized([0.0, 6e-8], column="a")})
    column = np.float16([-0.0, 0.0, 6e-8, -6e-8, 65504, -65504])
    found = features.encode({"a": column})
    assert found["b"].tolist() == [1, 1, 2, 0, 2, 0]
    assert np.signbit(found["n"]).tolist() == [True, False, False, True, False, True]
    assert found["n"].tolist() == np.float32([0, 0, 6e-8, -6e-8, 65500, -65500]).tolist()
    least = np.nextafter(np.float32(0), np.float32(1))
    assert features.encode({"a": np.float32([least, -least])})["b"].tolist() == [1, 0]
