"""Decide which calls and which batches a fault is caused in, to try how clients and operators take it.

Contract
--------
* Whether a fault is caused is a pure function of the seed, the kind of the fault and a number: that of the call, or for
  `kill` that of the batch.  The same seed gives the same faults to the same numbers, on every machine.
* Each kind is drawn by itself, with its own fraction of the numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from penstock.chaos_text import CHAOS_KINDS, read_chaos


@dataclass(frozen=True, slots=True)
class Chaos:
    """The fractions of calls that get each fault, from 0 to 1; `kill` is one of batches.  Delays take `seconds`."""

    seed: int = 0
    error: float = 0.0
    delay: float = 0.0
    seconds: float = 0.0
    kill: float = 0.0
    drop: float = 0.0

    @classmethod
    def read(cls, text: str) -> Chaos:
        """What the option `chaos` says; ConfigError if it cannot be read."""
        found = read_chaos(text)
        return cls(seed=int(found.pop("seed", 0)), **found)

    def hits(self, kind: str, number: int) -> bool:
        """Whether the fault of this kind is caused in the call, or the batch, of this number."""
        fraction: float = getattr(self, kind)
        if not fraction:
            return False
        drawn = hashlib.blake2b(f"{self.seed} {kind} {number}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < fraction * 2**64

    @property
    def words(self) -> str:
        """What is on, as the option has it."""
        told = [f"seed={self.seed}"]
        for kind in CHAOS_KINDS:
            fraction = getattr(self, kind)
            if fraction:
                told.append(f"{kind}={fraction:g}" + (f":{self.seconds:g}" if kind == "delay" else ""))
        return ",".join(told)
