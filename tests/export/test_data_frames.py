"""Tables of pandas, with each of its ways to have a column and to miss a value."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import penstock as ps
from penstock import features as f
from penstock.codec.decode import ItemDecoder
from penstock.codec.formats import Codec
from penstock.errors import ConfigError, InvalidItem
from penstock.export.artifact_stage import ArtifactStage

IDS = [2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1]


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        assert array.tolist() == expected[name].tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64", "object"])
def test_a_missing_number_is_missing_in_every_dtype(dtype):
    features = f.Features({"a": f.Numeric(fill_value=7.5), "b": f.Bucketized([2], column="a", fill_value=0)})
    column = pd.Series([1, None, 3], dtype=dtype)
    found = features.encode(pd.DataFrame({"a": column}))
    assert (found["a"].tolist(), found["b"].tolist()) == ([1, 7.5, 3], [0, 0, 1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "Float32", "Sparse[float32]", "category"])
@pytest.mark.parametrize("missing", [None, 0.7])
def test_a_narrow_column_of_every_dtype_counts_as_its_decimals(dtype, missing):
    rows = [{"a": value} for value in (0.3, missing, 0.7, -99.9)]
    values = pd.Series([row["a"] for row in rows], dtype="float32" if dtype == "category" else dtype)
    features = f.Features(
        {
            "n": f.Numeric(scale="standard", fill_value=f.MEAN, missing_values=[-99.9], column="a"),
            "b": f.Bucketized([0.3, 0.7], fill_value=0, missing_values=[-99.9], column="a"),
            "q": f.Bucketized(quantiles=3, fill_value=0, column="a"),
        }
    )
    for column in (values.astype(dtype), values.astype(dtype).array):
        fitted = features.fit({"a": column})
        assert fitted == features.fit(rows)
        assert fitted.to_rows({"a": column}) == rows
        assert_same(fitted.encode({"a": column}), fitted.encode(rows))


@pytest.mark.parametrize("dtype", ["int64", "Int64", "object", "string", "category"])
def test_large_ids_are_exact_in_every_dtype(dtype):
    values = pd.Series(list(map(str, IDS)) if dtype == "string" else IDS, dtype=dtype)
    features = f.Features({"a": f.Ids(fill_value=3)})
    assert features.encode(pd.DataFrame({"a": values}))["a"].tolist() == IDS
    if dtype in ("Int64", "object", "string"):
        values[1] = None
        assert features.encode(pd.DataFrame({"a": values}))["a"].tolist() == [IDS[0], 3, *IDS[2:]]


@pytest.mark.parametrize("given", [lambda column: column.array, lambda column: column.values, pd.Index])
def test_what_a_nullable_column_is_made_of_is_as_exact_as_the_column(given):
    column = pd.Series([1, None, 2**53 + 1], dtype="Int64")
    features = f.Features({"a": f.Ids(fill_value=0), "h": f.Hashed(1000, column="a", fill_value="none")})
    expected = features.encode(pd.DataFrame({"a": column}))
    assert expected["a"].tolist() == [1, 0, 2**53 + 1]
    assert_same(features.encode({"a": given(column)}), expected)
    assert features.to_rows({"a": given(column)}) == [{"a": 1}, {"a": None}, {"a": 2**53 + 1}]


@pytest.mark.parametrize("dtype", ["int64", "Int8", "boolean", "category", "Float32", "string", "Sparse[int]"])
def test_an_array_of_each_dtype_is_read_as_its_column(dtype):
    column = pd.Series([0, 1, 1]).astype(dtype)
    features = f.Features({"t": f.Text(fill_value="?")})
    assert features.to_rows({"t": column.array}) == features.to_rows({"t": column})


@pytest.mark.parametrize("dtype", ["object", "str", "string", "category"])
def test_categories_of_every_dtype_are_the_same(dtype):
    features = f.Features({"a": f.Vocabulary(["x", "é", ""], fill_value="x"), "t": f.Text(column="a", fill_value="?")})
    found = features.encode(pd.DataFrame({"a": pd.Series(["é", None, "", "z"], dtype=dtype)}))
    assert found["a"].tolist() == [1, 0, 2, 3]
    assert found["t"].tolist() == ["é", "?", "", "z"]


def test_an_integer_category_with_missing_values_is_one_category_with_its_string():
    features = f.Features({"a": f.Hashed(1000, fill_value="none")})
    expected = features.encode([{"a": "9"}, {"a": None}, {"a": "10"}])
    for dtype in ("float64", "Int64", "object"):
        assert_same(features.encode(pd.DataFrame({"a": pd.Series([9, None, 10], dtype=dtype)})), expected)


@pytest.mark.parametrize("dtype", ["bool", "boolean", "object"])
def test_a_column_of_booleans_is_one_of_categories(dtype):
    features = f.Features({"a": f.Vocabulary(["false", "true"], fill_value="false")})
    assert features.encode(pd.DataFrame({"a": pd.Series([True, False], dtype=dtype)}))["a"].tolist() == [1, 0]


def test_two_columns_of_one_name_are_told_as_that():
    table = pd.concat([pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})], axis=1)
    with pytest.raises(ConfigError, match="the table has 2 columns of the name 'a'"):
        f.Features({"a": f.Numeric()}).encode(table)


def test_a_time_is_refused_and_a_missing_one_is_missing():
    features = f.Features({"a": f.Numeric(fill_value=1)})
    times = pd.Series(pd.to_datetime(["2020-01-01", None]))
    with pytest.raises(InvalidItem) as caught:
        features.encode(pd.DataFrame({"a": times}))
    assert caught.value.path == "$[0].a"
    assert features.encode(pd.DataFrame({"a": times[1:]}))["a"].tolist() == [1]
    assert features.encode([{"a": pd.NaT}, {"a": pd.NA}])["a"].tolist() == [1, 1]


def test_lists_may_be_cells():
    features = f.Features({"a": f.Ids(9, max_length=3, fill_value=f.EMPTY)})
    table = pd.DataFrame({"a": [[1, 2], None, np.array([3, 4, 5])]})
    assert features.encode(table)["a"].tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]


def test_a_frame_with_another_index_is_read_by_place():
    features = f.Features({"a": f.Numeric(scale="minmax")}).fit(pd.DataFrame({"a": [1.0, 2, 5]}, index=[9, 3, 7]))
    with pytest.raises(InvalidItem) as caught:
        features.encode(pd.DataFrame({"a": [1, np.inf]}, index=["x", "y"]))
    assert caught.value.path == "$[1].a"


def test_a_frame_without_a_column_says_which_it_has():
    with pytest.raises(ConfigError, match="did you mean 'ages'"):
        f.Features({"age": f.Numeric()}).encode(pd.DataFrame({"ages": [1]}))
    assert f.Features({"age": f.Numeric(fill_value=0)}).encode(pd.DataFrame({"b": [1, 2]}))["age"].tolist() == [0, 0]


def test_the_rows_of_a_frame_are_what_json_has_and_give_the_same_bits():
    table = pd.DataFrame(
        {
            "n": pd.Series([0.1, None, 3], dtype="float32"),
            "i": pd.Series([1, None, 2**62 + 1], dtype="Int64"),
            "c": pd.Series(["x", None, "é"]),
            "t": pd.Series([[1], [2, 3], None]),
            "more": [object()] * 3,
        }
    )
    features = f.Features(
        {
            "n": f.Numeric(scale="standard", fill_value=f.MEAN),
            "i": f.Ids(fill_value=7),
            "c": f.Vocabulary(max_size=2, fill_value="none"),
            "t": f.Hashed(9, max_length=2, fill_value=f.EMPTY, one_hot=True),
        },
        concat_into="x",
    ).fit(table)
    rows = json.loads(json.dumps(features.to_rows(table), allow_nan=False))
    assert rows[1] == {"n": None, "i": None, "c": None, "t": [2, 3]}
    assert_same(features.encode(rows), features.encode(table))
    assert_same(features.encode_rows(rows).inputs, features.encode(table))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("cut", [{"quantiles": 4}, {"boundaries": [0.3, 0.7]}])
def test_a_model_of_a_narrow_frame_answers_the_json_of_its_rows_as_it_did_in_training(tmp_path, dtype, cut):
    decimals = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    frame = pd.DataFrame({"a": pd.Series(decimals * 20, dtype=dtype)})
    features = ps.Features(
        {"b": f.Bucketized(**cut, one_hot=True, column="a"), "n": f.Numeric(column="a")}, concat_into="x"
    )
    features = features.fit(frame)
    inputs = features.encode(frame)["x"]
    model = LogisticRegression(C=1e6).fit(inputs, inputs[:, 1] > 0)
    report = ps.export.save(model, tmp_path / "made", features=features, reference_rows=frame)
    stage, decoder = ArtifactStage(), ItemDecoder(features.item_type())
    stage.setup(path=str(report.path), digest=report.digest, format="onnx", trust=False)
    answers = stage.predict([decoder.decode(Codec.JSON, json.dumps({"a": number}).encode()) for number in decimals])
    trained = model.predict_proba(inputs[: len(decimals)])
    assert np.array([answer["probabilities"] for answer in answers]) == pytest.approx(trained, abs=1e-5)
    stage.teardown()
