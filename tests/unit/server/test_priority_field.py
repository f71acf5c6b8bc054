"""What a `Priority` field says, and that what is not valid says nothing."""

from __future__ import annotations

from penstock.server import request_terms
from penstock.server.priority_field import MAX_FIELD_BYTES, urgency_of
from penstock.server.request_terms import LONGEST_REMEMBERED_BYTES, MOST_REMEMBERED, read_urgency
from rows import each


@each("urgency", range(8))
def test_every_urgency_can_be_said(urgency):
    assert urgency_of(b"u=%d" % urgency) == urgency


VALID = {
    b"": 3,
    b"   ": 3,
    b"i": 3,
    b"u=1, i": 1,
    b"i,u=5": 5,
    b"u=1, u=6": 6,
    b"u=1,\t u=2 \t,i=?0": 2,
    b"  u=4  ": 4,
    b"u=1 \t": 1,
    b"u=07": 7,
    b"u=-0": 0,
    b'u=2;why="so";x=1.5;y, *=(a "b";c 1 :aGk=: ?1);z': 2,
    b'x="\\"\\\\", u=1': 1,
    b'x=" !~[]", u=1': 1,
    b"x=*a, y=Ab!#, u=1": 1,
    b"x=:aB9+/==:, y=::, u=1": 1,
    b"x=@1659578233, u=1": 1,
    b'x=%"f%c3%bc%e2%82%ac%f0%9f%98%80", u=1': 1,
    b'x=%" !~%09%df%bf%e0%a0%80%ed%9f%bf%ef%bf%bf%f0%90%80%80%f3%80%80%80%f4%8f%bf%bf", u=1': 1,
    b"a-b_c.d*=tok/en:1, u=1": 1,
    b"x=(), u=1": 1,
    b"x=(  ), u=1": 1,
    b"x=( a  b ), u=1": 1,
    b"x=123456789012345, u=1": 1,
    b"x=-123456789012.123, u=1": 1,
    b"x;  y;z=1, u=1": 1,
}
IGNORED = [
    b"u", b"u=?1", b"u=8", b"u=-1", b"u=1.0", b'u="1"', b"u=a", b"u=(1)", b"u=:MQ==:", b"u=@1", b"u=1, u=9",
    b"u=1, u", b"u=999999999999999",
]  # fmt: skip
WRONG = [
    b"u=1,", b",u=1", b"u=1,,i", b"u=1 i", b"U=1", b"u =1", b"u= 1", b"u=", b"u=1;", b"u=1 ;a", b"u=1;A", b"=1",
    b"u=1, x=1.", b"u=1, x=1.1234", b"u=1, x=1234567890123456", b"u=1, x=1234567890123.1", b'u=1, x="', b'u=1, x="\\a"',
    b'u=1, x="\x7f"', b'u=1, x="\xc3\xbc"', b"u=1, x=:a", b"u=1, x=:-:", b"u=1, x=?2", b"u=1, x=(a", b"u=1, x=(a,b)",
    b'u=1, x=("a""b")', b"u=1, x=@1.5", b'u=1, x=%"%C3%BC"', b'u=1, x=%"%c3"', b'u=1, x=%"%ed%a0%80"',
    b'u=1, x=%"%c0%80"', b'u=1, x=%"%f5%80%80%80"', b"u=1, x=--1", b"u=1, x=-", b"u=1, 1=x", b"\tu=1",
    b"u=1\n", b"u=1\x00", b"\xff", b"u=1.", b"u=1, x={}", b"u=1, _x", b"u=1, xA", b"u=1;\ta",
    *(b'u=1, x=%"' + text + b'"' for text in (b"%c3%7f", b"%c3%c0", b"%c3%bC", b"%80", b'"')),
    *(b'u=1, x=%"' + text + b'"' for text in (b"%e0%80%80", b"%f0%80%80%80", b"%f4%90%80%80")),
]  # fmt: skip


@each(("field", "urgency"), VALID.items())
def test_a_valid_field_says_its_urgency_whatever_else_it_says(field, urgency):
    assert urgency_of(field) == urgency


@each("field", IGNORED)
def test_what_is_no_whole_number_from_0_to_7_is_ignored(field):
    assert urgency_of(field) == 3


@each("field", WRONG)
def test_a_field_that_is_not_valid_as_a_whole_is_ignored(field):
    assert urgency_of(field) == 3


def test_a_field_of_the_greatest_length_is_read_and_a_longer_one_is_not():
    field = b"u=1, x=" + b"a" * (MAX_FIELD_BYTES - 7)
    assert urgency_of(field) == 1
    assert urgency_of(field + b"a") == 3


@each("piece", [b"(" * 9, b'"', b"u;", b"u,", b"a ", b"x=(a ", b'%"%c3', b"1", b"\\", b";a=1", b":", b" "])
@each("head", [b"", b"u=", b'x="', b"x=(", b"x;"])
def test_a_long_field_is_read_however_often_it_seems_to_begin_anew(head, piece):
    # An expression that tried again what it has tried would not come to an end.
    assert urgency_of((head + piece * MAX_FIELD_BYTES)[:MAX_FIELD_BYTES]) == 3


def test_what_was_read_is_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(request_terms, "_urgencies", {})
    for n in range(2 * MOST_REMEMBERED):
        assert read_urgency(b"u=2;n=%d" % n) == 2
        assert read_urgency(b"u=2;n=%d" % n) == 2
        assert len(request_terms._urgencies) <= MOST_REMEMBERED
    long = b"u=2" + b" " * LONGEST_REMEMBERED_BYTES
    assert read_urgency(long) == 2
    assert long not in request_terms._urgencies
