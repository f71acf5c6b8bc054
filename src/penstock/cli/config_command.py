"""`penstock config`: print the file of a proxy, a supervisor or a cluster, made from the options of `penstock serve`.

What a file says is decided by the pure functions of `config_files`; here flags become descriptions, and a text is
written.  Nothing is imported of the services, and no other file is read: what a module sets itself has to be given here
too.

Exit status: 0 well; 1 where the file cannot be written; 2 wrongly called.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.options import WronglyCalled, add_flags, server_options, service_fields
from penstock.cli.printing import print_shown, readable_path
from penstock.config import ServerOptions, ServiceOptions
from penstock.errors import ConfigError, PenstockError
from penstock.hosting.stdio import fill_standard_streams, write_stderr_line

if TYPE_CHECKING:
    from penstock.cli.config_files.proxied import ProxyDescription

ADDRESSED: Final = ("host", "port", "uds", "uds_mode")
"""Where a replica listens is said to a proxy by `--server`."""
Made = tuple[str, Iterable[str]]
"""A file, and sentences on what it cannot promise."""
_READABLE_FILE: Final = 0o644
_SERVER_GROUP: Final = "server (what the replicas run with)"
_SERVICE_GROUP: Final = "service (what the replicas run with)"


def add_config_command(commands: Any) -> None:
    """The command `config` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "config",
        help="print the file of a proxy, of systemd or of Kubernetes that fits the options",
        description="Print the file of a proxy, of systemd or of Kubernetes that fits the options of `penstock serve`.",
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_proxy(own, "haproxy", _haproxy, "print the file of an HAProxy in front of replicas")
    _add_proxy(own, "nginx", _nginx, "print the file of an nginx in front of replicas")


def _add(own: Any, name: str, make: Callable[[argparse.Namespace], Made], words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = own.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("--output", metavar="PATH", help="write it into this file, which must not exist")
    parser.add_argument("--force", action="store_true", help="with --output: in place of a file that exists")
    parser.set_defaults(run=lambda arguments: _run(make, arguments), flags=parser._option_string_actions)
    return parser


def _add_proxy(own: Any, name: str, make: Callable[[argparse.Namespace], Made], words: str) -> None:
    parser = _add(own, name, make, words)
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        required=True,
        help="where clients connect: 127.0.0.1:8080, [::]:80, unix:/run/a.sock",
    )
    parser.add_argument(
        "--listen-cert", metavar="PATH", help="PEM file with the certificate chain and the key for clients"
    )
    parser.add_argument(
        "--server", metavar="ADDRESS", action="append", required=True, help="where a replica listens; once for each"
    )
    parser.add_argument("--server-ca", metavar="PATH", help="PEM file to check the certificates of the replicas by")
    parser.add_argument("--server-name", metavar="NAME", help="the host's name in the certificates of the replicas")
    add_flags(parser, ServerOptions, _SERVER_GROUP, leave_out=ADDRESSED)
    add_flags(parser, ServiceOptions, _SERVICE_GROUP)


# -- what is made -----------------------------------------------------------------------------------------------------


def _haproxy(arguments: argparse.Namespace) -> Made:
    from penstock.cli.config_files.haproxy_file import haproxy_file
    from penstock.cli.config_files.proxied import proxy_warnings

    description = _proxy(arguments)
    return haproxy_file(description), proxy_warnings(description)


def _nginx(arguments: argparse.Namespace) -> Made:
    from penstock.cli.config_files.nginx_file import nginx_file
    from penstock.cli.config_files.proxied import proxy_warnings

    description = _proxy(arguments)
    return nginx_file(description), proxy_warnings(description)


def _proxy(arguments: argparse.Namespace) -> ProxyDescription:
    from penstock.cli.config_files.endpoints import read_endpoint
    from penstock.cli.config_files.proxied import ProxyDescription

    return ProxyDescription(
        listen=read_endpoint("--listen", arguments.listen),
        replicas=tuple(read_endpoint("--server", text) for text in arguments.server),
        server=server_options(arguments, os.environ),
        service=ServiceOptions(**service_fields(arguments, os.environ)),
        listen_cert=arguments.listen_cert,
        replica_ca=arguments.server_ca,
        replica_name=arguments.server_name,
    )


# -- what is written --------------------------------------------------------------------------------------------------


def _run(make: Callable[[argparse.Namespace], Made], arguments: argparse.Namespace) -> int:
    fill_standard_streams()
    if arguments.force and arguments.output is None:
        raise WronglyCalled(ConfigError("--force is for --output PATH"))
    try:
        text, warnings = make(arguments)
    except ConfigError as error:
        raise WronglyCalled(error) from None
    for words in warnings:
        write_stderr_line(f"warning: {words}")
    if arguments.output is None:
        print_shown(text.rstrip("\n"))
    else:
        write_file(arguments.output, text, replace=arguments.force)
    return 0


def write_file(path: str, text: str, *, replace: bool) -> None:
    """Write `text` into the file at `path`: all of it appears at once, or nothing.

    Args:
        path: the file.
        text: what is to be in it.
        replace: whether a file that is there is replaced.

    Raises:
        PenstockError: a file is there and is not to be replaced, or it cannot be written.
    """
    target = Path(path)
    part: str | None = None
    try:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123  # of a descriptor
            file.write(text)
            file.flush()
            os.fchmod(handle, _READABLE_FILE)
            os.fsync(handle)
        if replace:
            os.replace(part, target)  # noqa: PTH105  # beside `link`, which has no such method
            part = None
        else:
            os.link(part, target)  # fails where something is there, whoever made it in the meantime
    except FileExistsError:
        raise PenstockError(f"--output {readable_path(path)}: it exists; --force replaces it") from None
    except (OSError, ValueError) as error:
        raise PenstockError(f"--output {readable_path(path)}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)
