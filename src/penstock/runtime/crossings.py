"""Decide in which format items cross from one stage to the next, and between a service and its own process.  Pure.

Between two stages of ours everything is pickled.  A worker from outside is never sent a pickle, and none is believed
that it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from penstock.codec.formats import Codec
from penstock.errors import ConfigError
from penstock.runtime.spec import StageSpec, preferred


def crossings(specs: Sequence[StageSpec]) -> tuple[Codec, ...]:
    """The format before each stage, and behind the last one: one more than there are stages.

    The first and the last are those of callers in process; what a client sends over HTTP crosses there as it is.

    Raises:
        ConfigError: two remote stages in a row have no format in common.
    """
    between = [_between(before, after) for before, after in pairwise(specs)]
    return (specs[0].crossing, *between, specs[-1].crossing)


def _between(before: StageSpec, after: StageSpec) -> Codec:
    if before.external is None or after.external is None:
        return before.crossing if after.external is None else after.crossing
    both = [codec for codec in before.external.accepts if codec in after.external.accepts]
    if not both:
        raise ConfigError(
            f"stages {before.name!r} and {after.name!r} have no format in common: add a common format to accepts of "
            "both"
        )
    return preferred(both)
