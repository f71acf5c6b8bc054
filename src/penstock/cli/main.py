"""The `penstock` command: `serve`, `consume`, `worker`, `check`, `model`, `embeddings`, `training`, `jobs`, `generate`
and `health`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import penstock
from penstock.cli.artifact_commands import add_model_commands
from penstock.cli.command_parser import CommandParser
from penstock.cli.config_command import add_generate_command
from penstock.cli.embeddings_commands import add_embeddings_command
from penstock.cli.ending import end_in_time
from penstock.cli.external_flags import fields_of_each
from penstock.cli.find_service import load_service
from penstock.cli.first_process import leave_first_process
from penstock.cli.health_command import add_health_command, run_health
from penstock.cli.jobs_command import add_jobs_command
from penstock.cli.model_folders import options_of_folders
from penstock.cli.options import (
    CommandOptions,
    WronglyCalled,
    add_flags,
    command_options,
    near_flags,
    queue_options,
    renamed_flags,
    server_options,
    service_fields,
    unused_variables,
)
from penstock.cli.pools import resized
from penstock.cli.queue_url import add_queue_flags, read_queue_url
from penstock.cli.saying import Say, say_object, say_text
from penstock.cli.training_commands import add_training_command
from penstock.cli.user_errors import UserCodeFailed
from penstock.cli.worker_command import add_worker_commands
from penstock.codec.text import printable_lines
from penstock.config import ArtifactOptions, LogOptions, ServerOptions, ServiceOptions
from penstock.errors import ConfigError, PenstockError
from penstock.hosting.signals import hold_signals, ignore_held_signals
from penstock.hosting.stdio import fill_standard_streams, give_up_broken_streams, write_stderr_line
from penstock.hosting.systemd import given_by_systemd
from penstock.jobs.work_options import QueueOptions, WorkOptions
from penstock.service import Service

# rich, and what needs it, is imported where it is used: it took a third of the start of `serve` and `consume`.

CHECK_STEP_SECONDS = 60.0
"""How long one step of a check may take, unless `--timeout` says otherwise."""
WHAT_A_SERVICE_IS = (
    "module:service or file.py:service; a function without arguments that makes the service; only "
    "the module, if it has one service; or the directory of a trained model: an artifact, or a "
    "model directory"
)
ARTIFACT_FLAGS = "artifact (for services that are named by a directory)"
DOOR = ("host", "port", "uds", "uds_mode", "drain_timeout")
"""Options of the server that `penstock consume` has under other names, or lacks."""
FAILED = 1
WRONGLY_CALLED = 2
"""As `argparse` ends for a flag that it does not know."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0 well, 1 failed, 2 wrongly called, 130 interrupted.

    Without `argv` this is the command of its process, which then has to end.
    """
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    fill_standard_streams()
    given_by_systemd()  # before there is any other process: it is for this one
    leave_first_process()
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["health"]:  # its exit statuses mean something else
        return run_health(words[1:])
    arguments = command_arguments(words)
    status = run_command(lambda: int(arguments.run(arguments)), usage=arguments.parser.format_usage())
    if argv is None:
        end_in_time(status)
    return status


def command_arguments(words: Sequence[str]) -> argparse.Namespace:
    """What `words` say; ends the process where they cannot be read.  The words themselves are in `words`."""
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(WRONGLY_CALLED)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        renamed = dict(renamed_flags(unknown, arguments.parser.flags))
        near = near_flags([word for word in unknown if word.partition("=")[0] not in renamed], arguments.parser.flags)
        hint = "".join(f"; {old} is {now} now" for old, now in renamed.items())
        hint += f"; did you mean {', '.join(near)}?" if near else ""
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    arguments.words = list(words)
    return arguments


def run_command(command: Callable[[], int], *, usage: str = "") -> int:
    """The exit status of `command`, after whatever went wrong was written to standard error.

    Where it was called wrongly, `usage` comes first.
    """
    try:
        return command()
    except KeyboardInterrupt:
        # Before the server takes signals, while the user's module is imported: nothing has begun.
        write_stderr_line("interrupted")
        return 128 + signal.SIGINT
    except WronglyCalled as wrong:
        _complain(wrong.error, usage)
        return WRONGLY_CALLED
    except PenstockError as error:
        _complain(error)
        return FAILED
    except UserCodeFailed as failed:
        with contextlib.suppress(OSError):
            sys.stderr.write(failed.traceback)
        return FAILED
    except Exception:  # noqa: BLE001
        # A mistake of ours, for all we know: every frame of it is wanted.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return FAILED
    finally:
        ignore_held_signals()
        give_up_broken_streams()


def _complain(error: PenstockError, usage: str = "") -> None:
    with contextlib.suppress(OSError):  # nobody reads it
        from rich.console import Console

        sys.stderr.write(usage)
        # The sentence may repeat what somebody else wrote, as a name in an artifact.
        words = printable_lines(f"penstock: {error}")
        Console(stderr=True).print(words, style="red", markup=False, highlight=False, soft_wrap=True)


def _complete() -> None:
    """Answer a shell that asks what may follow, and end; it is imported only then."""
    from penstock.cli.completion import complete

    parser = _parser()
    complete(parser, _commands_below(parser))


def _commands_below(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of all commands, also of those that are commands of a command."""
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    own = [command for found in choices for command in found.values()]
    return own + [below for command in own for below in _commands_below(command)]


