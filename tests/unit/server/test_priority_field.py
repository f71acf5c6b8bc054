"""What a `Priority` field says, and that what is not valid says nothing."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

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
    b"x=@1659578233, u=1": 1,
    b'x=%"f%c3%bc%e2%82%ac%f0%9f%98%80", u=1': 1,
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
    b"u=1\n", b"u=1\x00", b"\xff", b"u=1.", b"u=1, x={}",
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


class Reader:
    """The algorithms of RFC 9651, section 4.2, step by step: what the expression is compared with."""

    def __init__(self, text):
        self.text = text

    def take(self, count=1):
        if len(self.text) < count:
            raise ValueError("ends too soon")
        found, self.text = self.text[:count], self.text[count:]
        return found

    def skip(self, characters):
        self.text = self.text.lstrip(characters)

    def run(self, characters):
        """All that comes and is of `characters`."""
        count = next((n for n, c in enumerate(self.text) if c not in characters), len(self.text))
        return self.take(count)

    def need(self, character):
        if self.take() != character:
            raise ValueError(f"no {character}")

    def dictionary(self):
        found = {}
        self.skip(" ")
        while self.text:
            key = self.key()
            found[key] = True
            if self.text[:1] == "=":
                self.take()
                found[key] = self.inner_list() if self.text[:1] == "(" else self.bare()
            self.parameters()
            self.skip(" \t")
            if not self.text:
                return found
            self.need(",")
            self.skip(" \t")
            if not self.text:
                raise ValueError("a comma at the end")
        return found

    def key(self):
        if not (self.text[:1].islower() or self.text[:1] == "*") or not self.text[:1].isascii():
            raise ValueError("no key")
        return self.run("abcdefghijklmnopqrstuvwxyz0123456789_-.*")

    def parameters(self):
        while self.text[:1] == ";":
            self.take()
            self.skip(" ")
            self.key()
            if self.text[:1] == "=":
                self.take()
                self.bare()

    def inner_list(self):
        self.need("(")
        while True:
            self.skip(" ")
            if self.text[:1] == ")":
                self.take()
                return []
            self.bare()
            self.parameters()
            if self.text[:1] not in (" ", ")"):
                raise ValueError("no end")

    def bare(self):
        first = self.text[:1]
        if first == "-" or first in tuple("0123456789"):
            return self.number()
        if first == '"':
            return self.string()
        if first == "*" or (first.isascii() and first.isalpha()):
            return ("token", self.run(TOKEN))
        readers = {":": self.bytes, "?": self.boolean, "@": self.date, "%": self.displayed}
        if first not in readers:
            raise ValueError("no item")
        return readers[first]()

    def number(self):
        sign = self.take() if self.text[:1] == "-" else ""
        digits = self.run("0123456789")
        if not digits:
            raise ValueError("no digits")
        if self.text[:1] != ".":
            if len(digits) > 15:
                raise ValueError("too long")
            return int(sign + digits)
        self.take()
        fraction = self.run("0123456789")
        if len(digits) > 12 or not 1 <= len(fraction) <= 3:
            raise ValueError("not a decimal")
        return float(f"{sign}{digits}.{fraction}")

    def string(self):
        self.need('"')
        while (character := self.take()) != '"':
            if (character == "\\" and self.take() not in '"\\') or not " " <= character <= "~":
                raise ValueError("not in a string")
        return "string"

    def bytes(self):
        self.need(":")
        self.run("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=")
        self.need(":")
        return b""

    def boolean(self):
        self.need("?")
        return {"0": False, "1": True}[self.take()]

    def date(self):
        self.need("@")
        if isinstance(self.number(), float):
            raise ValueError("a date is whole")
        return "date"

    def displayed(self):
        self.need("%")
        self.need('"')
        found = b""
        while (character := self.take()) != '"':
            if character == "%":
                digits = self.take(2)
                if digits.strip("0123456789abcdef"):
                    raise ValueError("not hexadecimal")
                found += bytes.fromhex(digits)
            elif " " <= character <= "~":
                found += character.encode()
            else:
                raise ValueError("not displayed")
        found.decode()
        return "text"


TOKEN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~:/"


def by_the_book(field):
    try:
        said = Reader(field.decode("latin-1")).dictionary().get("u")
    except (ValueError, KeyError):
        return 3
    return said if type(said) is int and 0 <= said <= 7 else 3


PIECES = st.sampled_from(
    ["u", "=", "1", "7", "9", "u=1", "u=2", ",", ", ", " ", "\t", ";", "a", "(", ")", '"', "\\", ":", "?", "?1", "@",
     "%", '%"', "%c3%bc", "%e2%82", "%80", ".", "-", "1.5", "*", "123456789012345", "x=", "i"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join).map(str.encode) | st.binary(max_size=20))
@example(b"u=1 \t")
def test_any_field_says_what_the_algorithms_of_the_standard_say(field):
    assert urgency_of(field) == by_the_book(field)


@each("piece", [b"(" * 9, b'"', b"u;", b"u,", b"a ", b"x=(a ", b'%"%c3', b"1", b"\\", b";a=1", b":", b" "])
@each("head", [b"", b"u=", b'x="', b"x=(", b"x;"])
def test_a_long_field_is_read_however_often_it_seems_to_begin_anew(head, piece):
    # An expression that tried again what it has tried would not come to an end.
    field = (head + piece * MAX_FIELD_BYTES)[:MAX_FIELD_BYTES]
    assert urgency_of(field) == by_the_book(field)


def test_what_was_read_is_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(request_terms, "_urgencies", {})
    for n in range(2 * MOST_REMEMBERED):
        assert read_urgency(b"u=2;n=%d" % n) == 2
        assert read_urgency(b"u=2;n=%d" % n) == 2
        assert len(request_terms._urgencies) <= MOST_REMEMBERED
    long = b"u=2" + b" " * LONGEST_REMEMBERED_BYTES
    assert read_urgency(long) == 2
    assert long not in request_terms._urgencies
