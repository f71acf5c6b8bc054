"""The processes below `penstock serve --reload`: the one that serves, and the one that tries what has changed.

Not called by people.  Both read the command line that the user gave, and both end when the process that started them
does.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

from penstock.cli.ending import end_in_time
from penstock.cli.lifeline import begin_below
from penstock.cli.main import command_arguments, load_services, run_command, serve_on
from penstock.cli.options import server_options
from penstock.cli.reload import TRIED_WELL, TRY
from penstock.hosting.breakpoints import refuse_breakpoints
from penstock.hosting.stdio import fill_standard_streams
from penstock.runtime.launching import plan
from penstock.server.serve import check_before_serving

DRAIN_SECONDS = 2.0
"""How long a service may take at most over what it has accepted."""
SEE_OUT_SECONDS = 0.3
"""How long open connections are still answered before that drain, each with its last answer.

A client that has sent a request on a connection, or is about to, would otherwise find it closed.
"""


def main() -> None:
    """Do what `argv` says: SERVE or TRY, a lifeline, listening sockets with commas between, and the user's words."""
    fill_standard_streams()
    refuse_breakpoints()
    what, lifeline, descriptors, *words = sys.argv[1:]
    begin_below(int(lifeline))
    arguments = command_arguments(words)
    if what == TRY:
        os._exit(run_command(lambda: _try(arguments)))  # at once, whatever the module has started
    sockets = [socket.socket(fileno=int(number)) for number in descriptors.split(",")]
    for sock in sockets:
        sock.set_inheritable(False)
        sock.setblocking(False)
    status = run_command(lambda: serve_on(arguments, sockets, drain=DRAIN_SECONDS, see_out=SEE_OUT_SECONDS))
    end_in_time(status)
    sys.exit(status)


def _try(arguments: argparse.Namespace) -> int:
    """Do all that comes before a service opens or starts anything; what `run_command` catches says why it cannot."""
    options = server_options(arguments, os.environ)
    services = load_services(arguments)
    check_before_serving(services, options)
    for service in services:
        service.check_process()
        plan(service.name, service.stages, service.options, cpus=service.cpus, inline=service.inline)
    return TRIED_WELL


if __name__ == "__main__":
    main()
