"""The old batching protocol: whole, in pieces, broken, and no larger in memory than what came."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.transport import ventu_
from penstock.transport.external_messages import read_external_failure
from penstock.transport.framing import FrameDecoder, Kind, Status, encode_batch
from penstock.transport.ventu_ import (
    FIRST_CLAIM,
    ID_BYTES,
    NO_REASON,
    NO_RESULT,
    REASON_BYTES,
    VentuExchange,
)
from rows import each

MOST = 1 << 20
HELLO = bytes(4)
PACK = msgspec.msgpack.encode
OK, INVALID, FAILED, EXPIRED = map(int, list(Status)[:4])


def batch(payloads, frame_id=7, sent=100.0, remaining=None):
    n = len(payloads)
    columns = (range(50, 50 + n), payloads, list(map(len, payloads)), remaining or [10.0] * n, [1] * n, [1] * n)
    [frame] = FrameDecoder().feed(b"".join(encode_batch(frame_id, sent, *columns)))
    return frame


def message(value):
    packed = value if isinstance(value, bytes) else PACK(value)
    return len(packed).to_bytes(4, "big") + packed


def items_of(sent):
    """The map in a message to the worker; its length is right."""
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    return msgspec.msgpack.decode(bytes(sent[4:]))


def feed(exchange, data):
    """What `data` completes, read into the exchange's own buffers as an event loop does."""
    frames = []
    while data:
        buffer = exchange.get_buffer()
        n = min(len(buffer), len(data))
        buffer[:n] = data[:n]
        buffer.release()
        data = data[n:]
        frames += exchange.advance(n)
    return frames


def greeted():
    exchange = VentuExchange(pid=12)
    [hello] = feed(exchange, HELLO)
    exchange.bound(max_body=MOST, max_items=1)
    return exchange, hello


def asked(payloads, **options):
    """An exchange whose worker has a batch of `payloads`, and the ids of that."""
    exchange, _ = greeted()
    exchange.put(batch(payloads, **options))
    sent = items_of(exchange.take(now=100.0))
    assert list(sent.values()) == payloads
    return exchange, list(sent)


def answer(payloads, make, **options):
    """The ANSWERS frame where the worker answers with what `make` gives for the ids."""
    exchange, ids = asked(payloads, **options)
    [frame] = feed(exchange, message(make(ids)))
    exchange.end()
    return frame


def told(frame, place):
    return read_external_failure(frame.payloads[place]).message


# -- the handshake ----------------------------------------------------------------------------------------------------


def test_the_first_message_is_empty_and_becomes_a_hello():
    _, hello = greeted()
    said = json.loads(bytes(hello.payloads[0]))
    assert hello.kind is Kind.HELLO
    assert said["version"] == 4
    assert said["pid"] == 12
    assert said["stage"] is None
    assert said["health"] is False
    assert said["codecs"] == ["json", "msgpack", "raw", "npy"]


def test_a_first_message_that_is_not_empty_is_refused_before_it_has_come():
    with pytest.raises(ProtocolError, match="first message of a worker of the old batching protocol is empty"):
        feed(VentuExchange(pid=0), b"\x00\x00\x00\x01")


@pytest.mark.parametrize("more", [HELLO, b"\x00", message({})])
def test_a_worker_says_nothing_before_it_has_a_batch(more):
    exchange, _ = greeted()
    with pytest.raises(ProtocolError, match="without having a batch"):
        feed(exchange, more)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_map_of_ids_of_36_characters_to_bytes_in_the_order_of_the_items():
    exchange, ids = asked([b"one", b"", b"three"])
    assert [len(each) for each in ids] == [ID_BYTES] * 3
    feed(exchange, message(dict.fromkeys(ids, b"x")))
    exchange.put(batch([b"four"]))
    assert not set(items_of(exchange.take(now=100.0))) & set(ids)  # no id is used twice


def test_results_are_bytes_or_text_and_come_back_in_order():
    frame = answer([b"a", b"b", b"c"], lambda ids: {ids[2]: b"C", ids[0]: b"", ids[1]: "\N{SNOWMAN}"})
    assert frame.kind is Kind.ANSWERS
    assert frame.frame_id == 7
    assert frame.ids == (50, 51, 52)
    assert frame.calls == 1
    assert frame.statuses == (OK, OK, OK)
    assert list(map(bytes, frame.payloads)) == [b"", "\N{SNOWMAN}".encode(), b"C"]


@each("size", [31, 32, 255, 256, 65535, 65536, FIRST_CLAIM + 1, 500_000])
@each("kind", [bytes, str])
def test_results_of_every_size_are_read(size, kind):
    value = b"x" * size if kind is bytes else "x" * size
    frame = answer([b"a", b"b"], lambda ids: dict.fromkeys(ids, value))
    assert [bytes(payload) == b"x" * size for payload in frame.payloads] == [True, True]


