"""How many workers stages get by `--workers`: one number for every stage, or a number for each stage that is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.service import Service


class Pools(NamedTuple):
    """The numbers of workers that were asked for."""

    each: int | None = None
    """The workers of every stage whose workers are started here; None leaves a stage as its author described it."""
    named: Mapping[str, int] = MappingProxyType({})
    """The workers of stages by name."""


def parse_pools(text: str | None) -> Pools:
    """What `text` asks for: ``2``, ``embed=4,rank=1``, or nothing.

    Raises:
        ConfigError: it is neither, a number is less than 1, or a stage is named twice.
    """
    if text is None:
        return Pools()
    if "=" not in text:
        return Pools(each=_number(text, text))
    named: dict[str, int] = {}
    for part in text.split(","):
        stage, _, number = part.partition("=")
        if not stage.strip():
            raise _unreadable(text)
        if stage.strip() in named:
            raise ConfigError(f"workers names stage {stage.strip()!r} twice: {text!r}")
        named[stage.strip()] = _number(number, text)
    return Pools(named=MappingProxyType(named))


def _number(digits: str, text: str) -> int:
    try:
        number = int(digits)
    except ValueError:
        raise _unreadable(text) from None
    if number < 1:
        raise ConfigError(f"workers must be at least 1, got {text!r}")
    return number


def _unreadable(text: str) -> ConfigError:
    return ConfigError(f"workers must be a number, as in 2, or numbers by stage, as in embed=4,rank=1; got {text!r}")


def resized(services: Sequence[Service], pools: Pools, *, by_flag: bool) -> list[Service]:
    """`services` with as many workers as `pools` says.

    A number for every stage changes nothing where all workers attach from outside.  As a flag that is a mistake, and
    `by_flag` says whether it is one.

    Raises:
        ConfigError: no service has a stage of that name, or a stage says of each worker where it runs, and has another
            number of them.  Or workers are asked for where they attach from outside.
    """
    there = [spec.name for service in services for spec in service.stages]
    for name in pools.named:
        if name not in there:
            raise ConfigError(f"workers: unknown stage {name!r}; the stages are {', '.join(dict.fromkeys(there))}")
    if (
        by_flag
        and pools.each is not None
        and all(spec.external is not None for service in services for spec in service.stages)
    ):
        raise ConfigError(
            f"workers: {pools.each} applies to no stage: {', '.join(dict.fromkeys(there))} have remote workers"
        )
    return [_resized(service, pools) for service in services]


def _resized(service: Service, pools: Pools) -> Service:
    numbers = {
        spec.name: pools.named.get(spec.name, pools.each if spec.external is None else None) for spec in service.stages
    }
    wanted = {name: number for name, number in numbers.items() if number is not None}
    return service.configured(workers=wanted) if wanted else service
