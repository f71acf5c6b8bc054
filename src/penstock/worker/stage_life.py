"""What befalls a stage object besides its batches: it is warmed up, asked how it is, and torn down.

Every worker does these things alike, whether the coordinator has started it or it came from outside.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.codec.example import inputs_of
from penstock.codec.formats import Codec
from penstock.codec.schema import type_name
from penstock.codec.type_check import misfit
from penstock.hosting.guarded_log import guarded_logger
from penstock.transport.messages import Problem
from penstock.worker.problems import SINGLE_ITEM, USER_ERRORS, describe_error

log = guarded_logger("penstock.worker")


class WarmsUp(Protocol):
    """Runs examples: a `Runner`, or its substitute where a stage waits."""

    def warm_up(
        self, examples: list[Any], max_size: int, formats: Sequence[Codec] = (), *, tells: bool = True
    ) -> list[str]:
        """As `Runner.warm_up`."""


def warm_up_stage(
    stage: Any,
    runner: WarmsUp,
    name: str,
    *,
    item: Any,
    batched: bool,
    max_size: int,
    formats: Sequence[Codec],
    tells: bool,
) -> None:
    """Run the examples of `stage`, which is called `name`; raises what it raises.

    `item` is the type of one item.  With `tells`, a warning says which example is no item, and which result cannot be
    written in some of `formats`: one worker of a stage says it for all.
    """
    examples = list(stage.examples)
    if tells:
        tell_misfit(name, item, examples, batched=batched)
    troubles = runner.warm_up(examples, max_size, formats, tells=tells)
    if tells:
        tell_troubles(name, troubles)


def tell_troubles(name: str, troubles: list[str]) -> None:
    """Warn of the examples whose results cannot be written in some format; `troubles` has a sentence for each."""
    if troubles:
        others = f" (and {len(troubles) - 1} more of its examples)" if len(troubles) > 1 else ""
        log.warning("stage %r: cannot write the result in every format: %s%s", name, troubles[0], others)


def tell_misfit(name: str, item: Any, examples: list[Any], *, batched: bool) -> None:
    """Warn of the first example that is no item: `predict` may well fail on it, or be warmed up for nothing."""
    for index, example in enumerate(inputs_of(examples)):
        reason = misfit(item, example)
        if reason:
            if not batched and reason.startswith("expected `array`"):  # a batch policy may have been forgotten
                reason += f"; {SINGLE_ITEM}"
            log.warning("stage %r: examples[%d] does not fit `%s`: %s", name, index, type_name(item), reason)
            return


def check_health(stage: Any) -> Problem | None:
    """Run the stage's `health`; None if it returned, else what it raised."""
    try:
        stage.health()
    except USER_ERRORS as error:
        return describe_error(error)
    return None


def tear_down(stage: Any, name: str) -> None:
    """Run the stage's `teardown`; what it raises is logged."""
    try:
        stage.teardown()
    except USER_ERRORS as error:
        tell_failed_teardown(name, error)


def tell_failed_teardown(name: str, error: BaseException) -> None:
    """Log what `teardown` raised."""
    # Not `log.exception`: what a stage raises may be of any length.
    log.error("stage %r: teardown failed\n%s", name, describe_error(error).traceback.rstrip())


def freeze_model() -> None:
    """Keep the cycle collector from looking at the model and its libraries between batches: they stay for good."""
    gc.collect()
    gc.freeze()
