"""Ask a stage what it declares for one `setup`, and join that with what its annotations say."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from penstock.codec.annotations import Signature, signature
from penstock.errors import ConfigError
from penstock.worker.declaration import Declaration
from penstock.worker.stage import Stage


def declaration_of(target: Any, setup: Mapping[str, Any]) -> Declaration:
    """What `target` declares for the arguments `setup`; raises what its `declare` raises.

    Raises:
        ConfigError: what it returned is no Declaration.
    """
    if not inspect.isclass(target) or not issubclass(target, Stage):
        return Declaration()
    declared = target.declare(**setup)
    if not isinstance(declared, Declaration):
        raise ConfigError(f"{target.__qualname__}.declare must return a penstock.Declaration, got {declared!r}")
    return declared


def declared_signature(target: Any, declared: Declaration, *, batched: bool) -> Signature:
    """The item type and the result type of `target`: what is declared, else what its annotations say.

    Raises:
        ConfigError: an annotation that is needed cannot be resolved, or is no batch; see `codec.annotations`.
    """
    if declared.item is not None and declared.result is not None:
        return Signature(declared.item, declared.result)
    annotated = signature(target, batched=batched)
    return Signature(
        annotated.item if declared.item is None else declared.item,
        annotated.result if declared.result is None else declared.result,
    )
