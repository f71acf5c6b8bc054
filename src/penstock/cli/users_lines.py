"""Write what the user's modules log and print in the process of `penstock serve` as it is written in the workers.

They are imported there too, and stages of a service with `inline=True` run there.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from penstock.config import ServerOptions, read_log_levels
from penstock.hosting.handing_over import HandingOver
from penstock.hosting.logs import TEXT, JsonLines, StageLines, lines_to, printed_line, set_levels
from penstock.hosting.untaken_records import UntakenRecords
from penstock.worker.current_call import current_marks


@contextlib.contextmanager
def users_lines_written(options: ServerOptions, lines: HandingOver) -> Iterator[None]:
    """While it lasts, no line of the user's is lost or looks unlike the log's; `lines` has the printed ones."""
    root = logging.getLogger()
    before = root.level
    formatter = JsonLines() if options.log_format == "json" else StageLines(TEXT)
    untaken = UntakenRecords(lines_to(sys.stderr, formatter), current_marks)
    set_levels(read_log_levels(options.log_level))
    untaken.begin()
    if options.log_format == "json":
        lines.write_objects(lambda stream, words: printed_line(stream, words, current_marks()))
    try:
        yield
    finally:
        untaken.end()
        root.setLevel(before)
