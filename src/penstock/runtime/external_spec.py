"""A stage whose workers are started by somebody else, as the author of a service describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from penstock.codec.formats import CODEC_NAMES, Codec
from penstock.codec.schema import accepts as formats_of
from penstock.codec.schema import type_name
from penstock.config import Batch, check_stage_name, checked_keywords
from penstock.errors import ConfigError
from penstock.runtime.spec import External, StageSpec, batch_policy, stage_options
from penstock.runtime.stage_check import checked_examples


@checked_keywords("penstock.remote")
def remote(
    name: str,
    *,
    batch: Batch | None = None,
    accepts: Sequence[str] = ("json", "msgpack"),
    item: Any = Any,
    result: Any = Any,
    prefetch: int = 1,
    max_in_flight_batches: int | None = None,
    max_queued: int | None = None,
    timeout: float | None = None,
    orphan_timeout: float | Literal["auto"] = "auto",
    unhealthy_after: float = 30.0,
    retry: bool = True,
    examples: Sequence[Any] = (),
) -> StageSpec:
    """Describe a stage whose workers attach from outside: see `penstock worker run`.

    Args:
        name: unique within the service; the workers say it.
        batch: the batch policy; None: a worker gets one item at a time.
        accepts: the formats that its workers read and write, the preferred one first: "json", "msgpack", "raw", "npy".
            Items cross in the format that a client sent them in.
        item: the type of one item, for OpenAPI and for the conversion between stages; workers check it themselves.
        result: the type of one result, likewise.
        prefetch: as of a plain stage of `penstock.stage`.
        max_in_flight_batches: as of `penstock.stage`.
        max_queued: as of `penstock.stage`.
        timeout: as of `penstock.stage`; a worker that is over it is told, and cut off.
        orphan_timeout: as of `penstock.stage`, likewise.
        unhealthy_after: as of `penstock.stage`, likewise; no example is run.
        retry: whether items whose worker died are run once more, alone.
        examples: inputs of the stage, for OpenAPI and for the check of deep health.

    Raises:
        ConfigError: an argument has a value it cannot have.
    """
    given = locals()  # first, so that it has only the arguments; the options are looked up in it by name
    check_stage_name(name)
    policy = batch_policy(name, None, batch)
    for what, kind in (("item", item), ("result", result)):
        _check_type(name, what, kind)
    return StageSpec(
        target=None,
        name=name,
        workers=0,
        batch=policy,
        examples=checked_examples(name, examples),
        options=stage_options(name, given),
        external=External(_codecs(name, accepts), item, result),
    )


def _check_type(name: str, what: str, kind: Any) -> None:
    try:
        if formats_of(kind):
            return
    except ConfigError:
        pass
    raise ConfigError(
        f"stage {name!r}: {what} must be a type that JSON and MessagePack support, such as dict[str, float], got "
        f"`{type_name(kind)}`"
    )


def _codecs(name: str, accepts: Any) -> tuple[Codec, ...]:
    names = () if isinstance(accepts, str) or not isinstance(accepts, Sequence) else tuple(accepts)
    known = all(isinstance(each, str) and each in CODEC_NAMES for each in names)
    if not names or not known or len(set(names)) < len(names):
        raise ConfigError(
            f"stage {name!r}: accepts must be a list of different formats of {', '.join(CODEC_NAMES)}, got {accepts!r}"
        )
    return tuple(CODEC_NAMES[each] for each in names)
