"""Which service a flag about workers from outside is for, where several are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError
from penstock.runtime.spec import external_stages
from penstock.service import Service

PATH = "remote_worker_socket"


def fields_of_each(
    services: Sequence[Service], fields: Mapping[str, Any], *, by_flag: bool
) -> list[tuple[Service, Mapping[str, Any]]]:
    """What flags and variables change in the options of each service.

    Every option is for all of them, but a socket is for one: for the service with stages whose workers are remote.
    Where there is none, a flag that names the socket is a mistake, which the service tells; `by_flag` says whether one
    does.  A variable is then for another command.

    Raises:
        ConfigError: there are two such services.
    """
    external = [service for service in services if external_stages(service.stages)]
    if PATH not in fields or (by_flag and not external):
        return [(service, fields) for service in services]
    if len(external) > 1:
        names = " and ".join(repr(service.name) for service in external)
        raise ConfigError(
            f"remote_worker_socket is the path of one socket, but the services {names} have remote "
            "stages: set one for each service, penstock.Service(..., remote_worker_socket=PATH)"
        )
    others = {name: value for name, value in fields.items() if name != PATH}
    return [(service, fields if service in external else others) for service in services]
