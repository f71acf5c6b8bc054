"""The `penstock` command: `serve` and `check`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from rich.console import Console

import penstock
from penstock.cli.check import check
from penstock.cli.loading import load_service
from penstock.cli.options import add_flags, server_options, service_fields
from penstock.config import LogFormat, ServerOptions, ServiceOptions
from penstock.errors import PenstockError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0 well, 1 failed, 2 wrongly called."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except PenstockError as error:
        Console(stderr=True).print(f"penstock: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except Exception:  # noqa: BLE001
        # The user's module failed to import, or the like: their traceback is the best message there is.
        traceback.print_exc()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock", description="Take Python models to production.")
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="serve services over HTTP", description="Serve services over HTTP.")
    serving.add_argument("services", nargs="+", metavar="module:service", help="what to serve")
    add_flags(serving, ServerOptions, "server")
    add_flags(serving, ServiceOptions, "service (for every service named)")
    serving.set_defaults(run=_serve)
    checking = commands.add_parser(
        "check",
        help="run a service's examples in this process and say what is wrong",
        description="Run a service's examples through it in this process and say what is wrong.",
    )
    checking.add_argument("service", metavar="module:service", help="what to check")
    checking.set_defaults(run=_check)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from penstock.server.serve import serve

    options = server_options(arguments, os.environ)
    changed = service_fields(arguments, os.environ)
    services = [load_service(name).configured(**changed) for name in arguments.services]
    say = _announcer(options.log_format)
    for service in services:
        stages = " -> ".join(f"{spec.name} x{spec.workers}" for spec in service.stages)
        say(f"starting {service.name} ({stages})")

    def ready(addresses: list[str]) -> None:
        for address in addresses:
            say(f"ready on {address}")
            if not address.startswith("unix:"):
                say(f"documentation at {address}/docs")

    serve(services, options, ready)
    say("stopped")
    return 0


def _announcer(log_format: LogFormat) -> Callable[[str], None]:
    """Tells the operator how a start and an end go: in plain words, or as log lines where every line is to be JSON."""
    if log_format == "json":
        from penstock.server.logs import set_up_logging

        set_up_logging(log_format)
        return logging.getLogger("penstock.server").info
    console = Console(stderr=True)
    return lambda words: console.print(f"penstock: {words}", markup=False, highlight=False, soft_wrap=True)


def _check(arguments: argparse.Namespace) -> int:
    return check(load_service(arguments.service), Console())


if __name__ == "__main__":
    sys.exit(main())
