"""Runs of training: tasks that are done once whatever dies, and one published model at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.training.training_run import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "Run":
        return import_module("penstock.training.training_run").Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
