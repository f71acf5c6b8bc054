"""What the process that reloads does with its children, which are none: the test says what becomes of each."""

import logging
import math
import os
import signal

import pytest

from penstock.cli import reload
from penstock.cli.python_files import Found
from penstock.cli.reload import SERVE, TRIED_WELL, TRY
from penstock.cli.reloading import AT_ONCE_SECONDS, QUIET_SECONDS
from penstock.cli.watched import GATHER_MILLISECONDS
from penstock.hosting.notifying import NoObserver

SERVES_ON = "keeping the previous version"
WAITS = "waiting for a change; requests are queued until then"


class Child:
    """A child; `told` are the signals that it was sent, and "kill" and "give up"."""

    def __init__(self, what, words, folder, sockets, on_end, *, output):
        self.what, self.words, self.folder, self.sockets, self.output = what, words, folder, sockets, output
        self.ends = on_end
        self.told = []

    def send(self, number):
        self.told.append(number)

    def kill(self):
        self.told.append("kill")

    def give_up(self):
        self.told.append("give up")

    def show(self, say):
        say("what the trial wrote", logging.WARNING)


class Driven:
    """A run whose children, lines and changes are the test's."""

    def __init__(self, folder, children):
        self.folder = folder
        self.file = folder / "model.py"
        self.children, self.said = children, []
        self.run = reload._Run(["serve", "model.py"], ["a socket"], folder, self._say, NoObserver())
        self.run._changed(Found([], []))

    def _say(self, words, level=logging.INFO):
        self.said.append((level, words))

    def edit(self, *names):
        """Change files, and wait until they are looked at."""
        self.run._changed(Found([self.folder / name for name in names or ["model.py"]], []))
        self.later(10.0)

    def later(self, seconds):
        self.run._do(self.run._core.at(self.run._now() + seconds))

    def lines(self, level):
        return [words for its_level, words in self.said if its_level == level]


@pytest.fixture
async def driven(tmp_path, monkeypatch):
    children = []

    def make(*arguments, **more):
        children.append(Child(*arguments, **more))
        return children[-1]

    monkeypatch.setattr(reload, "_Child", make)
    return Driven(tmp_path, children)


async def test_a_change_is_imported_beside_the_service_and_served_once_that_has_ended(driven):
    (service,) = driven.children
    assert (service.what, service.folder, service.sockets) == (SERVE, driven.folder, ["a socket"])
    driven.edit()
    _, trial = driven.children
    assert (trial.what, trial.sockets, trial.output) == (TRY, (), bytearray())
    assert trial.words == service.words == ["serve", "model.py"]
    assert service.told == []
    trial.ends(TRIED_WELL)
    assert service.told == [signal.SIGTERM]
    assert len(driven.children) == 2
    service.ends(0)
    _, _, new = driven.children
    assert (new.what, new.sockets, new.told) == (SERVE, ["a socket"], [])
    assert driven.lines(logging.WARNING) == driven.lines(logging.ERROR) == []


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (1, []),
        (0, ["the process exited during import: exit status 0"]),
        (-signal.SIGABRT, ["the process exited during import: signal SIGABRT"]),
    ],
)
async def test_what_is_wrong_with_a_change_is_a_warning_and_the_old_service_serves_on(driven, status, more):
    driven.edit()
    service, trial = driven.children
    trial.ends(status)
    assert driven.lines(logging.WARNING) == ["what the trial wrote", *more, SERVES_ON]
    assert (service.told, len(driven.children)) == ([], 2)


async def test_a_change_beside_a_trial_gives_it_up_for_another(driven):
    driven.edit()
    driven.edit()
    service, first, second = driven.children
    assert (first.what, first.told, second.what, second.told) == (TRY, ["give up"], TRY, [])
    second.ends(TRIED_WELL)
    assert service.told == [signal.SIGTERM]


async def test_an_import_that_hangs_is_given_up_and_told(driven):
    driven.edit()
    driven.later(1000.0)
    assert driven.children[1].told == ["give up"]
    assert driven.lines(logging.WARNING) == ["the import did not finish within 60 s; keeping the previous version"]


async def test_a_service_that_ends_by_itself_is_an_error_and_started_anew_by_a_change(driven):
    driven.children[0].ends(1)
    assert driven.lines(logging.ERROR) == [f"the service exited: exit status 1; {WAITS}"]
    driven.edit()
    assert [child.what for child in driven.children] == [SERVE, SERVE]


async def test_a_service_that_ends_beside_a_trial_is_started_as_it_is_now(driven):
    driven.edit()
    driven.children[0].ends(-signal.SIGKILL)
    words = "the service exited: signal SIGKILL; restarting it"
    assert driven.lines(logging.ERROR) == [words]
    assert [child.what for child in driven.children] == [SERVE, TRY, SERVE]
    assert driven.children[1].told == ["give up"]


