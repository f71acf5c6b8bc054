"""Penstock takes Python models to production: batches, stages in worker processes, an answer for every caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.config import Batch, ServerOptions, ServiceOptions
from penstock.core.state import State
from penstock.errors import (
    ArtifactInvalid,
    Cancelled,
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    ExportRefused,
    InvalidItem,
    LeaseLost,
    NotReady,
    Overloaded,
    PenstockError,
    PublishFailed,
    QuotaExceeded,
    RequestError,
    RunFailed,
    RunUnavailable,
    ServerError,
    StageFailed,
    StartFailed,
    WorkerLost,
)
from penstock.worker.stage import Stage, WorkerInfo

if TYPE_CHECKING:
    from penstock import export, features, training
    from penstock.codec.example import Example
    from penstock.features.feature_spec import Features
    from penstock.runtime.external_spec import remote
    from penstock.runtime.spec import stage
    from penstock.server.asgi import asgi
    from penstock.server.wsgi import wsgi
    from penstock.service import Service
    from penstock.worker.counting import count
    from penstock.worker.current_call import current_requests
    from penstock.worker.declaration import Declaration

__version__ = "0.1.0"

__all__ = [
    "ArtifactInvalid",
    "Batch",
    "Cancelled",
    "ConfigError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Declaration",
    "Example",
    "ExportRefused",
    "Features",
    "InvalidItem",
    "LeaseLost",
    "NotReady",
    "Overloaded",
    "PenstockError",
    "PublishFailed",
    "QuotaExceeded",
    "RequestError",
    "RunFailed",
    "RunUnavailable",
    "ServerError",
    "ServerOptions",
    "Service",
    "ServiceOptions",
    "Stage",
    "StageFailed",
    "StartFailed",
    "State",
    "WorkerInfo",
    "WorkerLost",
    "asgi",
    "count",
    "current_requests",
    "export",
    "features",
    "remote",
    "stage",
    "training",
    "wsgi",
]

# Loaded on first use: a worker process imports this package too, and needs none of them unless the module its stage
# lives in builds a service.
_LATER = {
    "Declaration": "penstock.worker.declaration",
    "Example": "penstock.codec.example",
    "Features": "penstock.features.feature_spec",
    "Service": "penstock.service",
    "asgi": "penstock.server.asgi",
    "count": "penstock.worker.counting",
    "current_requests": "penstock.worker.current_call",
    "remote": "penstock.runtime.external_spec",
    "stage": "penstock.runtime.spec",
    "wsgi": "penstock.server.wsgi",
}
_PACKAGES = ("export", "features", "training")
"""Loaded on first use too: they are for those who train models, and most need numpy."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"penstock.{name}")
    if name in _LATER:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)  # a stage may ask for it at each item
        return found
    from penstock.spelling import explain_name

    raise AttributeError(explain_name(__name__, name))
