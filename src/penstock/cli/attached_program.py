"""The process of `penstock worker run`: pins itself, logs, takes signals, imports the stage, and attaches it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from time import monotonic

from penstock.cli.find_service import find_stage, running_user_code
from penstock.cli.user_errors import UserCodeFailed
from penstock.codec.text import cut_middle
from penstock.config import LogOptions
from penstock.errors import PenstockError
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.handing_over import HandingOver, begin_handing_over
from penstock.hosting.signals import Deliveries
from penstock.hosting.thread_stacks import STACKS_BYTES, stacks_of_threads
from penstock.runtime.affinity import allowed_cores, check_cores, pin
from penstock.runtime.spec import stage
from penstock.worker.attached import FAILED, AttachedWorker
from penstock.worker.attached_signals import AttachedSignals
from penstock.worker.attachment import Attachment
from penstock.worker.leaving import Leaving
from penstock.worker.stage_logs import StageLogs

log = guarded_logger("penstock.worker")


def run_attached(name: str, attachment: Attachment, cores: Sequence[int], options: LogOptions) -> int:
    """Be a worker of the stage that `name` says, on `cores` if there are any; the exit status.

    Raises:
        ConfigError: there is no such stage or core, or the stage does not take its setup.
        UserCodeFailed: the module of the stage raised an error.
        PenstockError: the server's socket cannot be used.
    """
    if cores:
        check_cores("--cpus", cores, allowed_cores())
        pin(cores)
    logs = StageLogs(f"worker {name}")
    # No gathering: what a stage prints is most wanted when its worker crashes right after.
    lines = begin_handing_over(logs.dropped_notice, gather=0.0)
    try:
        logs.take(lines, options)
        return _AttachedProgram(name, attachment, logs, lines).run()
    except (PenstockError, UserCodeFailed) as error:
        if options.format == "text":
            raise
        # Every line must be JSON.
        traceback = {"traceback": error.traceback.rstrip()} if isinstance(error, UserCodeFailed) else {}
        log.error("%s", error, extra=traceback)  # noqa: TRY400  # the field has the frames that are the user's
        return FAILED
    finally:
        lines.end(last=True)


class _AttachedProgram:
    """The worker, and what signals ask of it."""

    def __init__(self, name: str, attachment: Attachment, logs: StageLogs, lines: HandingOver) -> None:
        self._name = name
        self._attachment = attachment
        self._logs = logs
        self._lines = lines
        self._leaving = Leaving()
        self._deliveries = Deliveries()

    def run(self) -> int:
        AttachedSignals(self._told).take()
        target = find_stage(self._name)
        with running_user_code(f"{self._name}.declare", "it is called"):
            # All that can be said of the stage without a server, said before one waits for it.
            stage(target, setup=self._attachment.setup)
        self._logs.loaded()
        worker = AttachedWorker(
            target,
            self._attachment,
            self._leaving,
            on_launch=self._logs.mark,
            on_loaded=self._logs.loaded,
            end_process=self._end,
        )
        return worker.run()

    def _told(self, number: int) -> None:
        if not self._deliveries.counts(number, monotonic()):
            return
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            log.info("%s: the threads of this worker:\n%s", name, cut_middle(stacks_of_threads(), STACKS_BYTES))
            return
        again = self._leaving.asked
        if not self._leaving.ask():
            log.info("%s: shutting down, completing the current batches; a second signal forces exit", name)
        else:
            log.log(logging.WARNING if again else logging.INFO, "%s: forcing exit", name)
            self._end(128 + number if again else 0)

    def _end(self, status: int) -> None:
        self._lines.write_last()
        os._exit(status)
