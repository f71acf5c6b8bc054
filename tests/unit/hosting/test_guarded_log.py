"""A log handler that raises costs its line, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.hosting.guarded_log import guarded_logger


class Raises(logging.Handler):
    """A handler, or a filter, whose place is away."""

    def emit(self, record: logging.LogRecord) -> None:
        raise LookupError("the collector is away")

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("the filter is away")


@pytest.fixture
def logger():
    logger = guarded_logger("penstock.test_guarded_log")
    yield logger
    logger.handlers.clear()
    logger.filters.clear()


@pytest.mark.parametrize("where", ["emit", "filter of the handler", "filter of the logger"])
def test_what_a_handler_or_a_filter_raises_is_told_and_not_raised(logger, capsys, where):
    handler = logging.NullHandler()
    if where == "emit":
        handler = Raises()
        handler.filter = lambda record: True
    logger.addHandler(handler)
    if where == "filter of the handler":
        handler.handle = Raises().handle
    elif where == "filter of the logger":
        logger.addFilter(Raises())
    logger.error("%d lines", 7)
    told = capsys.readouterr().err
    assert "is away" in told
    assert "Message: '%d lines'\nArguments: (7,)\n" in told


def test_it_is_told_nowhere_where_standard_error_is_closed_or_errors_are_not_to_be_told(logger, capsys, monkeypatch):
    logger.addHandler(Raises())
    with monkeypatch.context() as quiet:
        quiet.setattr("logging.raiseExceptions", False)
        logger.error("once")
    assert capsys.readouterr().err == ""
    with Path("/dev/null").open("w") as closed:
        monkeypatch.setattr("sys.stderr", closed)
    logger.error("twice")


def test_lines_are_logged_as_ever_and_the_logger_is_the_one_of_its_name(logger, caplog):
    assert guarded_logger(logger.name) is logger is logging.getLogger(logger.name)
    logger.warning("%d lines", 7)
    (record,) = caplog.records
    assert (record.getMessage(), record.funcName) == (
        "7 lines",
        "test_lines_are_logged_as_ever_and_the_logger_is_the_one_of_its_name",
    )
    logger.disabled = True
    logger.warning("none")
    logger.disabled = False
    assert len(caplog.records) == 1
