from __future__ import annotations

import os

import pytest

from penstock.graphs.native_stderr import without_lines


def test_lines_with_the_parts_are_left_out_and_all_others_written(capfd):
    with without_lines([b"noise", b"chatter"]):
        os.write(2, b"first\nsome noise\nsecond\nchatter\n")
        assert capfd.readouterr().err == ""
    os.write(2, b"third\n")
    assert capfd.readouterr().err == "first\nsecond\nthird\n"


def test_what_was_written_before_an_error_is_written(capfd):
    def fail():
        with without_lines([b"noise"]):
            os.write(2, b"noise\nwhy\n")
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert capfd.readouterr().err == "why\n"


def test_a_process_without_stderr_is_left_alone(capfd):
    kept = os.dup(2)
    os.close(2)
    try:
        with without_lines([b"noise"]), pytest.raises(OSError, match="Bad file descriptor"):
            os.write(2, b"lost\n")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
