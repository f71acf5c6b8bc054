"""What msgspec keeps on a class of its annotations, read by one thread at a time.

msgspec reads them when it first meets the class, and hangs what it found on the class before that is whole.  Another
thread that meets the class meanwhile works with half of it, and the process ends by SIGSEGV (seen with msgspec 0.22,
for Structs and for dataclasses).  Threads do meet there: each worker of an inline service is one.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from penstock.codec.dataclass_init import read_with_init

_one_at_a_time: Final = threading.RLock()
"""Annotations are code, which may come here again."""


def fill_type_cache(type_: Any) -> None:
    """Read the annotations of `type_` and of all that it mentions; afterwards any thread may use msgspec with it.

    Raises:
        TypeError: msgspec can read nothing as this type, for instance a union of two lists.
    """
    with _one_at_a_time:
        read_with_init(type_)