def test_a_batch_of_more_than_65535_items_is_carried():
    n = 70_000
    exchange, ids = asked([b"x"] * n)
    exchange.bound(max_body=100 * n, max_items=n)
    [frame] = feed(exchange, message(dict.fromkeys(ids, b"1")))
    assert frame.statuses == (OK,) * n


def test_the_next_batch_is_sent_when_the_first_is_answered():
    exchange, ids = asked([b"a"])
    exchange.put(batch([b"b"], frame_id=8))
    assert exchange.take(now=100.0) is None
    feed(exchange, message({ids[0]: b"A"}))
    assert not exchange.idle
    [second] = items_of(exchange.take(now=100.0))
    assert not exchange.idle
    [frame] = feed(exchange, message({second: b"B"}))
    assert frame.frame_id == 8
    assert exchange.idle
    assert exchange.take(now=100.0) is None


# -- expired ----------------------------------------------------------------------------------------------------------


def test_items_whose_deadline_has_passed_are_left_out_and_expired():
    exchange, _ = greeted()
    exchange.put(batch([b"a", b"b", b"c"], sent=100.0, remaining=[1.0, 2.0, 3.0]))
    sent = items_of(exchange.take(now=102.0))
    assert list(sent.values()) == [b"c"]
    [frame] = feed(exchange, message(dict.fromkeys(sent, b"C")))
    assert frame.statuses == (EXPIRED, EXPIRED, OK)
    assert list(map(bytes, frame.payloads)) == [b"", b"", b"C"]


def test_an_item_runs_until_its_deadline_and_not_at_it():
    exchange, _ = greeted()
    exchange.put(batch([b"a"], sent=100.0, remaining=[1.0]))
    assert items_of(exchange.take(now=100.999))
    exchange, _ = greeted()
    exchange.put(batch([b"a"], sent=100.0, remaining=[1.0]))
    assert exchange.take(now=101.0).statuses == (EXPIRED,)


def test_a_batch_that_has_expired_is_answered_and_not_sent():
    exchange, _ = greeted()
    exchange.put(batch([b"a", b"b"], remaining=[0.0, 0.0]))
    frame = exchange.take(now=100.0)
    assert frame.kind is Kind.ANSWERS
    assert frame.ids == (50, 51)
    assert frame.statuses == (EXPIRED, EXPIRED)
    assert frame.calls == 0
    assert exchange.idle


def test_what_expires_while_the_batch_before_it_runs_is_left_out():
    exchange, ids = asked([b"a"])
    exchange.put(batch([b"b", b"c"], remaining=[1.0, 9.0]))
    feed(exchange, message({ids[0]: b"A"}))
    assert list(items_of(exchange.take(now=105.0)).values()) == [b"c"]


def test_a_batch_that_the_worker_could_not_read_fails(monkeypatch):
    monkeypatch.setattr(ventu_, "LONGEST_BATCH", 1000)
    exchange, _ = greeted()
    exchange.put(batch([b"a" * 900, b"b" * 50, b"late"], remaining=[9.0, 9.0, 0.0]))
    frame = exchange.take(now=100.0)
    assert frame.statuses == (FAILED, FAILED, EXPIRED)
    assert "too large for the old batching protocol" in told(frame, 0)
    exchange.put(batch([b"a" * 900]))
    assert len(exchange.take(now=100.0)) < 1000


# -- items that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failed",
    [
        lambda ids: {"error_ids": ids[1] + ids[3]},
        lambda ids: {"error_id": [ids[1], ids[3]]},
        lambda ids: {"error_ids": ids[1], "error_id": [ids[3]]},
        lambda ids: {"error_ids": (ids[1] + ids[3]).encode()},
    ],
)
def test_items_that_are_not_valid_fail_with_the_workers_message_and_their_mates_are_unharmed(failed):
    results = ["A", '[{"msg": "no"}]', b"C", b"worse"]
    frame = answer([b"a", b"b", b"c", b"d"], lambda ids: {**dict(zip(ids, results, strict=True)), **failed(ids)})
    assert frame.statuses == (OK, INVALID, OK, INVALID)
    assert (told(frame, 1), told(frame, 3)) == ('[{"msg": "no"}]', "worse")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("wrong", "wrong"),
        (b"wrong", "wrong"),
        (PACK("a text"), "a text"),
        (PACK([{"loc": ["x"], "msg": "not an int"}]), '[{"loc":["x"],"msg":"not an int"}]'),
        (PACK({(1, 2): 3}), r"\x81\x92\x01\x02\x03"),  # JSON has no such key
        (b"\xff\xfe", r"\xff\xfe"),
        (b"", ""),
        (b"\xa1\xff", r"\xa1\xff"),
        (b"\x91" * 5000, None),
        (b"\x90" * (1 << 17), None),  # too long to be opened
    ],
)
def test_the_workers_message_is_told_as_text(said, text):
    frame = answer([b"a"], lambda ids: {ids[0]: said, "error_ids": ids[0]})
    assert frame.statuses == (INVALID,)
    assert len(told(frame, 0).encode()) <= REASON_BYTES
    assert text is None or told(frame, 0) == text


