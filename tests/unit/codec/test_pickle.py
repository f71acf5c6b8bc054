"""Objects between processes, with their buffers beside the pickle."""

import asyncio
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from penstock.codec.pickle_ import OUT_OF_BAND_BYTES, dumps, loads
from penstock.core.payload import ALIGNMENT

LARGE = OUT_OF_BAND_BYTES // 8


def join(payload) -> bytearray:
    return bytearray(payload if isinstance(payload, bytes) else b"".join(payload))


class Strided:
    def __reduce_ex__(self, protocol):
        return bytes, (pickle.PickleBuffer(memoryview(bytearray(8192))[::2]),)


class Explosive:
    def __reduce__(self):
        return divmod, (1, 0)


@pytest.mark.parametrize("value", [None, 5, "text", [1, {"a": (2, b"x")}], b"\x00" * 100_000, np.arange(3)])
def test_small_objects_are_one_piece(value):
    payload = dumps(value)
    assert isinstance(payload, bytes)
    np.testing.assert_equal(loads(payload), value)


def test_a_large_array_is_not_copied_into_the_pickle():
    array = np.arange(float(LARGE))
    segments = dumps({"a": array})
    assert isinstance(segments, list)
    assert any(np.shares_memory(np.frombuffer(s, np.uint8), array) for s in segments if isinstance(s, memoryview))
    assert sum(len(s) for s in segments) < array.nbytes + 500


def test_the_limit_between_in_and_beside_the_pickle_is_in_bytes():
    assert isinstance(dumps(np.zeros(OUT_OF_BAND_BYTES - 1, np.uint8)), bytes)
    assert isinstance(dumps(np.zeros(OUT_OF_BAND_BYTES, np.uint8)), list)


def test_loaded_arrays_are_aligned_views_of_the_payload():
    value = [np.arange(float(LARGE + n)) for n in range(3)]
    payload = join(dumps(value))
    whole = np.frombuffer(payload, np.uint8)
    start = whole.__array_interface__["data"][0]
    for before, after in zip(value, loads(payload), strict=True):
        np.testing.assert_array_equal(before, after)
        assert np.shares_memory(after, whole)
        assert (after.__array_interface__["data"][0] - start) % ALIGNMENT == 0


@pytest.mark.parametrize(
    ("make", "writable"),
    [
        (bytearray, True),
        (lambda p: memoryview(bytearray(p)), True),
        (bytes, False),
        (lambda p: memoryview(bytes(p)), False),
    ],
)
def test_arrays_can_be_written_to_where_the_payload_can(make, writable):
    payload = make(join(dumps(np.zeros(LARGE))))
    assert loads(payload).flags.writeable is writable


def test_an_array_that_was_read_only_stays_so():
    array = np.zeros(LARGE)
    array.flags.writeable = False
    assert not loads(join(dumps(array))).flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4.0 * LARGE)[::2],
        np.arange(4.0 * LARGE)[::-1],
        np.asfortranarray(np.arange(4.0 * LARGE).reshape(2, -1)),
        np.arange(4.0 * LARGE).reshape(4, -1).T,
        np.zeros((0, LARGE)),
        np.array(["a", None] * LARGE, object),
        np.zeros(LARGE, "M8[s]"),
    ],
)
def test_arrays_of_every_layout_come_back(array):
    back = loads(join(dumps(array)))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(
    st.lists(
        numpy_strategies.arrays(
            st.sampled_from(["u1", "f4", "<i8", ">f8"]), st.integers(0, 2 * OUT_OF_BAND_BYTES), fill=st.just(1)
        ),
        max_size=4,
    )
)
def test_any_list_of_arrays_comes_back(arrays):
    back = loads(join(dumps(arrays)))
    assert [a.dtype for a in back] == [a.dtype for a in arrays]
    for before, after in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(before, after)


def test_what_cannot_be_pickled_is_a_value_error_that_names_its_type():
    with pytest.raises(ValueError, match="`function` cannot be pickled"):
        dumps(lambda: None)
    with pytest.raises(ValueError, match=r"`Strided` cannot be pickled: .*contiguous"):
        dumps(Strided())


def test_a_payload_cut_anywhere_is_a_value_error():
    for wire in (join(dumps([1, "two", {"three": 4.0}])), join(dumps([np.zeros(LARGE), np.ones(LARGE + 1)]))):
        for cut in range(len(wire)):
            with pytest.raises(ValueError, match=r"payload|unpickled"):
                loads(wire[:cut])


def test_a_payload_that_goes_on_is_a_value_error():
    with pytest.raises(ValueError, match="has extra bytes after its last buffer"):
        loads(join(dumps(np.zeros(LARGE))) + b"\0")


@pytest.mark.parametrize("first", [0, 2, 0x7F, 0xFF])
def test_a_payload_that_is_no_pickle_is_a_value_error(first):
    with pytest.raises(ValueError, match="not a pickle in Penstock's format"):
        loads(bytes([first]) * 100)


def test_a_claim_of_many_buffers_is_a_value_error():
    with pytest.raises(ValueError, match="ends inside its pickle"):
        loads(b"\x01\0\0\0" + b"\xff" * 100)


def test_what_raises_while_it_is_unpickled_is_a_value_error_with_its_cause():
    with pytest.raises(ValueError, match="cannot be unpickled: ZeroDivisionError") as caught:
        loads(dumps(Explosive()))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# -- what is no Exception ---------------------------------------------------------------------------------------------


class Raises:
    """Raises `error` when it is pickled."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


def raise_here(kind, *arguments):
    raise kind(*arguments)


class Calls:
    """Calls `raise_here` when it is unpickled."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return raise_here, self.arguments


class Mute(Exception):
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError, BaseException])
def test_whatever_user_code_raises_is_a_value_error(kind):
    with pytest.raises(ValueError, match=r"^`Raises` cannot be pickled: out$") as caught:
        dumps(Raises(kind("out")))
    assert type(caught.value.__cause__) is kind
    with pytest.raises(ValueError, match=f"^cannot be unpickled: {kind.__name__}: out$"):
        loads(dumps(Calls(kind, "out")))


def test_an_error_whose_message_cannot_be_made_is_one_too():
    words = "<its message cannot be made: SystemExit>"
    with pytest.raises(ValueError, match=f"^`Raises` cannot be pickled: {words}$"):
        dumps(Raises(Mute()))
    with pytest.raises(ValueError, match=f"^cannot be unpickled: Mute: {words}$"):
        loads(dumps(Calls(Mute)))


class Interrupted(Exception):
    def __str__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted])
def test_an_interrupt_is_the_users_and_passes(error):
    with pytest.raises(KeyboardInterrupt):
        dumps(Raises(error()))
    with pytest.raises(KeyboardInterrupt):
        loads(dumps(Calls(error)))
