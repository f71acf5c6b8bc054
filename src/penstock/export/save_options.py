"""What `save` is told besides the model, the features and the rows; checked at birth, before anything is asked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.artifact.drafting import check_absent
from penstock.artifact.manifest import GraphFormat
from penstock.config import Batch, check_service_name
from penstock.errors import ConfigError
from penstock.export.naming import check_output_names


@dataclass(frozen=True)
class SaveOptions:
    """The options of `save`, which explains them."""

    name: str
    outputs: Sequence[str] | None
    classes: Sequence[Any] | None
    batch: Batch
    formats: Sequence[str] | None
    tolerance: tuple[float, float]
    max_bytes: int
    inline_limit: int
    outside: Sequence[str]
    shard_bytes: int
    metadata: Mapping[str, Any]
    run: str | None = None
    """The training run that saves."""

    def __post_init__(self) -> None:
        try:
            check_service_name(self.name)
        except ConfigError as error:
            raise ConfigError(f"name: {error}") from None
        if not isinstance(self.batch, Batch):
            raise ConfigError(f"batch must be a penstock.Batch, got {self.batch!r}")
        _check_tolerance(self.tolerance)
        for limit in ("max_bytes", "inline_limit", "shard_bytes"):
            value = getattr(self, limit)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{limit} must be an integer of at least 1, got {value!r}")
        if self.outputs is not None:
            _check_list("outputs", self.outputs)
            check_output_names(self.outputs)
        if isinstance(self.outside, str) or not isinstance(self.outside, Collection):
            raise ConfigError(f"outside must be a list of the paths of layers, got {self.outside!r}")
        if self.formats is not None:
            _check_list("formats", self.formats)
        if self.classes is not None:
            _check_list("classes", self.classes)
            _check_json("classes", list(self.classes))
        if not isinstance(self.metadata, Mapping):
            raise ConfigError(f"metadata must be a dict, got {self.metadata!r}")
        _check_json("metadata", dict(self.metadata))

    def chosen_formats(self, possible: Sequence[GraphFormat], framework: str) -> tuple[GraphFormat, ...]:
        """The formats to write, of those that are possible; the first of these where none was asked for.

        Raises:
            ConfigError: one that was asked for is not possible.
        """
        if self.formats is None:
            return (possible[0],)
        known = {str(name): name for name in possible}
        for name in self.formats:
            if name not in known:
                raise ConfigError(
                    f"formats: {framework} cannot be exported to {name!r}; supported: {' or '.join(possible)}"
                )
        return tuple(dict.fromkeys(known[name] for name in self.formats))


def check_free_path(path: str | os.PathLike[str]) -> Path:
    """The path of the artifact; ConfigError where there is something already, be it a link that leads nowhere."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"path must be the path of the directory to create, got {path!r}")
    target = Path(path)
    check_absent(target)
    return target


def _check_tolerance(given: Any) -> None:
    fits = isinstance(given, tuple | list) and len(given) == 2
    if not fits or not all(_is_number(part) and 0 <= part < math.inf for part in given):
        raise ConfigError(
            f"tolerance must be two numbers of at least 0, absolute and relative, such as (1e-5, 1e-5), got {given!r}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_list(what: str, given: Any) -> None:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ConfigError(f"{what} must be a list that is not empty, got {given!r}")


def _check_json(what: str, given: Any) -> None:
    try:
        same = json.loads(json.dumps(given, allow_nan=False)) == given
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} must be valid as JSON: {error}") from error
    if not same:
        raise ConfigError(
            f"{what} must be the same after it is written as JSON and read again: use keys of text and no "
            f"tuples, got {given!r}"
        )
