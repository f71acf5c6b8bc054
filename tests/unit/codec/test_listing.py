"""Client batches taken apart and put together."""

import contextlib
import gc
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import listing
from penstock.codec.decode import ItemDecoder
from penstock.codec.formats import Codec
from penstock.codec.listing import TooManyItems, join_outcomes, most_items, split_list
from penstock.errors import InvalidItem
from rows import each

ENCODE = {Codec.JSON: msgspec.json.encode, Codec.MSGPACK: msgspec.msgpack.encode}
DECODE = {Codec.JSON: msgspec.json.decode, Codec.MSGPACK: msgspec.msgpack.decode}
BOTH = pytest.mark.parametrize("codec", [Codec.JSON, Codec.MSGPACK])


@BOTH
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_a_list_is_taken_apart_into_its_items_bytes(codec, wrap):
    items = [1, "two", {"three": [4.5]}, None, []]
    parts = split_list(codec, wrap(ENCODE[codec](items)))
    assert [bytes(part) for part in parts] == [ENCODE[codec](item) for item in items]
    decoder = ItemDecoder(dict | list | str | int | None)
    assert [decoder.decode(codec, part) for part in parts] == items


def test_items_are_views_of_the_body():
    body = b'["' + b"x" * 100 + b'"]'
    (part,) = split_list(Codec.JSON, body)
    assert part.obj is body or memoryview(body)[1:-1] == part
    assert len(part) == 102


@BOTH
def test_an_empty_list_has_no_items(codec):
    assert list(split_list(codec, ENCODE[codec]([]))) == []


@BOTH
def test_a_slice_of_the_items_is_items(codec):
    parts = split_list(codec, ENCODE[codec]([1, 2, 3]))[1:]
    assert [bytes(part) for part in parts] == [ENCODE[codec](2), ENCODE[codec](3)]


@BOTH
@pytest.mark.parametrize("value", [{}, 5, None, "text"])
def test_a_body_that_is_no_list_is_refused(codec, value):
    with pytest.raises(InvalidItem, match="expected `array`"):
        split_list(codec, ENCODE[codec](value))


@pytest.mark.parametrize("body", [b"", b"[", b"[1", b"[1,]", b"[1] 2", b"[NaN]", b"[" * 100_000, b"[{]", b"[1 2]"])
def test_a_broken_json_list_is_refused_as_a_whole(body):
    with pytest.raises(InvalidItem):
        split_list(Codec.JSON, body)


@pytest.mark.parametrize(
    "body", [b"", b"\x92\x01", b"\x91\x01\x01", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\xc1"]
)
def test_a_broken_messagepack_list_is_refused_as_a_whole(body):
    with pytest.raises(InvalidItem):
        split_list(Codec.MSGPACK, body)


def test_what_is_wrong_inside_an_item_is_left_to_that_item():
    good, text, huge = split_list(Codec.JSON, b'[1, "\xff", 1e999]')
    assert bytes(good) == b"1"
    for part in (text, huge):
        with pytest.raises(InvalidItem):
            ItemDecoder(float).decode(Codec.JSON, part)


@given(st.binary(max_size=100))
def test_random_bodies_are_a_list_or_refused(body):
    for codec in (Codec.JSON, Codec.MSGPACK):
        with contextlib.suppress(InvalidItem):
            assert all(isinstance(part, memoryview) for part in split_list(codec, body))


LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(alphabet='ab,"[]{}\\: é\n', max_size=8)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('a,"]\\', max_size=3), inner, max_size=4),
)


@BOTH
@given(st.lists(TREES, max_size=8), st.integers(1, 7), st.sampled_from([1, 2, 3, 5, 8, 1000]), st.booleans())
def test_too_many_items_are_as_many_as_msgspec_counts_and_found_out_beforehand(codec, items, limit, piece, spaced):
    body = ENCODE[codec](items)
    if codec is Codec.JSON and spaced:
        body = b" \n" + msgspec.json.format(body, indent=1) + b"\t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_PIECE_BYTES", piece)  # everything lies across the border of two pieces at some size
        assert listing._announces_more(codec, body, limit) == (len(items) > limit)
        if len(items) > limit:
            with pytest.raises(TooManyItems, match=f"more than {limit} items"):
                split_list(codec, body, limit)
        else:
            assert len(split_list(codec, body, limit)) == len(items)


