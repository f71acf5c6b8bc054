"""Write the unit of systemd that runs `penstock serve`, and the socket unit that may listen for it.  Pure.

Contract
--------
* systemd waits for the end as long as a drain may take, and not less.
* The words of the command reach `penstock` as they were given: systemd neither splits nor expands them.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from penstock.cli.config_files.layout import because
from penstock.cli.config_files.started import END_MARGIN_SECONDS, StartDescription
from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.option_fields import as_texts

DEFAULT_HOST: Final = "127.0.0.1"
"""What `penstock serve` listens on that is not told where."""
START_SECONDS: Final = 300
"""How long the models may take to load until systemd is told that it takes longer."""
WATCHDOG_SECONDS: Final = 30
RESTART_SECONDS: Final = 5
OTHER_FILES: Final = 2048
"""Files beside those of clients: channels of workers, logs, connections that are only asked for probes."""
MOST_FILES: Final = 1_048_576
"""What the kernel allows any process, unless it is told otherwise (`fs.nr_open`)."""
_RUN: Final = "/run"
_OTHERS_WRITE: Final = 0o002
"""Who connects to a socket needs leave to write to it."""
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,30}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@:+=,~-]+")


@dataclass(frozen=True, slots=True)
class UnitDescription:
    """A server under systemd."""

    start: StartDescription
    program: str
    """The absolute path of `penstock`."""
    directory: str
    """The absolute path of the folder to run it in, where its modules are."""
    user: str | None = None
    """Whom it runs as; None: a user that systemd makes for as long as it runs."""
    by_socket: bool = False
    """Whether systemd listens for it, as the socket unit says."""

    def __post_init__(self) -> None:
        for what, path in (("--program", self.program), ("--directory", self.directory)):
            if not PurePosixPath(path).is_absolute() or not path.isprintable() or path != path.strip():
                raise ConfigError(
                    f"{what} must be an absolute path of printable characters, without spaces around it, got {path!r}"
                )
            if path.endswith("\\"):
                raise ConfigError(f"{what} must not end with a backslash, which would join two lines, got {path!r}")
        if self.user is not None and _USER.fullmatch(self.user) is None:
            raise ConfigError(f"--user must be the name of a user, got {self.user!r}")


def unit_warnings(description: UnitDescription) -> Iterator[str]:
    """Sentences on why a server by the unit of the service cannot be reached."""
    server = description.start.server
    if server.uds is None or description.by_socket or description.user is not None:
        return
    if _runtime_folder(server.uds) is None:
        yield (
            f"uds is {server.uds}: the dynamic user of systemd can write only to its own directory. "
            f"Write --uds /run/{description.start.name}/x.sock, or --user NAME, or let systemd listen "
            "(--socket, --by-socket)"
        )
    if not server.uds_mode & _OTHERS_WRITE:
        yield (
            f"uds_mode is {server.uds_mode:04o}: no other user is in the group of systemd's dynamic "
            "user, so only root could connect. Write --uds-mode 666, or --user NAME"
        )


def service_unit(description: UnitDescription) -> str:
    """The unit of the service.

    Raises:
        ConfigError: a word of the command cannot be written in a unit.
    """
    start, server = description.start, description.start.server
    command = " ".join(map(_word, (description.program, *start.words)))
    lines = [
        "# Penstock under systemd, made by `penstock generate systemd`.  Run it again when an option changes.",
        f"# Install it as /etc/systemd/system/{start.name}.service.",
        "",
        "[Unit]",
        f"Description=Penstock serves {_value(' '.join(start.services))}",
        "After=network-online.target",
        "Wants=network-online.target",
        *_socket_wanted(description),
        "",
        "[Service]",
        *because("The server notifies systemd when the models are loaded; messages of other processes are ignored."),
        "Type=notify",
        "NotifyAccess=main",
        f"WorkingDirectory={_value(description.directory)}",
        f"ExecStart={command}",
        *because("`systemctl reload` renews certificates and keys."),
        "ExecReload=/bin/kill -HUP $MAINPID",
        *_who(description),
        *because(f"Models may take longer than {START_SECONDS} s to load: meanwhile the server requests more time."),
        f"TimeoutStartSec={START_SECONDS}",
        *because(
            f"drain_delay ({server.drain_delay:g} s), drain ({server.drain_timeout:g} s), and "
            f"{END_MARGIN_SECONDS:g} s for the processes to exit."
        ),
        f"TimeoutStopSec={_seconds(start.end_seconds)}",
        *because("Only the server gets SIGTERM, and stops its workers after draining; remaining processes are killed."),
        "KillMode=mixed",
        *because(
            f"The server notifies the watchdog every {WATCHDOG_SECONDS / 2:g} s while its event loop "
            "runs and /livez is 200.  Otherwise it is killed and restarted."
        ),
        f"WatchdogSec={WATCHDOG_SECONDS}",
        "Restart=on-failure",
        *because("If a model cannot be loaded, wait before each restart."),
        f"RestartSec={RESTART_SECONDS}",
        *because(f"max_connections ({server.max_connections}), and {OTHER_FILES} other files."),
        f"LimitNOFILE={min(server.max_connections + OTHER_FILES, MOST_FILES)}",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def socket_unit(description: UnitDescription) -> str:
    """The unit of the socket, on which systemd listens also while the service is restarted.

    Raises:
        ConfigError: systemd cannot listen there.
    """
    start, server = description.start, description.start.server
    mode = [f"SocketMode={server.uds_mode:04o}"] if server.uds is not None else []
    if server.uds is not None and description.user is not None:
        mode.append(f"SocketUser={description.user}")
    lines = [
        "# The socket of Penstock under systemd, made by `penstock generate systemd --socket`.",
        f"# Install it as /etc/systemd/system/{start.name}.socket, with the unit that --by-socket prints.",
        "",
        "[Unit]",
        f"Description=The socket of {_value(start.name)}",
        "",
        "[Socket]",
        *(f"ListenStream={_value(address)}" for address in _addresses(server)),
        *mode,
        *because("IPv4 and IPv6 if the address is ::, whatever the kernel's default is."),
        "BindIPv6Only=both",
        *because("Maximum clients that wait while there is no server; the kernel has its own limit."),
        "Backlog=2048",
        "",
        "[Install]",
        "WantedBy=sockets.target",
        "",
    ]
    return "\n".join(lines)


def _socket_wanted(description: UnitDescription) -> list[str]:
    if not description.by_socket:
        return []
    socket = f"{description.start.name}.socket"
    return [
        *because("systemd listens, also during a restart, and passes the socket to the service."),
        f"Requires={socket}",
        f"After={socket}",
    ]


def _who(description: UnitDescription) -> list[str]:
    server = description.start.server
    if description.user is None:
        lines = [
            *because("A dynamic user, which exists while the service runs; --user sets another one."),
            "DynamicUser=yes",
        ]
    else:
        lines = [f"User={description.user}"]
    if description.by_socket:
        return lines
    if server.uds is not None:
        folder = _runtime_folder(server.uds)
        if folder is not None:
            lines += [*because("The directory of the socket."), f"RuntimeDirectory={_value(folder)}"]
    if _hosts(server) and 0 < server.port < 1024:
        lines += [
            *because(f"Port {server.port} is below 1024: only root may listen there without this capability."),
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
        ]
    return lines


def _runtime_folder(uds: str) -> str | None:
    """The folder below /run that systemd is asked to make for the socket at `uds`; None where it is elsewhere."""
    folder = PurePosixPath(uds).parent
    return folder.name if str(folder.parent) == _RUN and _PLAIN.fullmatch(folder.name) else None


def _hosts(server: ServerOptions) -> tuple[str, ...]:
    """The hosts that the server listens on; with a Unix socket none, unless it is told of one."""
    if server.host is None:
        return () if server.uds is not None else (DEFAULT_HOST,)
    return as_texts("host", server.host)


def _addresses(server: ServerOptions) -> list[str]:
    """Where the socket unit listens."""
    hosts = _hosts(server)
    if server.uds is not None and not server.uds.startswith("/"):
        raise ConfigError(f"systemd supports only absolute paths of sockets, got uds {server.uds!r}")
    if hosts and server.port == 0:
        raise ConfigError("systemd needs a fixed port to listen on, but port is 0")
    found = [_address(host, server.port) for host in hosts]
    return found if server.uds is None else [server.uds, *found]


def _address(host: str, port: int) -> str:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"systemd listens on addresses, not on names: write --host with an address, got {host!r}"
        ) from None
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"


def _seconds(seconds: float) -> str:
    return "infinity" if math.isinf(seconds) else str(math.ceil(seconds))


def _value(text: str) -> str:
    """`text` as a whole value: a backslash at its end would join the next line to it, and blanks around it are lost."""
    if text.endswith("\\") or text != text.strip():
        raise ConfigError(f"a value of systemd must not end with a backslash or have spaces around it, got {text!r}")
    return _escaped(text)


def _escaped(text: str) -> str:
    """`text` as a part of a value that systemd takes as it is."""
    if not text.isprintable():
        raise ConfigError(f"a unit of systemd must have printable characters only, got {text!r}")
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """`text` as one word of a command."""
    escaped = _escaped(text).replace("$", "$$")
    if text == ";":
        raise ConfigError("`;` alone ends a command of systemd, and cannot be an argument of it")
    if _PLAIN.fullmatch(escaped):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
