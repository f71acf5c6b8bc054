"""What a worker from outside is told when it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where a worker from outside attaches, and as what."""

    path: str
    """The socket of the server."""
    stage: str | None = None
    """The stage to serve; None where the service has but one for workers from outside."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """The keyword arguments of the stage's `setup`."""
    once: bool = False
    """Whether it ends, and well, when the server has gone."""
