"""Which paths a service has.

With one service they are `/predict` and `/batch`.  With several, each has `/NAME/predict` and `/NAME/batch`, and there
are no plain ones: a path says which model it means.  No name needs to be escaped: `Service` sees to that.  Its
`predict_path` is one path more, beside `/predict`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.hosting.servable import Servable
from penstock.server.protocols.batch import BatchRoute
from penstock.server.protocols.predict import PredictRoute
from penstock.server.protocols.route import ServiceRoute
from penstock.server.status import Problems

KINDS: tuple[type[ServiceRoute], ...] = (PredictRoute, BatchRoute)
"""The ways to call a service over HTTP.

A further one is a file beside this one, the file's name in setup.py's list, and its class here.
"""


def routes_of(services: Sequence[Servable], problems: Problems, options: ServerOptions) -> dict[str, ServiceRoute]:
    """The routes of `services` by path; ConfigError for a `predict_path` that is the path of another."""
    routes: dict[str, ServiceRoute] = {}
    for service in services:
        prefix = f"/{service.name}" if len(services) > 1 else ""
        for kind in KINDS:
            path = f"{prefix}/{kind.verb}"
            routes[path] = kind(path, service, problems, options)
    for service in services:
        beside = service.options.predict_path
        if beside is not None:
            if beside in routes:
                raise path_in_use(beside, service.name)
            routes[beside] = PredictRoute(beside, service, problems, options)
    return routes


def path_in_use(path: str, service: str) -> ConfigError:
    """The refusal of a `predict_path` that the server has already."""
    return ConfigError(f"predict_path of service {service!r} cannot be {path}: the server already uses this path")
