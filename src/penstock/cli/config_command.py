"""`penstock generate`: print the file of a proxy, a supervisor or a cluster, made from the options of `penstock serve`.

What a file says is decided by the pure functions of `config_files`; here flags become descriptions, and a text is
written.  Nothing is imported of the services, and no other file is read: what a module sets itself has to be given here
too.

Exit status: 0 well; 1 where the file cannot be written; 2 wrongly called.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.model_folders import names_folder
from penstock.cli.options import (
    CommandOptions,
    WronglyCalled,
    add_flags,
    checked,
    chosen,
    server_options,
    service_fields,
)
from penstock.config import ArtifactOptions, ServerOptions, ServiceOptions
from penstock.errors import ConfigError, PenstockError
from penstock.hosting.stdio import fill_standard_streams, write_stderr_line
from penstock.option_fields import flag_name

if TYPE_CHECKING:
    from penstock.cli.config_files.proxied import ProxyDescription
    from penstock.cli.config_files.started import StartDescription

ADDRESSED: Final = ("host", "port", "uds", "uds_mode")
"""Where a replica listens is said to a proxy by `--server`."""
NOT_IN_PODS: Final = ("host", "uds", "uds_mode")
"""A pod listens on its own address, and on every other that it has."""
Made = tuple[str, Iterable[str]]
"""A file, and sentences on what it cannot promise."""
_READABLE_FILE: Final = 0o644
_SERVER_GROUP: Final = "server (options of the replicas)"
_SERVICE_GROUP: Final = "service (options of the replicas)"


def add_generate_command(commands: Any) -> None:
    """The command `generate` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "generate",
        help="print a configuration for a proxy, systemd or Kubernetes that fits the options",
        description=(
            "Print a configuration for a proxy, systemd or Kubernetes that fits the options of `penstock serve`."
        ),
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_proxy(own, "haproxy", _haproxy, "print the configuration of an HAProxy in front of replicas")
    _add_proxy(own, "nginx", _nginx, "print the configuration of an nginx in front of replicas")
    _add_systemd(own)
    _add_k8s(own)
    _add_keda(own)


def _add(own: Any, name: str, make: Callable[[argparse.Namespace], Made], words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = own.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("--output", metavar="PATH", help="write to this file, which must not exist")
    parser.add_argument("--force", action="store_true", help="with --output: replace an existing file")
    parser.set_defaults(run=lambda arguments: _run(make, arguments))
    return parser


def _add_proxy(own: Any, name: str, make: Callable[[argparse.Namespace], Made], words: str) -> None:
    parser = _add(own, name, make, words)
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        required=True,
        help="address for clients: 127.0.0.1:8080, [::]:80, unix:/run/a.sock",
    )
    parser.add_argument(
        "--listen-cert", metavar="PATH", help="PEM file with the certificate chain and the key for clients"
    )
    parser.add_argument(
        "--server", metavar="ADDRESS", action="append", required=True, help="address of a replica; repeat for each"
    )
    parser.add_argument("--server-ca", metavar="PATH", help="PEM file to verify the certificates of the replicas")
    parser.add_argument("--server-name", metavar="NAME", help="host name in the certificates of the replicas")
    add_flags(parser, ServerOptions, _SERVER_GROUP, leave_out=ADDRESSED)
    add_flags(parser, ServiceOptions, _SERVICE_GROUP)


def _add_systemd(own: Any) -> None:
    parser = _add_started(own, "systemd", _systemd, "print the systemd unit of a server")
    parser.add_argument(
        "--directory", metavar="DIR", help="directory of the Python modules (default: the current directory)"
    )
    parser.add_argument("--program", metavar="PATH", help="path of the penstock command (default: this one)")
    parser.add_argument("--user", metavar="NAME", help="user to run as (default: a dynamic user of systemd)")
    parser.add_argument("--socket", action="store_true", help="print the socket unit instead, on which systemd listens")
    parser.add_argument("--by-socket", action="store_true", help="print the unit of a server that uses that socket")
    add_flags(parser, ServerOptions, "server")
    _add_other_flags(parser)


def _add_k8s(own: Any) -> None:
    parser = _add_started(own, "k8s", _k8s, "print a Deployment, a Service and a PodDisruptionBudget")
    parser.add_argument("--image", metavar="NAME", required=True, help="container image, with `penstock` on its PATH")
    parser.add_argument("--replicas", metavar="N", default="2", help="number of pods (default %(default)s)")
    add_flags(parser, ServerOptions, "server", leave_out=NOT_IN_PODS)
    _add_other_flags(parser)


def _add_started(
    own: Any, name: str, make: Callable[[argparse.Namespace], Made], words: str
) -> argparse.ArgumentParser:
    parser = _add(own, name, make, words)
    parser.add_argument("services", nargs="+", metavar="module:service", help="flags as for `penstock serve`")
    parser.add_argument("--name", metavar="NAME", help="name of the objects (default: the module of the first service)")
    return parser


def _add_other_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, CommandOptions, "command", leave_out=("reload",))
    add_flags(parser, ArtifactOptions, "artifact (for services that are named by a directory)")
    add_flags(parser, ServiceOptions, "service (for every service named)")


