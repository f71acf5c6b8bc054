"""Standard streams that take nothing cost what was written to them, and nothing else."""

from __future__ import annotations

import io
import sys

import pytest

from penstock.hosting.stdio import LossyStream, is_terminal, write_stderr_line


class Refusing(io.StringIO):
    """A stream whose every call raises."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def _raise(self, *_):
        raise self.error

    write = flush = isatty = _raise


ERRORS = [OSError(5, "Input/output error"), ValueError("closed"), RuntimeError("the user's")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_line_that_stderr_does_not_take_is_lost(monkeypatch, error):
    monkeypatch.setattr(sys, "stderr", Refusing(error))
    write_stderr_line("lost")
    assert not is_terminal(sys.stderr)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_stream_loses_what_the_one_below_refuses(error):
    below = Refusing(error)
    stream = LossyStream(below)
    assert stream.write("lost") == 4
    stream.flush()


def test_a_stream_hands_on_what_the_one_below_takes_and_is_else_as_that_one():
    below = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=False)
    stream = LossyStream(below)
    stream.write("é")
    stream.flush()
    assert below.buffer.getvalue() == b"\xe9"
    assert (stream.encoding, stream.isatty()) == ("latin-1", False)
    stream.write("имя")  # which this encoding has not
    stream.write("e")
    stream.flush()
    assert below.buffer.getvalue() == b"\xe9e"
