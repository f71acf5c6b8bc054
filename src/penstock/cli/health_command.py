"""`penstock health`: ask a server that runs whether it is ready, for a container's health check and for people.

It prints one line, the state and the reason, to standard output.  Exit status: 0 ready, or busy; 1 not ready; 2
unreachable, which is also an answer in time that is none of Penstock's; 3 wrongly called, since 2 is taken; 130
interrupted.

A container runs it every few seconds, beside the model.  So it imports little, and nothing of the server.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from penstock.cli.command_parser import CommandParser
from penstock.cli.readiness import short_line
from penstock.cli.server_address import HealthAddress, address_from_environment, address_of
from penstock.errors import ConfigError
from penstock.hosting.stdio import give_up_broken_streams, write_stderr_line

READY = 0
NOT_READY = 1
UNREACHABLE = 2
WRONGLY_ASKED = 3
TIMEOUT_SECONDS = 5.0
LONGEST_TIMEOUT_SECONDS = 3600.0
_HELP = "check whether a running server is ready"
_DESCRIPTION = (
    "Check whether a running server is ready, and print its state and the reason. Exit status: 0 "
    "ready, 1 not ready, 2 unreachable, 3 usage error."
)


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(WRONGLY_ASKED, f"{self.prog}: error: {message}\n")


def add_health_command(commands: Any) -> None:
    """Name the command `health` among those of `penstock`, for its help and for completion; `run_health` is it."""
    _add_arguments(commands.add_parser("health", help=_HELP, description=_DESCRIPTION))


def run_health(words: Sequence[str]) -> int:
    """Ask as `words` say, which are those behind `penstock health`; the exit status."""
    parser = _Parser(prog="penstock health", description=_DESCRIPTION)
    _add_arguments(parser)
    arguments = parser.parse_args(words)
    try:
        timeout = _seconds(arguments.timeout)
        address = address_from_environment(os.environ) if arguments.url is None else address_of(arguments.url)
    except ConfigError as error:
        write_stderr_line(short_line(str(error)))
        return WRONGLY_ASKED
    try:
        return _ask(address, timeout)
    except KeyboardInterrupt:
        write_stderr_line("interrupted")
        return 128 + signal.SIGINT
    finally:
        give_up_broken_streams()


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        help="address of the server: http://HOST:PORT, https://HOST:PORT (its certificate is not "
        "verified), unix:/PATH or http+unix:///PATH (default: from PENSTOCK_UDS, or PENSTOCK_HOST "
        "and PENSTOCK_PORT, with TLS if PENSTOCK_TLS_CERT is set; else http://127.0.0.1:8000)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        default=str(TIMEOUT_SECONDS),
        help="maximum seconds to wait for the whole response (default %(default)s)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigError(f"--timeout: expected seconds, got {text!r}") from None
    if not 0 < seconds <= LONGEST_TIMEOUT_SECONDS:
        raise ConfigError(f"--timeout must be more than 0 and at most {LONGEST_TIMEOUT_SECONDS:g} seconds, got {text}")
    return seconds


def _ask(address: HealthAddress, timeout: float) -> int:
    from penstock.cli.asking_ready import Unreachable, ask_ready  # http.client and ssl: no other command needs them

    try:
        found = ask_ready(address, timeout)
    except Unreachable as error:
        _say(short_line(f"unreachable: {address.name}: {error}"))
        return UNREACHABLE
    _say(found.words)
    return READY if found.ready else NOT_READY


def _say(line: str) -> None:
    """Print `line`; where nobody can read it, the exit status tells enough."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not have every character
    with contextlib.suppress(OSError):
        print(line, flush=True)
