"""An error as text: bounded, in UTF-8, and made of whatever a user may raise."""

from __future__ import annotations

import sys
import traceback
import tracemalloc
from typing import Any

import numpy as np
import pytest

from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps, loads
from penstock.errors import ArtifactInvalid, ConfigError, InvalidItem, PenstockError
from penstock.graphs.runtimes import open_graph
from penstock.transport.messages import MAX_NAMES, MESSAGE_BYTES, NAME_BYTES, TRACEBACK_BYTES
from penstock.worker.loading import reference
from penstock.worker.problems import (
    MAX_NOTES,
    describe_error,
    describe_invalid,
    note_single_item,
)

MIB = 1024 * 1024


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return describe_error(caught)


@pytest.mark.parametrize(("length", "whole"), [(MESSAGE_BYTES, True), (MESSAGE_BYTES + 1, False)])
def test_a_message_of_eight_kibibytes_is_sent_whole_and_a_longer_one_without_its_middle(length, whole):
    problem = raised(ValueError("x" * length))
    assert (problem.message == "x" * length) == whole
    assert len(problem.message) <= MESSAGE_BYTES
    assert (f"[... cut: {length} characters in all ...]" in problem.message) != whole
    assert problem.message in problem.traceback


@pytest.mark.parametrize("length", [MESSAGE_BYTES, MESSAGE_BYTES + 1])
@pytest.mark.parametrize("field", ["message", "path"])
def test_the_reason_and_the_path_of_an_invalid_item_are_cut_as_a_message_is(field, length):
    text = "€" * (length // 3) + "x" * (length % 3)
    found = getattr(describe_invalid(InvalidItem(text) if field == "message" else InvalidItem("no", path=text)), field)
    assert len(found.encode()) <= MESSAGE_BYTES
    assert (found == text) == (length == MESSAGE_BYTES)


def test_a_traceback_is_what_python_writes_where_it_is_short_enough():
    def chained():
        try:
            raise KeyError("inner")
        except KeyError as inner:
            inner.add_note("look here")
            raise ExceptionGroup("many", [ValueError(1), OSError("disk")]) from inner

    with pytest.raises(ExceptionGroup) as caught:
        chained()
    expected = "".join(traceback.format_exception(caught.value))
    assert describe_error(caught.value).traceback == expected


@pytest.mark.parametrize("broken", ["def f(:", "x = 'abc", "1 +", "\n\n   a = 1\n b"])
def test_the_line_that_does_not_parse_is_shown(broken):
    with pytest.raises(SyntaxError) as caught:
        compile(broken, "model.py", "exec")
    expected = "".join(traceback.format_exception(caught.value))
    assert describe_error(caught.value).traceback == expected


def nested(depth):
    error = ValueError("x" * MIB)
    for _ in range(depth):
        try:
            raise ValueError("y" * MIB) from error
        except ValueError as outer:
            error = outer
    return error


def with_notes(*notes):
    error = ValueError("bad")
    for note in notes:
        error.add_note(note)
    return error


def a_long_line():
    try:
        compile("+".join(["a"] * MIB) + " ]", "typed", "eval")
    except SyntaxError as error:
        return error


def deep(n):
    if n:
        shallow(n - 1)
    raise ValueError("at the bottom")


def shallow(n):
    deep(n)


def far_down():
    try:
        deep(400)
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "make",
    [
        lambda: nested(20),
        lambda: with_notes("n" * 20 * MIB),
        lambda: with_notes("\n" * 20 * MIB),
        lambda: with_notes(*["n" * 1000] * 10_000),
        lambda: ExceptionGroup("g" * MIB, [nested(2)] * 30),
        a_long_line,
        far_down,
    ],
    ids=["causes", "note", "note of lines", "notes", "group", "syntax", "frames"],
)
def test_nothing_that_goes_into_a_traceback_makes_it_longer_than_its_limit(make):
    problem = describe_error(make())
    assert len(problem.traceback.encode()) <= TRACEBACK_BYTES
    assert len(problem.message.encode()) <= MESSAGE_BYTES


def test_notes_beyond_the_limit_are_left_out_and_the_traceback_says_so():
    whole = describe_error(with_notes(*map(str, range(MAX_NOTES))))
    assert "cut" not in whole.traceback
    cut = describe_error(with_notes(*map(str, range(MAX_NOTES + 1))))
    assert cut.traceback == whole.traceback + f"[... cut: {MAX_NOTES + 1} notes in all ...]\n"


