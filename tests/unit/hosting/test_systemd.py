"""What the variables of systemd say to this process, and that no other one gets them."""

from __future__ import annotations

import os

import pytest

from penstock.errors import ConfigError
from penstock.hosting.systemd import VARIABLES, GivenBySystemd, GivenDescriptor, take_variables

OURS = 4711


@pytest.fixture
def kept_open(monkeypatch):
    """The descriptors that what is started does not inherit."""
    found = []
    monkeypatch.setattr(os, "set_inheritable", lambda number, inheritable: found.append((number, inheritable)))
    return found


def given(**variables):
    return GivenBySystemd(variables, OURS)


def test_what_is_started_later_has_none_of_the_variables(kept_open):
    environ = dict.fromkeys(VARIABLES, "1") | {"HOME": "/"}
    take_variables(environ, OURS)
    assert environ == {"HOME": "/"}
    assert kept_open == []  # they are for process 1


def test_what_is_started_later_has_none_of_the_descriptors(kept_open):
    take_variables({"LISTEN_FDS": "2", "LISTEN_PID": "4711"}, OURS)
    assert kept_open == [(3, False), (4, False)]


def test_a_descriptor_that_is_not_open_is_no_fault_until_it_is_wanted(monkeypatch):
    def refuse(_number, _inheritable):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "set_inheritable", refuse)
    assert len(take_variables({"LISTEN_FDS": "2", "LISTEN_PID": "4711"}, OURS).descriptors()) == 2
    assert take_variables({"LISTEN_FDS": "two", "LISTEN_PID": "4711"}, OURS).for_another == ""


def test_without_variables_nothing_is_given():
    nothing = given()
    assert nothing.notify_address == ""
    assert nothing.watchdog_seconds is None
    assert nothing.descriptors() == []
    assert nothing.for_another == ""


def test_descriptors_have_the_names_of_their_units():
    found = given(LISTEN_FDS="3", LISTEN_PID="4711", LISTEN_FDNAMES="http:").descriptors()
    assert found == [GivenDescriptor(3, "http"), GivenDescriptor(4, ""), GivenDescriptor(5, "")]
    assert [str(each) for each in found[:2]] == ["descriptor 3 of LISTEN_FDS ('http')", "descriptor 4 of LISTEN_FDS"]


@pytest.mark.parametrize("pid", ["1", "", "04711", "x"])
def test_descriptors_of_another_process_are_left_alone_and_that_is_said(pid):
    theirs = given(LISTEN_FDS="1", LISTEN_PID=pid)
    assert theirs.descriptors() == []
    assert f"LISTEN_PID is {pid!r}, but this is process 4711" in theirs.for_another
    assert given(LISTEN_FDS="1", LISTEN_PID="4711").for_another == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("two", "LISTEN_FDS must be a number, got 'two'"),
        ("-1", "LISTEN_FDS must be a number"),
        ("٣", "LISTEN_FDS must be a number"),
        ("9" * 5000, "LISTEN_FDS must be a number"),
        ("999999999999", "LISTEN_FDS is 999999999999, but a process has at most"),
    ],
)
def test_a_number_of_descriptors_that_cannot_be_is_an_error(text, words):
    with pytest.raises(ConfigError, match=words):
        given(LISTEN_FDS=text, LISTEN_PID="4711").descriptors()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "1500000"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "4711"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_PID": "4711"}, None),
        ({"WATCHDOG_USEC": "18446744073709551615"}, None),
    ],
)
def test_a_watchdog_waits_for_the_process_that_it_names(variables, seconds):
    assert given(**variables).watchdog_seconds == seconds


@pytest.mark.parametrize("text", ["0", "soon", "-5", "1.5"])
def test_a_watchdog_that_nobody_can_serve_is_an_error(text):
    with pytest.raises(ConfigError, match="WATCHDOG_USEC"):
        assert given(WATCHDOG_USEC=text).watchdog_seconds
