"""Where a server is reached whose sockets systemd listens on, and whether a flag or a variable names another place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from penstock.hosting.given_sockets import hosts_of, refuse_addresses, sockets_given
from penstock.option_fields import environment_name, flag_name, service_link
from penstock.server.serve import ADDRESS_OPTIONS


def given_hosts(arguments: argparse.Namespace, environ: Mapping[str, str]) -> list[str] | None:
    """The TCP addresses of the sockets that systemd gave; None where it gave none.

    Raises:
        ConfigError: one of them cannot be served, or a flag or a variable names another place.
    """
    sockets = sockets_given()
    try:
        if not sockets:
            return None
        refuse_addresses(_places(arguments, environ))
        return hosts_of(sockets)
    finally:
        for sock in sockets:
            sock.close()


def _places(arguments: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """The flags and the variables that say where to listen, as the user wrote them.

    An empty variable and a link say nothing.
    """
    found = []
    for name in ADDRESS_OPTIONS:
        if getattr(arguments, name, None) is not None:
            found.append(flag_name(name))
        elif environ.get(environment_name(name)) and not service_link(name, environ):
            found.append(f"the variable {environment_name(name)}")
    return found