def test_a_huge_message_is_not_copied():
    error = ValueError("x" * (50 * MIB))
    describe_error(error)
    tracemalloc.start()
    try:
        describe_error(error)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * MIB


def users_reader(payload):
    return loads(payload)


class ReadsItself:
    def __reduce__(self):
        return users_reader, (b"",)


def test_a_traceback_begins_at_the_users_code_and_then_shows_every_frame():
    with pytest.raises(ValueError, match="the payload is empty, not a pickle") as caught:
        loads(dumps(ReadsItself()))
    trace = describe_error(caught.value.__cause__).traceback
    assert trace.splitlines()[1].endswith(", in users_reader")
    assert 'penstock/codec/pickle_.py"' in trace


def without_the_tests_frame(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return caught.value.with_traceback(caught.value.__traceback__.tb_next.tb_next)


def test_where_no_frame_is_the_users_an_error_of_ours_has_none_and_any_other_all_of_them():
    mistake = without_the_tests_frame(lambda: loads(b""), ValueError)
    assert describe_error(mistake).traceback.splitlines()[1].endswith(", in loads")
    refusal = without_the_tests_frame(lambda: reference(lambda: 1), ConfigError)
    assert describe_error(refusal).traceback == f"penstock.errors.ConfigError: {refusal}\n"


def test_why_a_library_cannot_open_a_graph_is_a_sentence_without_the_frames_of_the_library():
    invalid = without_the_tests_frame(lambda: open_graph("onnx", b"no graph", inputs=(), outputs=()), ArtifactInvalid)
    assert invalid.__cause__ is not None
    assert describe_error(invalid).traceback == f"penstock.errors.ArtifactInvalid: {invalid}\n"


def test_a_library_that_is_missing_is_a_sentence(monkeypatch):
    monkeypatch.delitem(sys.modules, "penstock.graphs.onnx_graph", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    missing = without_the_tests_frame(lambda: open_graph("onnx", b"no graph", inputs=(), outputs=()), ConfigError)
    assert describe_error(missing).traceback == f"penstock.errors.ConfigError: {missing}\n"


def test_code_of_the_users_that_opens_an_artifact_is_shown_with_what_the_library_raised():
    with pytest.raises(ArtifactInvalid) as caught:
        open_graph("onnx", b"no graph", inputs=(), outputs=())
    trace = describe_error(caught.value).traceback
    assert f'"{__file__}"' in trace
    assert "The above exception was the direct cause" in trace


class Broken:
    def __reduce__(self):
        raise LookupError("of the user")


def test_what_the_users_code_raised_while_its_result_was_encoded_is_shown():
    failed = without_the_tests_frame(lambda: ItemEncoder(Any).encode(Codec.PICKLE, Broken()), EncodeFailed)
    trace = describe_error(failed).traceback
    assert ", in __reduce__" in trace
    assert "LookupError: of the user" in trace


def place_of(value, codec=Codec.JSON, declared=Any, **options):
    """What is told of the place of a result that cannot be encoded."""
    encoder = ItemEncoder(declared, **options)
    return describe_error(without_the_tests_frame(lambda: encoder.encode(codec, value), EncodeFailed)).raised_at


def test_of_a_result_that_cannot_be_encoded_the_place_is_its_type_or_where_in_the_result_it_is():
    nan = float("nan")
    assert place_of({"a": [1.0, {"b": nan}]}) == place_of({"a": [1.0, 2.0, 3.0, {"b": nan}]}) == "$.a[].b"
    assert place_of({"b": nan}) == "$.b"
    assert place_of([object()]) == place_of({"x": object()}) == "builtins.object"
    assert place_of(3 + 4j, Codec.MSGPACK) == "builtins.complex"
    assert place_of((n for n in range(3)), Codec.PICKLE) == "generator"
    assert place_of("text", Codec.RAW) == "str"
    assert place_of([1, 2, "3"], declared=list[int], validate=True) == "$[]"
    nested = []
    nested.append(nested)
    assert place_of(nested) == ""
    line = Broken.__reduce__.__code__.co_firstlineno + 1
    assert place_of(Broken(), Codec.PICKLE) == f"builtins.LookupError at {__file__}:{line}"


def test_errors_of_ours_that_are_each_others_context_have_an_end():
    one, other = PenstockError("one"), PenstockError("other")
    one.__context__, other.__context__ = other, one
    assert "penstock.errors.PenstockError: one" in describe_error(one).traceback


def test_the_raising_line_is_that_of_the_innermost_frame():
    line = deep.__code__.co_firstlineno + 3
    assert describe_error(far_down()).raised_at == f"{__file__}:{line}"
    assert describe_error(ValueError("returned, and never raised")).raised_at == ""


def test_names_are_bounded_and_keep_their_ends():
    base = ValueError
    for n in range(100):
        base = type("Kind" * 1000 if n == 50 else f"Kind{n}", (base,), {})
    problem = raised(base("x"))
    assert len(problem.mro) == MAX_NAMES
    assert all(len(name) <= NAME_BYTES for name in (problem.type_name, *problem.mro))
    assert (problem.mro[0], problem.mro[-4:]) == (
        f"{__name__}.Kind99",
        ("builtins.ValueError", "builtins.Exception", "builtins.BaseException", "builtins.object"),
    )
    assert len(raised(type("K" * 10**6, (ValueError,), {})("x")).type_name) <= NAME_BYTES


class Nameless(type):
    def __getattribute__(cls, name):
        if name in {"__qualname__", "__module__", "__name__"}:
            raise RuntimeError
        return super().__getattribute__(name)


class Text(str):
    __slots__ = ()

    def __len__(self):
        raise RuntimeError

    def encode(self, *args):
        raise RuntimeError


class Hostile(Exception, metaclass=Nameless):
    def __str__(self):
        raise SystemExit

    def __getattribute__(self, name):
        if name in {"__notes__", "__traceback__"}:
            return super().__getattribute__(name)
        raise RuntimeError


class Odd(Exception):
    __notes__ = 7


class Curt(Exception):
    def __str__(self):
        return Text("curt")


class Closed(InvalidItem):
    def __init__(self):
        pass

    @property
    def reason(self):
        raise SystemExit

    path = reason


@pytest.mark.parametrize(
    "make", [lambda: Hostile(), lambda: Odd("x"), Curt, lambda: Odd(Hostile()), lambda: with_notes("\ud800")]
)
def test_whatever_is_raised_is_described(make):
    problem = raised(make())
    for text in (problem.type_name, problem.message, problem.traceback, *problem.mro):
        assert text
        text.encode()


def test_notes_of_another_kind_are_written_as_one():
    assert raised(Odd()).traceback.endswith("7\n")


def test_an_invalid_item_whose_reason_cannot_be_read_is_described():
    problem = describe_invalid(Closed())
    assert problem.message == "<reason that cannot be read: SystemExit>"
    assert problem.path == "<path that cannot be read: SystemExit>"


class Renamed(type):
    @property
    def __mro__(cls):
        raise SystemExit


class Untraceable(Exception, metaclass=Renamed):
    """Whoever walks this traceback walks for ever."""

    @property
    def __traceback__(self):
        return self

    @property
    def tb_next(self):
        return self

    @property
    def __class__(self):
        raise ConnectionError("it cannot be loaded")


def test_only_what_python_keeps_of_an_error_is_walked():
    problem = raised(Untraceable("out"))
    assert problem.message == "out"
    assert problem.raised_at.startswith(__file__)
    assert problem.mro[0].endswith("Untraceable")
    assert problem.mro[-1] == "builtins.object"


# -- one item that was read as a list ---------------------------------------------------------------------------------


def note_of(function, value):
    """The notes of the error that `function` raises for `value`, which it raises twice."""
    for _ in range(2):
        try:
            function(value)
        except Exception as caught:
            error = caught
            note_single_item(error, value)
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (list, 1.0),
        (len, 1.0),
        (lambda xs: xs[0], 1),
        (lambda xs: list(np.asarray(xs)), 1.0),
        (lambda xs: len(np.asarray(xs)), 1.0),
    ],
)
def test_an_item_that_was_read_as_a_list_is_noted(function, value):
    assert note_of(function, value) == ["this stage has no batch policy, so predict receives one item"]


KEPT = TypeError("'int' object is not iterable")


def raise_kept(_):
    raise KEPT


def test_an_error_that_is_raised_again_has_the_note_once():
    assert len(note_of(raise_kept, 1)) == 1


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda x: x + "a", 1),
        (lambda x: list(5), "a"),
        (lambda x: list(x[0]), [1]),
        (float, "a"),
        (lambda x: x.lower(), 1),
    ],
)
def test_another_error_is_not_noted(function, value):
    assert note_of(function, value) == []
