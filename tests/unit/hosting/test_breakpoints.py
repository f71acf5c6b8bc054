"""`breakpoint()` where nobody can type."""

from __future__ import annotations

import sys

import pytest

from penstock.hosting.breakpoints import refuse_breakpoints


@pytest.fixture(autouse=True)
def of_python(monkeypatch):
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)


def test_a_breakpoint_says_where_it_would_stop():
    refuse_breakpoints()
    with pytest.raises(
        RuntimeError,
        match=(
            r"the standard input of this process is "
            r"empty.*inline=True.*PYTHONBREAKPOINT"
        ),
    ):
        breakpoint(header="x")  # noqa: T100


@pytest.mark.parametrize("value", ["0", "remote_pdb.set_trace"])
def test_a_debugger_that_the_variable_names_stands(monkeypatch, value):
    monkeypatch.setenv("PYTHONBREAKPOINT", value)
    refuse_breakpoints()
    assert sys.breakpointhook is sys.__breakpointhook__


def test_a_debugger_that_is_there_already_stands(monkeypatch):
    theirs = lambda: None  # noqa: E731
    monkeypatch.setattr(sys, "breakpointhook", theirs)
    refuse_breakpoints()
    assert sys.breakpointhook is theirs