def _add_keda(own: Any) -> None:
    parser = _add(own, "keda", _keda, "print a ScaledObject that scales by the backlog")
    parser.add_argument(
        "--service",
        metavar="NAME",
        dest="service_name",
        required=True,
        help="name of the service to scale",
    )
    parser.add_argument("--prometheus", metavar="URL", required=True, help="address of Prometheus")
    parser.add_argument("--name", metavar="NAME", help="name of the Deployment (default: the name of the service)")
    parser.add_argument(
        "--target",
        metavar="SECONDS",
        dest="target_seconds",
        help="backlog in seconds for each replica (default: a tenth of timeout, 6 at most)",
    )
    parser.add_argument("--min-replicas", metavar="N", default="1", help="minimum replicas (default %(default)s)")
    parser.add_argument("--max-replicas", metavar="N", default="10", help="maximum replicas (default %(default)s)")
    parser.add_argument(
        "--replicas", metavar="N", default="2", help="replicas while Prometheus has no data (default %(default)s)"
    )
    others = [f.name for f in fields(ServiceOptions) if f.name != "timeout"]
    add_flags(parser, ServiceOptions, "service", leave_out=others)


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


def _systemd(arguments: argparse.Namespace) -> Made:
    from penstock.cli.config_files.systemd_unit import UnitDescription, service_unit, socket_unit, unit_warnings

    if arguments.socket and arguments.by_socket:
        raise ConfigError("--socket and --by-socket print different units: run the command once for each")
    description = UnitDescription(
        start=_started(arguments, leave_out=ADDRESSED if arguments.by_socket else ()),
        program=arguments.program or os.path.abspath(_own_program()),  # noqa: PTH100  # links are kept, as users wrote them
        directory=arguments.directory or str(Path.cwd()),
        user=arguments.user,
        by_socket=arguments.by_socket,
    )
    if arguments.socket:
        return socket_unit(description), ()
    return service_unit(description), unit_warnings(description)


def _own_program() -> str:
    """The `penstock` of this environment."""
    return str(Path(sys.executable).with_name("penstock"))


def _k8s(arguments: argparse.Namespace) -> Made:
    from penstock.cli.config_files.kubernetes_objects import ClusterDescription, cluster_objects, cluster_warnings

    description = ClusterDescription(
        start=_started(arguments, leave_out=NOT_IN_PODS, first=("--host", "0.0.0.0")),  # noqa: S104  # the pod's own
        image=arguments.image,
        replicas=_whole(arguments, "replicas"),
    )
    return cluster_objects(description), cluster_warnings(description)


def _started(
    arguments: argparse.Namespace, *, leave_out: Collection[str], first: Sequence[str] = ()
) -> StartDescription:
    from penstock.cli.config_files.started import StartDescription, flags_of, name_of

    owners = (ServerOptions, CommandOptions, ArtifactOptions, ServiceOptions)
    flags = [*first]
    for owner in owners:
        variables = os.environ if owner is not ArtifactOptions or any(map(names_folder, arguments.services)) else {}
        checked(arguments, owner, variables)  # what can never be is said here, and not by a unit that does not start
        given = chosen(arguments, owner, variables)
        flags += flags_of(owner, given, leave_out=(*leave_out, "reload"))
    name = name_of(arguments.services[0]) if arguments.name is None else arguments.name
    return StartDescription(name, tuple(arguments.services), tuple(flags), server_options(arguments, os.environ))


def _keda(arguments: argparse.Namespace) -> Made:
    from penstock.cli.config_files.keda_object import ScalingDescription, scaled_object, usual_target
    from penstock.cli.config_files.started import name_of

    timeout = ServiceOptions(**service_fields(arguments, os.environ)).timeout
    description = ScalingDescription(
        name=name_of(arguments.service_name) if arguments.name is None else arguments.name,
        service=arguments.service_name,
        prometheus=arguments.prometheus,
        target=usual_target(timeout)
        if arguments.target_seconds is None
        else _number(arguments, "target_seconds", float),
        timeout=timeout,
        least=_whole(arguments, "min_replicas"),
        most=_whole(arguments, "max_replicas"),
        fallback=_whole(arguments, "replicas"),
    )
    return scaled_object(description), ()


def _whole(arguments: argparse.Namespace, name: str) -> int:
    return int(_number(arguments, name, int))


def _number(arguments: argparse.Namespace, name: str, kind: type[int | float]) -> int | float:
    """The number that a flag says."""
    text = getattr(arguments, name)
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{flag_name(name.removesuffix('_seconds'))}: expected a number, got {text!r}") from None


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
        from penstock.cli.printing import print_shown  # with rich, which takes a while to import

        print_shown(text.rstrip("\n"))
    else:
        write_file(arguments.output, text, replace=arguments.force)
    return 0


def write_file(path: str, text: str, *, replace: bool) -> None:
    """Write `text` into the file at `path`: all of it appears at once, or nothing.

    Args:
        path: the file.
        text: what is to be in it.
        replace: whether a file that is there is replaced; a device, such as /dev/null, or a folder never is.

    Raises:
        PenstockError: a file is there and is not to be replaced, or it cannot be written.
    """
    target = Path(path)
    part: str | None = None
    try:
        if target.exists() and not target.is_file():  # a link to a file is replaced, one to anything else is not
            raise PenstockError(f"--output {path}: the path exists and is not a file, so it cannot be replaced")
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
        raise PenstockError(f"--output {path}: it exists; --force replaces it") from None
    except (OSError, ValueError) as error:
        raise PenstockError(f"--output {path}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)
