"""Stages that are ready for use: `Fetch` has the bytes that a URL names, `Upload` puts bytes there.

Both are waiting stages: a worker has as many transfers in progress as the stage's `concurrency` says.  They go through
`transfer`, as the inputs and outputs of jobs do, and so the same URLs are refused.

A module that describes a service is imported by the workers of all its stages.  Only `setup` loads asyncio and what
opens connections, because a worker of a plain stage needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.config import MIB
from penstock.errors import ConfigError, InvalidItem, TransferRejected
from penstock.option_fields import SECONDS, whole_number
from penstock.worker.stage import Stage

if TYPE_CHECKING:
    from penstock.transfer.carrier import Carrier

__all__ = ["Fetch", "Outgoing", "Upload"]

DEFAULT_BYTES: Final = 16 * MIB
DEFAULT_SECONDS: Final = 30.0
DEFAULT_RETRIES: Final = 2


class Outgoing(msgspec.Struct, frozen=True):
    """Bytes for `Upload` to store, and the URL of their place."""

    url: str
    body: bytes
    content_type: str = "application/octet-stream"


class Fetch(Stage):
    """A stage whose item is a URL, and whose result is the bytes there."""

    _carrier: Carrier

    async def setup(
        self,
        *,
        allow_input: str | None = None,
        allow_net: str | None = None,
        max_bytes: int = DEFAULT_BYTES,
        timeout: float = DEFAULT_SECONDS,
        retries: int = DEFAULT_RETRIES,
    ) -> None:
        """Say what may be fetched, and within which limits.

        Args:
            allow_input: prefixes of ``file://`` and ``s3://``, with commas between; None allows neither.
            allow_net: networks that are not public and that ``http(s)://`` may reach, with commas between.
            max_bytes: the largest input.
            timeout: seconds that one try may take.
            retries: how often a fetch that failed is tried again.

        Raises:
            ConfigError: one of these is not valid, or a library is missing that an allowed place needs.
        """
        self._carrier = _open(allow_input, None, allow_net, max_bytes, timeout, retries)

    async def predict(self, url: str) -> bytes:
        """The bytes at `url`.

        Raises:
            InvalidItem: it may not be fetched, is not there, or has more than `max_bytes`.
            TransferFailed: it could not be fetched, in none of the tries.
        """
        try:
            return await self._carrier.fetch(url)
        except TransferRejected as error:
            raise InvalidItem(str(error)) from None

    async def teardown(self) -> None:
        """End the threads."""
        await self._carrier.close()


class Upload(Stage):
    """A stage whose item is an `Outgoing`, and whose result is its URL once the bytes are there."""

    _carrier: Carrier
    _max_bytes: int

    async def setup(
        self,
        *,
        allow_output: str | None = None,
        allow_net: str | None = None,
        max_bytes: int = DEFAULT_BYTES,
        timeout: float = DEFAULT_SECONDS,
        retries: int = DEFAULT_RETRIES,
    ) -> None:
        """Say what may be stored where.

        Args:
            allow_output: prefixes of ``file://`` and ``s3://``, with commas between; None allows neither.
            allow_net: as that of `Fetch`.
            max_bytes: the largest body.
            timeout: as that of `Fetch`.
            retries: how often an upload that failed is tried again.

        Raises:
            ConfigError: as `Fetch.setup` does.
        """
        self._carrier = _open(None, allow_output, allow_net, max_bytes, timeout, retries)
        self._max_bytes = max_bytes

    async def predict(self, outgoing: Outgoing) -> str:
        """The URL of `outgoing`, whose body is there now.

        Raises:
            InvalidItem: it may not be stored there, or has more than `max_bytes`.
            TransferFailed: it could not be stored, in none of the tries.
        """
        if len(outgoing.body) > self._max_bytes:
            raise InvalidItem(
                f"the body has {len(outgoing.body)} bytes, which is more than max_bytes ({self._max_bytes})"
            )
        try:
            await self._carrier.store(outgoing.url, outgoing.body, outgoing.content_type)
        except TransferRejected as error:
            raise InvalidItem(str(error)) from None
        return outgoing.url

    async def teardown(self) -> None:
        """End the threads."""
        await self._carrier.close()


def _open(
    allow_input: str | None,
    allow_output: str | None,
    allow_net: str | None,
    max_bytes: int,
    timeout: float,
    retries: int,
) -> Carrier:
    from penstock.transfer.addresses import parse_nets
    from penstock.transfer.allowed_places import AllowedPlaces
    from penstock.transfer.carrier import Carrier
    from penstock.transfer.place_rules import PlaceRules

    rules = PlaceRules(
        AllowedPlaces.parse(_text("allow_input", allow_input), "allow_input"),
        AllowedPlaces.parse(_text("allow_output", allow_output), "allow_output"),
        parse_nets(_text("allow_net", allow_net)),
        "allow_net",
    )
    return Carrier(
        rules,
        most_bytes=whole_number(least=1).take("max_bytes", max_bytes),
        timeout=SECONDS.take("timeout", timeout),
        retries=whole_number(least=0).take("retries", retries),
    )


def _text(option: str, value: str | None) -> str:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{option} must be a string of comma-separated values, or None, got {value!r}")
    return value or ""
