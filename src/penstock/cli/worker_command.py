"""`penstock worker run`: be a worker of a stage, attached from outside to a server that runs already.

It is a program of its own, in whatever environment the stage needs: nothing of HTTP is imported here.

Exit status: 0 where it was told to end, or the server has gone and there is but one time; 1 where the server sends it
away or the stage cannot be set up, and a supervisor may start it afresh; 2 wrongly called.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import msgspec

from penstock.cli.options import WronglyCalled, add_flags, server_options
from penstock.cli.worker_check import add_worker_test_command
from penstock.config import LONGEST_SOCKET_PATH, LogOptions, ServerOptions
from penstock.errors import ConfigError
from penstock.worker.attachment import Attachment

_LOG_FLAGS: Final = ("log_format", "log_level")


def add_worker_commands(commands: Any) -> None:
    """The command `worker` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "worker",
        help="run a worker of a service that is already served, or test one",
        description="Run a worker of a service that is already served, or test a worker in another language.",
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(own)
    add_worker_test_command(own)


def _add_run(own: Any) -> None:
    parser = own.add_parser(
        "run",
        help="attach a worker to a service that is already served",
        description="Run a worker of a stage and attach it to a service that is already served.",
    )
    parser.add_argument(
        "target", metavar="module:Stage", help="or model.py:Stage; a Stage class or a function at the top of a module"
    )
    parser.add_argument("--connect", metavar="PATH", required=True, help="the server's socket for remote workers")
    parser.add_argument("--stage", metavar="NAME", help="the stage to serve (default: the only one)")
    parser.add_argument("--setup", metavar="JSON", help="arguments of setup as JSON, such as '{\"factor\": 2}'")
    parser.add_argument("--cpus", metavar="LIST", help="CPU cores to run on, such as 0,1 (default: all)")
    parser.add_argument(
        "--once",
        action="store_true",
        help="exit with status 0 when the server has stopped, instead of waiting for another server",
    )
    others = [f.name for f in fields(ServerOptions) if f.name not in _LOG_FLAGS]
    add_flags(parser, ServerOptions, "log", leave_out=others)
    parser.set_defaults(run=_work_outside)


def _work_outside(arguments: argparse.Namespace) -> int:
    server = server_options(arguments, os.environ)
    try:
        attachment = _attachment(arguments)
        cores = _cores(arguments.cpus)
    except ConfigError as error:
        raise WronglyCalled(error) from None
    from penstock.cli.attached_program import run_attached

    logs = LogOptions(server.log_format, server.log_level)
    return run_attached(arguments.target, attachment, cores, logs)


def _attachment(arguments: argparse.Namespace) -> Attachment:
    """What the flags say; raises ConfigError where they say what can never be."""
    path, name = arguments.connect, arguments.stage
    if not path or "\0" in path:
        raise ConfigError(f"--connect must be the path of a socket, got {path!r}")
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"--connect: the path of a socket has at most {LONGEST_SOCKET_PATH} bytes, got {path!r}")
    if name == "":
        raise ConfigError("--stage must be the name of a stage, got ''")
    return Attachment(path, name, _setup(arguments.setup), arguments.once)


def _setup(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError(
            f"--setup must be a JSON object, such as '{{\"factor\": 2}}', got {text!r}: {error}"
        ) from None


def _cores(text: str | None) -> Sequence[int]:
    if text is None:
        return ()
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        raise ConfigError(f"--cpus must be numbers of cores, such as 0,1, got {text!r}")
    return [int(entry) for entry in entries]
