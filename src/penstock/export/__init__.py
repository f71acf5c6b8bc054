"""Save a trained model as an artifact that is proved, publish it, and load it as a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.export.artifact_service import load
    from penstock.export.releasing import publish, rollback
    from penstock.export.saving import ExportReport, save

__all__ = ["ExportReport", "load", "publish", "rollback", "save"]

# Loaded on first use: who serves needs none of what saves, and the other way round.
_LATER = {
    "ExportReport": "penstock.export.saving",
    "load": "penstock.export.artifact_service",
    "publish": "penstock.export.releasing",
    "rollback": "penstock.export.releasing",
    "save": "penstock.export.saving",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
