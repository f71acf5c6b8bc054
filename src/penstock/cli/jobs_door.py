"""Open a queue to those who come over HTTP: which queue, and whether this address may have it.

A submitter of jobs may have this host read and write what the options allow, and fill a disk.  A queue is therefore
open from other hosts only to those with a key: of the API key file, or of a tenant.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from functools import partial

from penstock.config import ServerOptions
from penstock.core.clock import Clock
from penstock.errors import ConfigError
from penstock.hosting.servable import Servable
from penstock.hosting.tenants_file import read_tenants
from penstock.jobs.queue_port import QueuePort
from penstock.jobs.stores.urls import MEMORY, read_store_url
from penstock.jobs.submitting import connect
from penstock.jobs.work_options import QueueOptions
from penstock.server_names import listening_hosts


def open_port(url: str, services: Sequence[Servable], options: QueueOptions, clock: Clock) -> QueuePort:
    """The queue at `url`, for the clients of `services`; it is connected to at its start.

    Raises:
        ConfigError: an option cannot be read.
    """
    return QueuePort(partial(connect, url, max_inline_bytes=options.max_inline_bytes), services, options, clock=clock)


def check_worked_on(url: str) -> None:
    """Do nothing, or raise ConfigError where nobody could ever work on what `penstock serve` would submit."""
    if read_store_url(url).scheme == MEMORY:
        raise ConfigError(
            "a queue in memory belongs to this process only, and `penstock serve` runs no jobs: use "
            "`penstock consume --queue-url memory:// --bind HOST:PORT`"
        )


def has_keys(options: ServerOptions, services: Sequence[Servable]) -> bool:
    """Whether a server of `services` asks for a key at jobs; raises ConfigError for a file of tenants that is wrong."""
    return options.api_key_file is not None or any(read_tenants(each.options.tenants_file).keys for each in services)


def check_closed(host: str | Sequence[str] | None, *, uds: str | None, has_keys: bool) -> None:
    """Do nothing, or raise ConfigError where anybody on a network could submit jobs without a key.

    `host` and `uds` are the options: it is enough that one of several hosts is not of this machine alone.
    """
    if has_keys:
        return
    for each in listening_hosts(host, uds):
        if not _is_loopback(each):
            raise ConfigError(
                f"jobs at {each} would be open to every client that reaches this address: set "
                "--api-key-file, or --tenants-file with keys in the file, or listen on 127.0.0.1 or on a Unix "
                "socket"
            )


def _is_loopback(host: str) -> bool:
    """Whether every address of `host` is of this machine alone; one that cannot be looked up is not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return all(address.is_loopback for address in addresses)
