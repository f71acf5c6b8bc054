"""What a client takes from the world: time, chance, names, and the wire.  A test hands in its own."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.client.client_options import ServerAddress
from penstock.client.wire import Wire
from penstock.core.clock import Clock
from penstock.hosting.loop_clock import LoopClock


def new_name() -> str:
    """A name that nobody else has."""
    return uuid.uuid4().hex


def connect_httpx(address: ServerAddress, most_kept: int) -> Wire:
    """A wire over httpx, which keeps up to `most_kept` connections open."""
    from penstock.client.httpx_ import HttpxWire

    return HttpxWire(address, most_kept)


@dataclass(frozen=True, slots=True)
class World:
    """The world as it is; each part may be another."""

    clock: Clock = field(default_factory=LoopClock)
    wall: Callable[[], float] = time.time
    """The moment in Unix seconds."""
    chance: Callable[[], float] = random.random
    """A random number from 0 up to 1."""
    new_id: Callable[[], str] = new_name
    """The id of a request whose caller names none."""
    new_key: Callable[[], str] = new_name
    """The key of a job whose submitter names none."""
    connect: Callable[[ServerAddress, int], Wire] = connect_httpx