class _TellVersion(argparse.Action):
    """Says the version; argparse's own action would want it, and so the versions of libraries, before it is asked."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"penstock {_version_words()}")
        parser.exit()


def _version_words() -> str:
    from penstock.hosting.build import build_words

    return f"{penstock.__version__} ({build_words()})"


def _parser() -> CommandParser:
    parser = CommandParser(prog="penstock", description="Serve Python models in production.")
    parser.add_argument(
        "--version", action=_TellVersion, help="show the version, the build and its libraries, and exit"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="serve services over HTTP", description="Serve services over HTTP.")
    serving.add_argument("services", nargs="+", metavar="module:service", help=WHAT_A_SERVICE_IS)
    add_queue_flags(serving)
    add_flags(serving, QueueOptions, "jobs (with --queue-url)")
    add_flags(serving, CommandOptions, "command")
    add_flags(serving, ArtifactOptions, ARTIFACT_FLAGS)
    add_flags(serving, ServerOptions, "server")
    add_flags(serving, ServiceOptions, "service (for every service named)")
    serving.set_defaults(run=_serve)
    working = commands.add_parser(
        "consume", help="run services on the jobs of a queue", description="Run services on the jobs of a queue."
    )
    working.add_argument("services", nargs="+", metavar="module:service", help=WHAT_A_SERVICE_IS)
    add_queue_flags(working)
    add_flags(working, WorkOptions, "consumer")
    add_flags(working, CommandOptions, "command", leave_out=("reload",))
    add_flags(working, ArtifactOptions, ARTIFACT_FLAGS)
    add_flags(working, ServerOptions, "server (with --bind and --health-bind)", leave_out=DOOR)
    add_flags(working, ServiceOptions, "service (for every service named)")
    working.set_defaults(run=_work)
    add_worker_commands(commands)
    checking = commands.add_parser(
        "check",
        help="run a service's examples and report problems",
        description="Run a service's examples through it in a separate process, and report problems.",
    )
    checking.add_argument("service", metavar="module:service", help=WHAT_A_SERVICE_IS)
    checking.add_argument(
        "--timeout",
        metavar="SECONDS",
        default=str(CHECK_STEP_SECONDS),
        help="maximum seconds for one step: the import, the setup, one example in one format (default %(default)s)",
    )
    checking.add_argument(
        "--measure",
        action="store_true",
        help="also measure each stage: its memory, and the time of batches of each size",
    )
    add_flags(checking, ArtifactOptions, ARTIFACT_FLAGS)
    checking.set_defaults(run=_check)
    add_model_commands(commands)
    add_embeddings_command(commands)
    add_training_command(commands)
    add_jobs_command(commands)
    add_generate_command(commands)
    add_health_command(commands)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    own = command_options(arguments, os.environ)
    options = server_options(arguments, os.environ)
    _queue_of_clients(arguments)
    return _serve_reloading(arguments, options) if own.reload else _serve_with(arguments, options)


def _queue_of_clients(arguments: argparse.Namespace) -> str | None:
    """The URL of the queue to which clients submit, or None; raises WronglyCalled where nobody could work on it."""
    from penstock.cli.jobs_door import check_worked_on

    url = read_queue_url(arguments.queue_url, arguments.queue_url_file, os.environ)
    queue_options(arguments, os.environ if url is not None else {})
    if url is not None:
        try:
            check_worked_on(url)
        except ConfigError as error:
            raise WronglyCalled(error) from None
    return url


def _check_closed(options: ServerOptions, hosts: Sequence[str] | None, *, has_keys: bool) -> None:
    """Do nothing, or raise WronglyCalled where anybody on a network could submit jobs.

    `hosts` are the TCP addresses of sockets that listen already; None where the options say where to listen.
    """
    from penstock.cli.jobs_door import check_closed

    try:
        if hosts is None:
            check_closed(options.host, uds=options.uds, has_keys=has_keys)
        for host in hosts or ():
            check_closed(host, uds=None, has_keys=has_keys)
    except ConfigError as error:
        raise WronglyCalled(error) from None


def _serve_reloading(arguments: argparse.Namespace, options: ServerOptions) -> int:
    from penstock.cli.given_place import given_hosts
    from penstock.cli.reload import serve_reloading
    from penstock.hosting.handing_over import lines_handed_over
    from penstock.hosting.logs import dropped_notice
    from penstock.hosting.moving_line import line_can_be_shown
    from penstock.hosting.tenants_file import read_tenants

    def serve(say: Say) -> int:
        hosts = given_hosts(arguments, os.environ)
        if _queue_of_clients(arguments) is not None:
            # No module is imported here: the file of tenants that one names itself is not known.
            tenants = service_fields(arguments, os.environ).get("tenants_file")
            has_keys = options.api_key_file is not None or bool(read_tenants(tenants).keys)
            _check_closed(options, hosts, has_keys=has_keys)
        return serve_reloading(arguments.words, options, say)

    # The child may show what still loads.
    erases = options.log_format == "text" and line_can_be_shown()
    with lines_handed_over(dropped_notice, erases=erases):
        service_fields(arguments, os.environ)  # what can never be is said once, and not by each child
        options_of_folders(arguments, arguments.services, os.environ)
        return _as_told(options, serve)


def serve_on(arguments: argparse.Namespace, sockets: Sequence[socket.socket], *, drain: float, see_out: float) -> int:
    """Serve as `arguments` say, on sockets that listen already, with a drain of at most `drain` seconds."""
    options = server_options(arguments, os.environ)
    options = dataclasses.replace(options, drain_timeout=min(options.drain_timeout, drain), drain_delay=0.0)
    return _serve_with(arguments, options, sockets=sockets, see_out=see_out)


def _serve_with(
    arguments: argparse.Namespace,
    options: ServerOptions,
    *,
    sockets: Sequence[socket.socket] = (),
    see_out: float = 0.0,
) -> int:
    return _with_lines(
        options, lambda: _as_told(options, lambda say: _run_server(arguments, options, say, sockets, see_out))
    )


def _with_lines(options: ServerOptions, command: Callable[[], int]) -> int:
    """Run `command` with every line of this process handed over, those before and after it serves too."""
    from penstock.hosting.handing_over import lines_handed_over
    from penstock.hosting.logs import dropped_notice
    from penstock.hosting.users_lines import users_lines_taken
    from penstock.worker.current_call import current_marks

    logs = LogOptions(options.log_format, options.log_level)
    with lines_handed_over(dropped_notice) as lines, users_lines_taken(logs, lines, current_marks):
        return command()


def _as_told(options: ServerOptions, command: Callable[[Say], int]) -> int:
    """Run `command` with what writes a line for the operator, in the format that `options` ask for."""
    if options.log_format == "text":
        return command(say_text)
    # Every line must be JSON, the lines on starting and stopping included.
    from penstock.hosting.logs import log, log_failure, set_up_logging

    set_up_logging(options.log_format, options.log_level)
    try:
        return command(say_object)
    except WronglyCalled as wrong:
        log_failure(wrong.error)
        return WRONGLY_CALLED
    except UserCodeFailed as failed:
        log.error("%s", failed, extra={"error": failed.kind, "traceback": failed.traceback.rstrip()})
        return FAILED
    except Exception as error:  # noqa: BLE001
        log_failure(error)
        return FAILED


def load_services(arguments: argparse.Namespace) -> list[Service]:
    """The services that `arguments` name, with the options that they and the environment give."""
    changed = service_fields(arguments, os.environ)
    pools = command_options(arguments, os.environ).pools()
    artifact = options_of_folders(arguments, arguments.services, os.environ)
    services = [load_service(name, artifact) for name in arguments.services]
    with_socket = fields_of_each(services, changed, by_flag=arguments.remote_worker_socket is not None)
    configured = [each.configured(**changed) for each, changed in with_socket]
    return resized(configured, pools, by_flag=arguments.workers is not None)


def _run_server(
    arguments: argparse.Namespace,
    options: ServerOptions,
    say: Say,
    sockets: Sequence[socket.socket],
    see_out: float,
) -> int:
    """Serve until told to stop; `say` writes a line for the operator."""
    from penstock.cli.given_place import given_hosts
    from penstock.cli.jobs_door import has_keys
    from penstock.hosting.given_sockets import hosts_of
    from penstock.hosting.guarded_log import enable_loggers
    from penstock.hosting.loop_clock import LoopClock
    from penstock.server.serve import serve

    url = _queue_of_clients(arguments)
    hosts = hosts_of(sockets) if sockets else given_hosts(arguments, os.environ)
    services = load_services(arguments)
    if url is not None:
        _check_closed(options, hosts, has_keys=has_keys(options, services))
    enable_loggers()
    hold_signals()
    _say_what_starts(services, say)

    def ready(addresses: list[str]) -> None:
        for address in addresses:
            say(f"ready on {address}")
            if not address.startswith("unix:"):
                say(f"documentation at {address}/docs")

    jobs = None
    if url is not None:
        from penstock.cli.jobs_door import open_port

        jobs = open_port(url, services, queue_options(arguments, os.environ), LoopClock())
    serve(services, options, ready, sockets=sockets, see_out=see_out, jobs=jobs)
    say("stopped")
    return 0


def _say_what_starts(services: Sequence[Service], say: Say) -> None:
    say(f"version {_version_words()}")
    for words in unused_variables(os.environ):
        say(f"warning: {words}")
    for service in services:
        stages = " -> ".join(
            f"{spec.name} x{spec.workers}" if spec.external is None else f"{spec.name} (remote)"
            for spec in service.stages
        )
        version = "" if service.model_version is None else f" version {service.model_version}"
        say(f"starting {service.name}{version} ({stages})")


def _work(arguments: argparse.Namespace) -> int:
    from penstock.cli.work import Work

    work = Work.read(arguments, os.environ)

    def run(say: Say) -> int:
        from penstock.hosting.guarded_log import enable_loggers

        services = work.bounded(load_services(arguments))
        enable_loggers()
        hold_signals()
        _say_what_starts(services, say)
        work.run(services, say)
        say("stopped")
        return 0

    return _with_lines(work.server, lambda: _as_told(work.server, run))


def _check(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from penstock.cli.check import check

    try:
        patience = float(arguments.timeout)
    except ValueError:
        raise WronglyCalled(ConfigError(f"--timeout: expected seconds, got {arguments.timeout!r}")) from None
    if not patience > 0:
        raise WronglyCalled(ConfigError(f"--timeout must be more than 0 seconds, got {patience:g}"))
    artifact = options_of_folders(arguments, [arguments.service], os.environ)
    return check(arguments.service, patience, Console(), artifact=artifact, measured=arguments.measure)


if __name__ == "__main__":
    sys.exit(main())
