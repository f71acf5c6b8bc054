"""Logging in a worker process: which lines of the stage are written, how they look, and what they are marked with.

The worker writes its lines itself, on its standard error, through the thread of `HandingOver`: nothing of them passes
the channel to the coordinator.  Nothing here is done for a worker that is a thread: it logs as its program does.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.config import LogOptions
from penstock.hosting.guarded_log import enable_loggers
from penstock.hosting.handing_over import HandingOver
from penstock.hosting.logs import object_line, set_levels
from penstock.hosting.users_lines import take_users_lines
from penstock.log_level_text import ALL_LOGGERS, read_log_levels
from penstock.transport.messages import Launch
from penstock.worker.current_call import current_requests


class StageLogs:
    """The logging of this process, from its launch order on; a worker from outside has it before there is one.

    `name` is for lines about the worker itself: which worker of which stage it is.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._writes_objects = False
        self._levels: dict[str, int] = {}
        self._marks: dict[str, Any] = {}

    def begin(self, lines: HandingOver, launch: Launch) -> None:
        """Write as the launch order says, through `lines`; called before any user code runs."""
        self.mark(launch.service, launch.stage, launch.index)
        self.take(lines, launch.logs)

    def mark(self, service: str, stage: str, worker: int) -> None:
        """Have the lines tell from now on that they are of worker `worker` of that stage."""
        self._marks = {"service": service, "stage": stage, "worker": worker}

    def take(self, lines: HandingOver, options: LogOptions) -> None:
        """Write as `options` say, through `lines`; called before any user code runs."""
        self._writes_objects = options.format == "json"
        self._levels = read_log_levels(options.level)
        take_users_lines(options, lines, self._mark)

    def loaded(self) -> None:
        """Insist on the levels of loggers that were named, after user code has run.

        `logging.config.dictConfig` silences every logger that is there and that it does not name.  Those that the
        operator names are there from the beginning, and so are Penstock's.  The level for all stays what the
        user has made of it.
        """
        named = {name: level for name, level in self._levels.items() if name != ALL_LOGGERS}
        set_levels(named)
        for name in named:
            logging.getLogger(name).disabled = False
        enable_loggers()

    def dropped_notice(self, count: int) -> str:
        """The line which tells that `count` lines are missing."""
        return self.line(
            f"{count} log lines were dropped: the reader of the output is too slow, or they could not be written"
        )

    def line(self, words: str) -> str:
        """A line about the worker, to be written as it is."""
        if not self._writes_objects:
            return f"penstock: {self._name}: {words}"
        return object_line("penstock.worker", "WARNING", words, self._marks)

    def _mark(self) -> dict[str, Any]:
        return {**self._marks, "request_ids": current_requests()}
