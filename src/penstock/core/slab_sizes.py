"""How large the slabs of a service are, by what its options say and what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.slab_allocator import PAGE_BYTES
from penstock.errors import ConfigError

DEFAULT_BYTES: Final = 256 * 1024 * 1024
"""Size of each slab without `shm_bytes`, on a machine that is large enough."""
DEFAULT_SHARE: Final = 4
"""All slabs of a service take one part in so many of the limit, at most, where nobody has set `shm_bytes`.

The pages of a slab count as the memory of a container.  One that starts without slabs is to start with them too.
"""


def slab_count(ours: Sequence[bool]) -> int:
    """How many slabs a service has; `ours` says of each stage, in order, whether its workers are processes of ours.

    There is one for the results of each such stage, and one for what arrives, where they are those of the first.
    """
    return sum(ours) + ours[0]


def slab_bytes_each(wanted: int | None, memories: int, limit: int | None, others: int = 0) -> int:
    """The bytes of each of `memories` slabs, whole pages; 0 means that there is to be no slab.

    `wanted` is `shm_bytes` of a service, None where nobody has set it.  `memories` are the slab for what arrives and
    one for each stage whose workers are processes of ours.  `limit` is the memory that the machine or the cgroup
    allows, in bytes, None where it is not known; `others` are the bytes of it that slabs of other services of this
    process have.  Raises ConfigError where what was set is more than the rest.
    """
    left = None if limit is None else max(0, limit - others)
    if wanted is None:
        most = DEFAULT_BYTES if left is None else min(DEFAULT_BYTES, left // DEFAULT_SHARE // memories)
        return most - most % PAGE_BYTES
    together = wanted * memories
    if left is not None and together > left:
        taken = f", of which slabs of other services use {others}" if others else ""
        raise ConfigError(
            f"shm_bytes={wanted} for {memories} slabs needs {together} bytes, but the machine, the cgroup or `ulimit "
            f"-v` allows {limit} bytes of memory for everything, processes included{taken}: set less than "
            f"{left // memories}, or 0 for no shared memory"
        )
    return wanted - wanted % PAGE_BYTES
