"""Random specs over random tables, compared with the obvious encoder: a loop over rows, one value at a time."""

from __future__ import annotations

import json
import math
import struct
from random import Random
from typing import Any

import farmhash
import numpy as np
import pytest

from penstock import features as f
from penstock.errors import InvalidItem

# -- the slow encoder -------------------------------------------------------------------------------------------------

NOTHING = object()
"""What a missing value is that nothing stands for, and that is not refused."""


class Refused(Exception):
    pass


def plain(value: Any) -> Any:
    if isinstance(value, np.float32 | np.float16):
        value = float(str(value))
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and math.isnan(value) else value


def category(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if type(value) is int or (isinstance(value, float) and abs(value) <= 2**53 and value == int(value)):
        return str(int(value))
    raise Refused


def integer(value: Any) -> int:
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or str(int(value)) != value:
            raise Refused
    if isinstance(value, bool):
        raise Refused
    found = int(category(value))
    if not -(2**63) <= found < 2**63:
        raise Refused
    return found


def number(value: Any) -> float:
    if type(value) not in (int, float) or (type(value) is float and math.isinf(value)):
        raise Refused
    if type(value) is int and (abs(value) > 1e300 or int(float(value)) != value):
        raise Refused
    return float(value)


def tokens_of(kind: Any, value: Any) -> Any:
    if isinstance(kind, f.Numeric | f.Bucketized):
        return number(value)
    if isinstance(kind, f.Ids):
        return integer(value)
    if isinstance(kind, f.Text):
        if not isinstance(value, str):
            raise Refused
        return value
    return category(value)


def is_ignored(kind: Any, value: Any) -> bool:
    for ignored in kind.missing_values:
        if not isinstance(value, bool) and value == ignored:
            return True
        try:
            if tokens_of(kind, value) == tokens_of(kind, ignored):
                return True
        except Refused:
            pass
    return False


def token(kind: Any, learnt: f.Statistics, value: Any) -> Any:
    value = plain(value)
    if value is None or (not isinstance(value, list) and is_ignored(kind, value)):
        if kind.fill_value is None:
            raise Refused
        if kind.fill_value is f.MEAN:
            return learnt.mean
        return NOTHING if kind.fill_value is f.EMPTY else kind.fill_value
    return tokens_of(kind, value)


def id_of(kind: Any, learnt: f.Statistics, found: Any) -> Any:
    if found is NOTHING:
        return NOTHING
    if isinstance(kind, f.Bucketized):
        boundaries = learnt.boundaries if kind.boundaries is None else kind.boundaries
        found = 0.0 if abs(found) < 2.0**-1022 else found
        return sum(boundary <= found for boundary in boundaries)
    if isinstance(kind, f.Hashed):
        return farmhash.fingerprint64(found) % kind.buckets
    if isinstance(kind, f.Ids):
        known = None if kind.size is None else range(kind.size)
        if known is None or found in known:
            return found
    else:
        values = learnt.values if kind.values is None else kind.values
        if found in values:
            return values.index(found)
        if kind.num_oov_indices:
            return len(values) + farmhash.fingerprint64(found) % kind.num_oov_indices
    if kind.unknown is None:
        raise Refused
    if kind.unknown is f.EMPTY:
        return NOTHING
    return kind.unknown if isinstance(kind, f.Ids) else values.index(kind.unknown)


def float32(value: float) -> float:
    try:
        (found,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        raise Refused from None
    return math.copysign(0.0, found) if abs(found) < 2.0**-126 else found


def cat64(first: int, second: int) -> int:
    """FingerprintCat64 in Python's integers, after tensorflow/core/platform/fingerprint.h."""
    multiplier, most = 0xC6A4A7935BD1E995, 2**64 - 1
    mixed = second * multiplier & most
    result = first ^ multiplier ^ ((mixed ^ mixed >> 47) * multiplier & most)
    result = result * multiplier & most
    result = (result ^ result >> 47) * multiplier & most
    return result ^ result >> 47


def slow_row(features: f.Features, row: dict[str, Any]) -> dict[str, Any]:
    """One row as the arrays' rows, before they are joined."""
    found: dict[str, Any] = {}
    for name, kind in features.features.items():
        if isinstance(kind, f.Crossed):
            continue
        learnt, raw = features.statistics[name], row.get(kind.column or name)
        if getattr(kind, "max_length", None) is not None:
            found |= slow_list(name, kind, learnt, raw, row, features.sizes.get(name))
            continue
        value = token(kind, learnt, raw)
        if isinstance(kind, f.Numeric):
            found[name] = float32((value - learnt.offset) * (1.0 / learnt.divisor))
        elif isinstance(kind, f.Text):
            found[name] = value
        else:
            found |= slow_single(name, kind, id_of(kind, learnt, value), features.sizes.get(name))
    for name, kind in features.features.items():
        if isinstance(kind, f.Crossed):
            found |= slow_cross(name, features, kind, row)
    return {
        name: value for name, value in found.items() if not getattr(features.features.get(name), "cross_only", False)
    }


def slow_single(name: str, kind: Any, found: Any, size: int | None) -> dict[str, Any]:
    if kind.one_hot:
        return {name: [1.0 if place == found else 0.0 for place in range(size or 0)]}
    return {name: 0, f"{name}_weight": 0.0} if found is NOTHING else {name: found, f"{name}_weight": 1.0}


def slow_list(name: str, kind: Any, learnt: Any, raw: Any, row: dict[str, Any], size: int | None) -> dict[str, Any]:
    if isinstance(raw, np.ndarray | tuple):
        raw = list(raw)
    raw = raw if isinstance(raw, list) else plain(raw)
    weights = [] if kind.weights is None else plain_list(row.get(kind.weights))
    if raw is None:
        if kind.fill_value is None or weights:
            raise Refused
        raw = [] if kind.fill_value is f.EMPTY else [None]
        weights = [1.0] * len(raw)
    elif kind.weights is None:
        weights = [1.0] * (len(raw) if isinstance(raw, list) else 0)
    if not isinstance(raw, list) or len(raw) > kind.max_length or len(weights) != len(raw):
        raise Refused
    ids = [id_of(kind, learnt, token(kind, learnt, value)) for value in raw]
    live = [0.0 if one is NOTHING else float32(number(plain(w))) for one, w in zip(ids, weights, strict=True)]
    for weight in weights:
        float32(number(plain(weight)))
    ids = [0 if one is NOTHING else one for one in ids]
    if kind.one_hot:
        sums = [np.float32(0)] * (size or 0)
        for one, weight in zip(ids, live, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                sums[one] = sums[one] + np.float32(weight)
        if kind.weights is not None and not np.isfinite(sums).all():
            raise Refused
        return {name: sums}
    pad = [0] * (kind.max_length - len(ids))
    return {name: ids + pad, f"{name}_weight": live + pad}


def plain_list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused
    return value


def slow_cross(name: str, features: f.Features, kind: f.Crossed, row: dict[str, Any]) -> dict[str, Any]:
    mixed = kind.hash_key
    missing = False
    for key in kind.keys:
        theirs, learnt = features.features[key], features.statistics[key]
        value = token(theirs, learnt, row.get(theirs.column or key))
        number_of = id_of(theirs, learnt, value)
        missing = missing or number_of is NOTHING
        if number_of is not NOTHING:
            by_number = isinstance(theirs, f.Bucketized | f.Ids)
            mixed = cat64(mixed, number_of % 2**64 if by_number else farmhash.fingerprint64(value))
    if missing and kind.fill_value is None:
        raise Refused
    return slow_single(name, kind, NOTHING if missing else mixed % kind.buckets, kind.buckets)


def slow_encode(features: f.Features, rows: list[dict[str, Any]]) -> tuple[dict[str, np.ndarray], list[int]]:
    """The arrays of the good rows, and which rows these are."""
    good, kept = [], []
    for place, row in enumerate(rows):
        try:
            if row.keys() - set(features.columns):
                raise Refused
            good.append(slow_row(features, row))
            kept.append(place)
        except Refused:
            pass
    arrays = {}
    for tensor in features.inputs:
        shape = (len(good), *tensor.shape)
        dtype = object if tensor.dtype == "str" else tensor.dtype
        if tensor.name == features.concat_into:
            names = [
                name
                for name, kind in features.features.items()
                if isinstance(kind, f.Numeric) or getattr(kind, "one_hot", False)
            ]
            values = [[x for name in names for x in np.atleast_1d(row[name])] for row in good]
        else:
            values = [row[tensor.name] for row in good]
        arrays[tensor.name] = np.array(values, dtype=dtype).reshape(shape)
    return arrays, kept


# -- random specs and tables ------------------------------------------------------------------------------------------

WORDS = ["a", "b", "9", "-7", "", "é", "日本", "x\0y", "12"]
NUMBERS = [0, 1, 9, -7, 12, 2.5, 9.0, -0.0, 0.5, 1e30, 1e-42, -1e-320, 16777216, 1.0000000596046448, 16777217.0]
ODD = [True, False, math.inf, -math.inf, 1e39, 2**24 + 1, 2**53 + 1, 2**70, 10**400, b"a", {}, [1], 0.1, -(2.0**60)]
SCALARS = [np.int64(9), np.float32(0.1), np.float16(0.3), np.float32(9), np.float64(9.0), np.str_("a"), np.True_]
SCALARS += [np.float32(-99.9), np.float64("nan"), np.float32("nan"), np.float32("-inf"), np.uint64(2**63)]
IDS = [2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1, str(2**63 - 1), str(2**63), "+1", "01", " 1", "1_0", "-0", "٣"]
NARROW = [np.float32(0.3), np.float16(2.5)]
ANYTHING = [*WORDS, *NUMBERS, *ODD, *SCALARS, *IDS]
IGNORED = ["", "a", "9", -7, 9, 0.5, 1e30, math.inf]
BOUNDARIES = [-7.0, 0.0, 0.1, 0.3, 0.5, 1.0, 2.5, 9.0, 12.0, 1e30]
GOOD = {
    "n": [1, 2.5, 9, 100, *NARROW],
    "b": [1, 2.5, 9, 100, 2**24 + 1, *NARROW],
    "h": WORDS,
    "v": ["a", "b", 9, 9.0],
    "w": WORDS,
    "i": [0, 1, "3", 4.0],
    "t": WORDS,
    "k": [0, 1, "3", 9.0],
}
"""Values that most specs take, by column."""


def some(random: Random, values: list[Any], most: int) -> list[Any]:
    return [random.choice(values) for _ in range(random.randint(0, most))]


def forms(random: Random, fill_values: list[Any]) -> dict[str, Any]:
    """The options that kinds with ids have in common."""
    options: dict[str, Any] = {"missing_values": some(random, IGNORED, 2), "one_hot": random.random() < 0.5}
    if random.random() < 0.5:
        options["max_length"] = random.randint(1, 4)
        options["weights"] = random.choice([None, "weights"])
    return options | {"fill_value": random.choice([None, *fill_values, f.EMPTY])}


def random_spec(random: Random) -> f.Features:
    """A spec with some feature of every kind, not fitted."""
    vocabulary, ids = forms(random, ["b"]), forms(random, [0, 3, "2"])
    cuts = sorted({random.choice(BOUNDARIES) for _ in range(4)})
    buckets = random.choice([{"boundaries": cuts}, {"quantiles": random.randint(2, 5)}])
    one_hot = random.random() < 0.5
    kinds: dict[str, Any] = {
        "n": f.Numeric(
            scale=random.choice([None, "standard", "minmax"]),
            fill_value=random.choice([None, 1, 0.25, f.MEAN]),
            missing_values=some(random, IGNORED, 2),
        ),
        "b": f.Bucketized(**buckets, **forms(random, [2.5, -7, f.MEAN])),
        "h": f.Hashed(random.randint(1, 9), **forms(random, [*WORDS, 9, 9.0])),
        "v": f.Vocabulary(
            values=["a", "b", 9], num_oov_indices=0, unknown=random.choice([None, "b", f.EMPTY]), **vocabulary
        ),
        "w": f.Vocabulary(max_size=random.randint(1, 5), num_oov_indices=random.randint(1, 3), **forms(random, WORDS)),
        "i": f.Ids(5 if ids["one_hot"] else random.choice([None, 5, 2**40]), **ids),
        "t": f.Text(fill_value=random.choice([None, *WORDS]), missing_values=some(random, IGNORED, 2)),
        "kb": f.Bucketized([0.0, 2.5], column="n", cross_only=True, fill_value=random.choice([None, f.EMPTY, 1.0])),
        "kh": f.Hashed(7, column="t", cross_only=True, fill_value=random.choice([None, f.EMPTY, "z"])),
        "kv": f.Vocabulary(
            ["a", "b"],
            num_oov_indices=0,
            unknown=random.choice([f.EMPTY, "b"]),
            column="t",
            cross_only=True,
            fill_value=random.choice([None, f.EMPTY, "a"]),
        ),
        "ki": f.Ids(10, column="k", one_hot=True, fill_value=f.EMPTY, unknown=random.choice([None, f.EMPTY, 4])),
        "c": f.Crossed(
            random.sample(["kb", "kh", "kv", "ki"], 4),
            11,
            one_hot=one_hot,
            fill_value=f.EMPTY if random.random() < 0.7 else None,
        ),
    }
    order = random.sample(list(kinds), len(kinds))
    return f.Features({name: kinds[name] for name in order}, concat_into=random.choice([None, "x"]))


def random_cell(random: Random, kind: Any, good: list[Any], odd: float, gaps: float) -> Any:
    def value() -> Any:
        if random.random() < odd:
            return random.choice(ANYTHING)
        return random.choice([None, math.nan]) if random.random() < gaps else random.choice(good)

    if getattr(kind, "max_length", None) is None or random.random() < odd / 2:
        return value()
    if random.random() < gaps:
        return None
    longest = kind.max_length + 1 if random.random() < odd else kind.max_length
    values = [value() for _ in range(random.randint(0, longest))]
    return tuple(values) if random.random() < 0.2 else values


def random_table(random: Random, features: f.Features, rows: int) -> list[dict[str, Any]]:
    odd, gaps = random.choice([(0.0, 0.0), (0.0, 0.05), (0.02, 0.05), (0.2, 0.2)])
    table = []
    for _ in range(rows):
        row = {name: random_cell(random, features.features.get(name), good, odd, gaps) for name, good in GOOD.items()}
        row = {name: cell for name, cell in row.items() if cell is not None or random.random() < 0.5}
        if "weights" in features.columns:
            weighted = [name for name, kind in features.features.items() if getattr(kind, "weights", None)]
            cell = row.get(random.choice(weighted))
            length = len(cell) if isinstance(cell, list | tuple) else 0
            row["weights"] = [random.choice([1, 0.5, -2.0, 0, 3e38, 1e-42]) for _ in range(length)]
            if random.random() < odd:
                row["weights"] = random.choice([None, [1], [math.inf], [None], ["a"], 1.0, [1e39], [2**24 + 1]])
        if random.random() < odd / 5:
            row["unheard-of"] = 1
        table.append(row)
    return table


def fitted(spec: f.Features) -> f.Features:
    table = []
    for place in range(12):
        row = {name: values[place % len(values)] for name, values in GOOD.items()}
        lists = {name for name, kind in spec.features.items() if getattr(kind, "max_length", None)}
        table.append({name: [cell] if name in lists else cell for name, cell in row.items()})
    return spec.fit(table)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in found.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape), name
        if array.dtype == object:
            assert array.tolist() == expected[name].tolist(), name
        else:
            assert array.tobytes() == expected[name].tobytes(), name


# -- what is compared -------------------------------------------------------------------------------------------------

SEEDS = range(150)


def test_every_array_and_every_refusal_is_that_of_the_slow_encoder():
    seen = {"good": 0, "bad": 0}
    for seed in SEEDS:
        random = Random(seed)
        features = fitted(random_spec(random))
        rows = random_table(random, features, random.choice([0, 1, 8, 20]))
        expected, kept = slow_encode(features, rows)
        encoded = features.encode_rows(rows)
        assert encoded.kept == kept, seed
        assert sorted([*encoded.invalid, *kept]) == list(range(len(rows))), seed
        assert_same(encoded.inputs, expected)
        seen["good"] += len(kept)
        seen["bad"] += len(encoded.invalid)
    assert min(seen.values()) > 300, seen  # the table has some of both


def test_encode_raises_at_the_first_bad_row_and_where_in_it():
    raised = 0
    for seed in SEEDS:
        random = Random(seed)
        features = fitted(random_spec(random))
        rows = random_table(random, features, 8)
        for row in rows:
            row.pop("unheard-of", None)  # encode ignores other columns
        invalid = features.encode_rows(rows).invalid
        if invalid:
            with pytest.raises(InvalidItem) as caught:
                features.encode(rows)
            first = min(invalid)
            assert caught.value.path == f"$[{first}]{invalid[first].path.removeprefix('$')}", seed
            assert caught.value.reason == invalid[first].reason, seed
            raised += 1
        else:
            assert_same(features.encode(rows), features.encode_rows(rows).inputs)
    assert 10 < raised < len(SEEDS) - 10


def test_a_bad_row_harms_no_other_row():
    for seed in SEEDS:
        random = Random(seed)
        features = fitted(random_spec(random))
        rows = random_table(random, features, 6)
        together = features.encode_rows(rows)
        alone = [features.encode_rows([row]) for row in rows]
        assert together.kept == [place for place, one in enumerate(alone) if one.kept], seed
        for place, error in together.invalid.items():
            assert str(alone[place].invalid[0]) == str(error), seed
        for name, array in together.inputs.items():
            assert_same({name: array}, {name: np.concatenate([one.inputs[name] for one in alone])})


def test_rows_columns_and_plain_rows_give_the_same_bits():
    for seed in SEEDS:
        random = Random(seed)
        features = fitted(random_spec(random))
        rows = random_table(random, features, 8)
        good = [rows[place] for place in features.encode_rows(rows).kept]
        expected = features.encode(good)
        columns = {name: [row.get(name) for row in good] for name in features.columns}
        objects = {name: as_objects(column) for name, column in columns.items()}
        for table in (columns, objects, tuple(good), features.to_rows(good), features.to_rows(objects)):
            assert_same(features.encode(table), expected)
        assert_same(features.encode(json.loads(json.dumps(features.to_rows(good)))), expected)


def as_objects(column: list[Any]) -> np.ndarray:
    array = np.empty(len(column), dtype=object)
    for place, value in enumerate(column):
        array[place] = value
    return array


def test_a_spec_comes_back_from_its_text_exactly():
    for seed in SEEDS:
        spec = random_spec(Random(seed))
        for features in (spec, fitted(spec)):
            text = features.to_json()
            again = f.Features.from_json(text)
            assert again == features, seed
            assert again.to_json() == text, seed
            assert list(again.features) == list(features.features), seed
            assert again.fitted is features.fitted, seed
        assert again.statistics == features.statistics, seed
        assert again.inputs == features.inputs, seed
