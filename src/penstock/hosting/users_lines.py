"""Write what the user's code logs and prints as the log is written.

That code runs in workers, and in the process that serves: modules are imported there too, and the stages of a service
with `inline=True` run there.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.config import LogOptions
from penstock.hosting.handing_over import HandingOver
from penstock.hosting.logs import TEXT, JsonLines, StageLines, lines_to, object_line, set_levels
from penstock.hosting.untaken_records import UntakenRecords
from penstock.log_level_text import ACCESS_LOGGER, read_log_levels


def take_users_lines(
    options: LogOptions,
    lines: HandingOver,
    marks: Callable[[], Mapping[str, Any]],
    passing: Sequence[str] = (),
) -> UntakenRecords:
    """Lose no line of the user's from now on, and have none look unlike the log's; what is returned ends the records.

    `lines` has what is printed.  `marks` is called in the thread that logs or prints, and tells where a line is from.
    `passing` are loggers whose records have a handler and are nobody's.
    """
    objects = options.format == "json"
    untaken = UntakenRecords(lines_to(sys.stderr, JsonLines() if objects else StageLines(TEXT)), marks, passing)
    set_levels(read_log_levels(options.level))
    untaken.begin()
    if objects:
        lines.write_objects(lambda stream, words, found: object_line(f"sys.{stream}", stream, words, found), marks)
    return untaken


@contextlib.contextmanager
def users_lines_taken(
    options: LogOptions, lines: HandingOver, marks: Callable[[], Mapping[str, Any]]
) -> Iterator[None]:
    """Do so inside; afterwards records, and the level of the root logger, are as before."""
    root = logging.getLogger()
    before = root.level
    # A line of the access log is the server's own, and to look at it costs 2 % of a request.
    untaken = take_users_lines(options, lines, marks, passing=[ACCESS_LOGGER])
    try:
        yield
    finally:
        untaken.end()
        root.setLevel(before)