# At 16 and at 65 536 items the head of a MessagePack list changes; JSON has no head.
AT_THE_LIMIT = [
    *((codec, wrap, limit) for codec in ENCODE for wrap in (bytes, bytearray, memoryview) for limit in range(1, 18)),
    *((Codec.MSGPACK, bytes, limit) for limit in (65_535, 65_536)),
]


@each(("codec", "wrap", "limit"), AT_THE_LIMIT)
def test_as_many_items_as_the_limit_pass_and_one_more_does_not(codec, wrap, limit):
    for value in (1, "a,b", [[1, 2], [3, 4]], {"a": [1, "]"], "b": {"c": 2, "d": 3}}):
        assert len(split_list(codec, wrap(ENCODE[codec]([value] * limit)), limit)) == limit
        with pytest.raises(TooManyItems):
            split_list(codec, wrap(ENCODE[codec]([value] * (limit + 1))), limit)


@BOTH
def test_a_list_is_refused_as_well_whose_items_were_not_counted_beforehand(codec, monkeypatch):
    monkeypatch.setattr(listing, "_announces_more", lambda *_: False)
    assert len(split_list(codec, ENCODE[codec]([1, 2, 3]), 3)) == 3
    with pytest.raises(TooManyItems, match="more than 2 items"):
        split_list(codec, ENCODE[codec]([1, 2, 3]), 2)


@BOTH
def test_a_list_of_too_many_items_costs_little_more_than_its_bytes(codec):
    body = ENCODE[codec]([[1]] * 300_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooManyItems):
            split_list(codec, body, 1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 1024 * 1024 + len(body)


@BOTH
def test_an_item_costs_less_than_100_bytes_until_it_is_asked_for_and_the_collector_nothing(codec):
    body = ENCODE[codec]([0] * 100_000)
    gc.collect()
    before = gc.get_count()[0]
    tracemalloc.start()
    try:
        items = split_list(codec, body, 100_000)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert gc.get_count()[0] - before < 100
    assert grown < 100 * len(items)


@BOTH
@given(st.lists(TREES, max_size=8))
def test_a_list_never_has_more_items_than_it_is_said_to_have_at_most(codec, items):
    assert most_items(codec, ENCODE[codec](items)) >= len(items)


@pytest.mark.parametrize(
    "broken", [b'["a,,,,', b"[1,,,,", b"[1,1]]],,,,", b"{1,,,,", b",,,,,,", b'[",\\",,,', b"[[[,,,,,", b"]", b"[}}"]
)
def test_a_body_that_is_no_list_is_refused_however_many_commas_it_has(broken):
    with pytest.raises((InvalidItem, TooManyItems)):
        split_list(Codec.JSON, broken, 1)


@given(st.text(alphabet='[]{},"\\1 ', max_size=40), st.integers(1, 5), st.sampled_from([1, 4, 1000]))
def test_counting_never_refuses_what_msgspec_would_take_apart(text, limit, piece):
    body = b"[" + text.encode()
    try:
        items = split_list(Codec.JSON, body)
    except InvalidItem:
        with pytest.raises((InvalidItem, TooManyItems)):
            split_list(Codec.JSON, body, limit)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_PIECE_BYTES", piece)
        assert listing._announces_more(Codec.JSON, body, limit) == (len(items) > limit)


@BOTH
@pytest.mark.parametrize("count", [0, 1, 20, 70_000])
def test_outcomes_are_put_together_in_order(codec, count):
    encoded = ENCODE[codec]({"score": 1.5})
    entries = [(encoded, None) if n % 3 else (None, {"status": 422, "title": "no"}) for n in range(count)]
    expected = [
        {"result": {"score": 1.5}} if n % 3 else {"error": {"status": 422, "title": "no"}} for n in range(count)
    ]
    assert DECODE[codec](join_outcomes(codec, entries)) == {"outcomes": expected}


@BOTH
def test_a_payload_in_segments_is_joined(codec):
    whole = ENCODE[codec]([1, 2, "three"])
    segments = [whole[:2], bytearray(whole[2:3]), memoryview(whole)[3:]]
    assert DECODE[codec](join_outcomes(codec, [(segments, None)])) == {"outcomes": [{"result": [1, 2, "three"]}]}


def test_a_format_without_lists_is_our_own_mistake():
    with pytest.raises(KeyError):
        split_list(Codec.RAW, b"")
    with pytest.raises(KeyError):
        split_list(Codec.NPY, b"1,1", 1)
    with pytest.raises(KeyError):
        join_outcomes(Codec.NPY, [])
