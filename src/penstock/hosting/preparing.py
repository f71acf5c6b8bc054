"""What every host does before it runs services: its streams, its log, and what its workers write."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import LogOptions
from penstock.hosting.build import why_not_compiled
from penstock.hosting.logs import log, set_up_logging
from penstock.hosting.servable import Servable
from penstock.hosting.stdio import fill_standard_streams


def prepare_host(services: Sequence[Servable], logs: LogOptions) -> None:
    """Have this process, and the workers of `services`, write their lines as `logs` say.

    Every caller of `services` comes through this host, and sends bytes.
    """
    fill_standard_streams()
    set_up_logging(logs.format, logs.level)
    if why := why_not_compiled():
        log.warning("%s", why)
    for service in services:
        service.logs = logs
        service.served = True
