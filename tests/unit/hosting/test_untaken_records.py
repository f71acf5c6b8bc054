"""Which log records Penstock writes, and which it leaves to the user's handlers."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings

import pytest

from penstock.hosting.untaken_records import UntakenRecords, is_taken


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture
def root():
    """The root of loggers that the program of the tests knows nothing of, and puts no handlers on."""
    root = logging.RootLogger(logging.INFO)
    root.manager = logging.Manager(root)
    return root


@pytest.fixture
def logger(root):
    """A logger of a user, two below the root."""
    root.manager.getLogger("my")
    return root.manager.getLogger("my.model")


@contextlib.contextmanager
def begun():
    kept = Kept()
    untaken = UntakenRecords(kept, lambda: {"stage": "M", "worker": 0})
    untaken.begin()
    try:
        yield kept
    finally:
        untaken.end()


@pytest.fixture
def ours():
    with begun() as kept:
        yield kept


def test_what_nobody_takes_is_ours_with_its_marks(logger, ours):
    logger.info("loaded %d", 3)
    assert ours.messages == ["loaded 3"]
    assert (ours.records[0].stage, ours.records[0].worker) == ("M", 0)


def test_a_mark_that_the_user_gives_is_the_users(logger, ours):
    logger.info("x", extra={"stage": "of a rocket"})
    assert (ours.records[0].stage, ours.records[0].worker) == ("of a rocket", 0)


@pytest.mark.parametrize("place", ["logger", "parent", "root"])
def test_what_a_handler_of_the_user_takes_is_not_ours_and_is_marked(logger, root, ours, place):
    theirs = Kept()
    {"logger": logger, "parent": logger.parent, "root": root}[place].addHandler(theirs)
    logger.info("x")
    assert (theirs.messages, ours.messages) == (["x"], [])
    assert theirs.records[0].stage == "M"


def test_what_is_not_passed_on_is_not_taken_above(logger, root, ours):
    theirs = Kept()
    root.addHandler(theirs)
    logger.parent.propagate = False
    logger.info("x")
    assert (theirs.messages, ours.messages) == ([], ["x"])


def test_a_library_that_says_nothing_by_itself_is_read_all_the_same(logger, ours):
    logger.addHandler(logging.NullHandler())
    logger.info("x")
    assert ours.messages == ["x"]


def test_a_level_that_the_users_handler_refuses_is_not_ours_either(logger, root, ours):
    theirs = Kept()
    theirs.setLevel(logging.ERROR)
    logger.addHandler(theirs)
    logger.info("x")
    assert (theirs.messages, ours.messages) == ([], [])


def test_a_warning_is_a_record(root, monkeypatch):
    with monkeypatch.context() as patch, begun() as ours:
        patch.setattr(logging, "getLogger", root.manager.getLogger)
        warnings.showwarning("old", FutureWarning, "a.py", 7)
    (record,) = ours.records
    assert (record.name, record.levelno, record.stage) == ("py.warnings", logging.WARNING, "M")
    assert record.getMessage() == "a.py:7: FutureWarning: old"


def test_a_warning_for_a_file_goes_there(monkeypatch):
    file = io.StringIO()
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda *arguments: shown.append(arguments))
    with begun() as ours:
        warnings.showwarning("old", FutureWarning, "a.py", 7, file)
    assert shown == [("old", FutureWarning, "a.py", 7, file, None)]
    assert not ours.records


def test_at_the_end_everything_is_as_before(logger):
    before = logging.Logger.callHandlers, warnings.showwarning
    kept = Kept()
    untaken = UntakenRecords(kept, dict)
    untaken.begin()
    untaken.end()
    assert (logging.Logger.callHandlers, warnings.showwarning) == before
    assert not is_taken(logger)


def test_who_came_after_us_stays(monkeypatch):
    monkeypatch.setattr(logging.Logger, "callHandlers", logging.Logger.callHandlers)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    untaken = UntakenRecords(Kept(), dict)
    untaken.begin()
    theirs = lambda *args: None  # noqa: E731
    logging.Logger.callHandlers = warnings.showwarning = theirs
    untaken.end()
    assert logging.Logger.callHandlers is warnings.showwarning is theirs


def test_loggers_that_pass_are_as_without_us():
    log = logging.getLogger("tests.passing")
    taken = Kept()
    log.addHandler(taken)
    untaken = UntakenRecords(Kept(), lambda: pytest.fail("nobody asks for marks"), ["tests.passing"])
    untaken.begin()
    try:
        log.warning("once")
    finally:
        untaken.end()
        log.removeHandler(taken)
    assert taken.messages == ["once"]
    assert log.callHandlers.__func__ is logging.Logger.callHandlers
