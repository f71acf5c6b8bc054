"""`penstock worker test`: does a worker, in whatever language, do all that a worker must?

Exit status: 0 where every check that applies has passed, 1 where one has not, 2 wrongly called, 130 interrupted, 143
ended by SIGTERM.  In each case no process of the worker is left, and no file.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.options import WronglyCalled
from penstock.codec.formats import Codec
from penstock.codec.text import printable_lines
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.testing.workers import CheckVerdict

CHECK_SECONDS: Final = 20.0
"""How long one check may take, unless `--timeout` says otherwise."""
CODECS: Final = {"json": Codec.JSON, "msgpack": Codec.MSGPACK}
"""The formats that the suite speaks."""


def add_worker_test_command(commands: Any) -> None:
    """The command `test`, below `penstock worker`."""
    parser = commands.add_parser(
        "test",
        help="test whether a remote worker follows the protocol",
        description=(
            "Start a remote worker by its command, once for each check, act as its server, and "
            "report deviations from the protocol.  Its stage squares numbers and lists of numbers, "
            "rejects all other items as invalid, and fails at -1."
        ),
    )
    parser.add_argument("--stage", required=True, metavar="NAME", help="name of the worker's stage")
    parser.add_argument(
        "--codec",
        action="append",
        choices=sorted(CODECS),
        help="format of the items; may be repeated (default: json and msgpack)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        default=str(CHECK_SECONDS),
        help="maximum seconds for one check (default %(default)s)",
    )
    parser.add_argument(
        "command",
        nargs="+",
        metavar="COMMAND",
        help="command of the worker, after --; the path of the socket is appended, or replaces {path}",
    )
    parser.set_defaults(run=_check_worker)


def _check_worker(arguments: argparse.Namespace) -> int:
    from penstock.cli.printing import print_shown
    from penstock.testing.command_worker import CommandWorker
    from penstock.testing.worker_case import SuiteTerms
    from penstock.testing.workers import run_worker_suite

    codecs = tuple(dict.fromkeys(CODECS[name] for name in arguments.codec or CODECS))
    terms = SuiteTerms(stage=arguments.stage, codecs=codecs, patience=_seconds(arguments.timeout))
    started = time.monotonic()
    verdicts = []
    with _ended_by_sigterm():
        try:
            for verdict in run_worker_suite(CommandWorker(arguments.command), terms):
                verdicts.append(verdict)
                print_shown(_line(verdict))
        except OSError as error:
            # Only the start of the command raises it: what fails on a socket is a verdict.
            words = f"cannot start {arguments.command[0]!r}: {error.strerror}"
            raise WronglyCalled(ConfigError(words)) from None
    failed = sum(bool(verdict.problem) for verdict in verdicts)
    skipped = sum(bool(verdict.skipped) for verdict in verdicts)
    counts = f"{len(verdicts) - failed - skipped} ok, {failed} failed, {skipped} skipped"
    print_shown(f"{counts}, in {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise WronglyCalled(ConfigError(f"--timeout: expected seconds, got {text!r}")) from None
    if not (seconds > 0 and math.isfinite(seconds)):
        raise WronglyCalled(ConfigError(f"--timeout must be more than 0 seconds, and finite, got {seconds:g}"))
    return seconds


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end this process as an error would, so that the worker is ended first."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _line(verdict: CheckVerdict) -> Text:
    """A check's line; below one that failed is why."""
    from rich.text import Text

    word, colour = (
        ("FAILED", "red") if verdict.problem else ("skipped", "yellow") if verdict.skipped else ("ok", "green")
    )
    line = Text.assemble((f"{word:<8}", colour), (f"{verdict.check.name:<21}", "bold"), verdict.check.sentence)
    why = verdict.problem or verdict.skipped
    if why:
        line.append("\n" + "\n".join(f"        {words}" for words in printable_lines(why).split("\n")))
    return line