def test_the_workers_message_is_cut_to_1_kib():
    frame = answer([b"a"], lambda ids: {ids[0]: "begin" + "\N{SNOWMAN}" * 100_000 + "end", "error_id": ids})
    assert REASON_BYTES - 8 <= len(told(frame, 0).encode()) <= REASON_BYTES == 1024
    assert told(frame, 0).startswith("begin")
    assert told(frame, 0).endswith("end")


def test_an_item_that_failed_without_a_message_says_so():
    frame = answer([b"a"], lambda ids: {"error_ids": ids[0]})
    assert (frame.statuses, told(frame, 0)) == ((INVALID,), NO_REASON)


def test_an_id_that_is_missing_from_the_answer_is_a_failure_of_the_stage():
    frame = answer([b"a", b"b"], lambda ids: {ids[0]: b"A"})
    assert frame.statuses == (OK, FAILED)
    assert told(frame, 1) == NO_RESULT
    assert answer([b"a", b"b"], lambda ids: {}).statuses == (FAILED, FAILED)


# -- answers that are none --------------------------------------------------------------------------------------------


@each(
    ("make", "reason"),
    [
        (lambda ids: b"", "not a map"),
        (lambda ids: [1, 2], "not a map"),
        (lambda ids: 5, "not a map"),
        (lambda ids: None, "not a map"),
        (lambda ids: b"\xdf\xff\xff\xff\xff", "4294967295 entries for 2 items"),
        (lambda ids: b"\xde\xff\xff", "65535 entries for 2 items"),
        (lambda ids: {str(i): b"" for i in range(5)}, "5 entries for 2 items"),
        (lambda ids: {ids[0]: b"", "another": b""}, "an unknown id"),
        (lambda ids: {"error_ids": "x" * 36}, "an unknown id"),
        (lambda ids: {"error_ids": b"\xff" * 36}, "an unknown id"),
        (lambda ids: {"error_id": ["x"]}, "an unknown id"),
        (lambda ids: {"error_ids": ids[0] + "x"}, "error_ids has 37 bytes"),
        (lambda ids: {"error_ids": ids[0] * 3}, "error_ids has 108 bytes; expected at most 2 ids of 36 bytes each"),
        (lambda ids: {"error_ids": ids}, "a value that is neither bytes nor text"),
        (lambda ids: {"error_id": ids[0]}, "error_id is not a list"),
        (lambda ids: {"error_id": [ids[0]] * 3}, "error_id is not a list of at most 2 ids"),
        (lambda ids: {"error_id": [1]}, "error_id is not a list of ids"),
        (lambda ids: b"\x81\xa8error_id\xdd\xff\xff\xff\xff", "truncated"),
        (lambda ids: b"\x81\xa8error_id\x91\xa1\xff", "error_id is not a list of ids"),
        (lambda ids: {ids[0]: 5}, "a value that is neither bytes nor text"),
        (lambda ids: {ids[0]: None}, "a value that is neither bytes nor text"),
        (lambda ids: {ids[0]: {}}, "a value that is neither bytes nor text"),
        (lambda ids: {1: b""}, "cannot be decoded"),
        (lambda ids: {b"x" * 36: b""}, "cannot be decoded"),
        (lambda ids: b"\x82" + 2 * (PACK(ids[0]) + PACK(b"")), "an id twice"),
        (lambda ids: PACK({ids[0]: b""}) + b"\x00", "trailing"),
        (lambda ids: b"\x81\xa1x" + b"\x91" * 100_000, "cannot be decoded"),
        (lambda ids: b"\x81\xa1\xff\xa0", "cannot be decoded"),
        (lambda ids: b"\x81\xc1", "cannot be decoded"),
        (lambda ids: b"\x81\xa1x\xc6\xff\xff\xff\xff", "truncated"),
    ],
)
def test_an_answer_that_is_none_is_refused_with_a_reason(make, reason):
    exchange, ids = asked([b"a", b"b"])
    with pytest.raises(ProtocolError, match=reason):
        feed(exchange, message(make(ids)))