async def test_a_file_saved_as_it_is_changes_nothing_unless_it_comes_after_the_end_of_a_service(driven):
    driven.file.touch()
    said = driven.said[:]
    driven.run._changed(Found([], [driven.file]))  # as where a module writes what it generates at each import
    driven.later(10.0)
    assert (len(driven.children), driven.said) == (1, said)
    driven.children[0].ends(1)
    os.utime(driven.file, (0, driven.run._ended_at - 1))  # the service has written it itself
    driven.run._changed(Found([], [driven.file, driven.folder / "gone.py"]))
    driven.later(10.0)
    assert len(driven.children) == 1
    os.utime(driven.file, (0, driven.run._ended_at + 1))
    driven.run._changed(Found([], [driven.file]))
    driven.later(10.0)
    assert [child.what for child in driven.children] == [SERVE, SERVE]
    assert driven.said[-1] == (logging.INFO, "changed: model.py")


async def test_a_child_that_cannot_be_started_is_told_and_waits_for_the_next_change(driven, monkeypatch):
    def fail(*_arguments, **_more):
        raise OSError(11, "Resource temporarily unavailable")

    make = reload._Child
    monkeypatch.setattr(reload, "_Child", fail)
    driven.edit()
    assert driven.lines(logging.WARNING) == ["cannot load the change: Resource temporarily unavailable"]
    driven.children[0].ends(1)
    driven.edit()
    words = f"cannot start the service: Resource temporarily unavailable; {WAITS}"
    assert driven.lines(logging.ERROR)[1:] == [words]
    monkeypatch.setattr(reload, "_Child", make)
    driven.edit()
    assert [child.what for child in driven.children] == [SERVE, SERVE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_a_signal_is_passed_on_and_the_service_gives_the_status(driven, number):
    driven.run._signalled(number)
    assert driven.children[0].told == [number]
    assert not driven.run._over.is_set()
    driven.children[0].ends(0)
    assert driven.run._over.is_set()
    assert (driven.run._status, len(driven.children)) == (0, 1)


async def test_a_second_signal_is_passed_on_too_and_what_stands_still_is_killed(driven):
    driven.run._signalled(signal.SIGINT)
    driven.run._signalled(signal.SIGINT)
    assert driven.children[0].told == [signal.SIGINT, signal.SIGINT]
    driven.later(AT_ONCE_SECONDS)
    assert driven.children[0].told[2:] == ["kill"]
    assert driven.lines(logging.WARNING) == ["the service did not exit in time: killing it"]
    driven.children[0].ends(-signal.SIGKILL)
    assert driven.run._status == 128 + signal.SIGKILL


async def test_a_signal_while_the_old_service_ends_is_not_its_second(driven):
    driven.edit()
    service, trial = driven.children
    trial.ends(TRIED_WELL)
    driven.run._signalled(signal.SIGINT)
    assert service.told == [signal.SIGTERM]
    service.ends(0)
    assert (driven.run._over.is_set(), len(driven.children)) == (True, 2)


async def test_a_signal_ends_what_waits_for_a_change(driven):
    driven.children[0].ends(1)
    driven.run._signalled(signal.SIGTERM)
    assert driven.run._over.is_set()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
async def test_other_signals_reach_the_service_and_end_nothing(driven, number):
    driven.run._signalled(number)
    assert driven.children[0].told == [number]
    driven.children[0].ends(1)
    driven.run._signalled(number)  # there is nobody to pass it on to
    assert not driven.run._over.is_set()


async def test_a_name_that_is_not_of_one_line_or_not_utf_8_breaks_no_line(driven):
    driven.edit("two\nlines\x1b.py", os.fsdecode(b"\xff.py"))
    assert driven.said[-1] == (logging.INFO, "changed: two\\nlines\\x1b.py, \\udcff.py")


async def test_what_is_looked_at_together_is_named_in_one_line(driven):
    def change(*names):
        driven.run._changed(Found([driven.folder / name for name in names], []))

    driven.said.clear()
    change("c.py", "d.py")
    change("a.py")
    change("b.py", "a.py")
    assert driven.said == []
    driven.later(math.inf)
    assert driven.said == [(logging.INFO, "changed: a.py, b.py, c.py and 1 more")]
    change("b.py")  # beside the trial, which is given up
    driven.later(math.inf)
    assert driven.said[1:] == [(logging.INFO, "changed: b.py")]


def test_changes_that_go_on_are_told_before_they_count_as_over():
    assert 2 * GATHER_MILLISECONDS / 1000 <= QUIET_SECONDS