def test_more_than_one_message_for_a_batch_is_refused():
    exchange, ids = asked([b"a"])
    with pytest.raises(ProtocolError, match="more than one message for one batch"):
        feed(exchange, message({ids[0]: b"A"}) + b"\x00")


def test_a_length_that_is_too_large_is_refused_when_it_is_read():
    exchange, _ = asked([b"a"])
    with pytest.raises(ProtocolError, match="announces 1048577 bytes; the limit is 1048576"):
        feed(exchange, (MOST + 1).to_bytes(4, "big"))


def test_the_end_inside_a_message_is_told():
    exchange, ids = asked([b"a"])
    exchange.end()
    feed(exchange, message({ids[0]: b"A"})[:-1])
    with pytest.raises(ProtocolError, match="ended inside a message"):
        exchange.end()


# -- pieces and memory ------------------------------------------------------------------------------------------------


def test_an_answer_survives_being_cut_anywhere():
    payloads = [b"a", b"b"]
    for cut in range(200):
        exchange, ids = asked(payloads)
        wire = message({ids[0]: b"A", ids[1]: "no", "error_ids": ids[1]})
        frames = feed(exchange, wire[:cut]) + feed(exchange, wire[cut:])
        assert [frame.statuses for frame in frames] == [(OK, INVALID)]
        exchange.end()
    assert len(wire) < 200  # so it was cut everywhere


def test_the_handshake_survives_being_cut_anywhere():
    for cut in range(5):
        exchange = VentuExchange(pid=1)
        assert len(feed(exchange, HELLO[:cut]) + feed(exchange, HELLO[cut:])) == 1


def test_a_large_answer_comes_byte_by_byte_and_in_pieces():
    value = bytes(range(256)) * 1200
    for step in (1000, FIRST_CLAIM, 1 << 20):
        exchange, ids = asked([b"a"])
        wire = message({ids[0]: value})
        frames = [frame for i in range(0, len(wire), step) for frame in feed(exchange, wire[i : i + step])]
        assert [bytes(frame.payloads[0]) == value for frame in frames] == [True]


def test_a_claim_takes_no_memory_before_its_bytes_come():
    exchange, _ = greeted()
    exchange.bound(max_body=1 << 30, max_items=1)
    exchange.put(batch([b"a"]))
    exchange.take(now=100.0)
    tracemalloc.start()
    try:
        feed(exchange, (1 << 30).to_bytes(4, "big") + bytes(3 * FIRST_CLAIM))
        assert tracemalloc.get_traced_memory()[1] < 16 * FIRST_CLAIM
    finally:
        tracemalloc.stop()


def test_a_map_that_claims_many_entries_takes_no_memory():
    exchange, _ = asked([b"a"])
    wire = message(b"\xdf\x00\x03\x00\x00" + PACK("x") * 400_000)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            feed(exchange, wire)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(wire)
    finally:
        tracemalloc.stop()


def test_a_small_answer_does_not_keep_the_buffer_alive():
    frame = answer([b"a"], lambda ids: {ids[0]: b"A"})
    assert len(frame.payloads[0].obj) < 100


def entries(ids):
    """Maps that are nearly an answer to `ids`."""
    keys = st.sampled_from([*ids, "error_ids", "error_id", "x"])
    leaves = st.one_of(
        st.binary(max_size=40), st.text(max_size=40), st.none(), st.lists(st.sampled_from(ids)), st.sampled_from(ids)
    )
    return st.dictionaries(keys, leaves)


@given(st.data())
def test_whatever_comes_is_read_whole_or_refused(data):
    payloads = [b"a", b"b", b"c"]
    exchange, ids = asked(payloads)
    wire = bytearray(message(data.draw(entries(ids))))
    for place in data.draw(st.lists(st.integers(0, len(wire) - 1), max_size=3)):
        wire[place] = data.draw(st.integers(0, 255))
    wire += data.draw(st.binary(max_size=3))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=3)))
    frames = []
    with suppress(ProtocolError):
        for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            frames += feed(exchange, bytes(wire[begin:end]))
        exchange.end()
    assert len(frames) <= 1
    for frame in frames:
        assert frame.ids == (50, 51, 52)
        assert len(frame.payloads) == len(frame.statuses) == 3
        for place, status in enumerate(frame.statuses):
            if status != OK:
                assert len(told(frame, place).encode()) <= REASON_BYTES


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_garbage_is_refused_or_waits_for_more(pieces):
    exchange, _ = asked([b"a"])
    with suppress(ProtocolError):
        for piece in pieces:
            assert len(feed(exchange, piece)) <= 1
    exchange = VentuExchange(pid=0)
    with suppress(ProtocolError):
        for piece in pieces:
            assert len(feed(exchange, piece)) <= 1
