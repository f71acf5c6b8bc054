"""Which GPUs each worker of a stage gets.  They are given by an environment variable; no library is asked or loaded."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from penstock.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""What CUDA reads when it is first used: the GPUs that a process sees.  It counts them from 0 in this order."""

HIDES_ALL = ("", "-1", "NoDevFiles")
"""Values of the variable, or of the first entry in it, with which a process sees no GPU."""

Gpus: TypeAlias = tuple[int | str, ...]
"""The GPUs of one worker: numbers from 0, or ids as ``GPU-...`` and ``MIG-...``."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9/._:-]*")
"""No comma, which would make two of one."""


def read_gpus(label: str, gpus: Any) -> tuple[Gpus, ...]:
    """The GPUs of each worker of stage `label`; () for None.

    Raises:
        ConfigError: `gpus` is no list with an entry for each worker, or an entry is no GPU and no list of GPUs.
    """
    if gpus is None:
        return ()
    if not _is_list(gpus) or not gpus:
        raise ConfigError(f"stage {label!r}: gpus takes a list with an entry for each worker, got {gpus!r}")
    return tuple(_read_entry(label, entry) for entry in gpus)


def check_environments(label: str, gpus: Sequence[Gpus], env: Sequence[Mapping[str, str]]) -> None:
    """ConfigError if `env` sets what is made of `gpus`."""
    if gpus and any(VARIABLE in mapping for mapping in env):
        raise ConfigError(f"stage {label!r}: gpus sets {VARIABLE}, and env does too: leave one of them out")


def variable_of(gpus: Gpus) -> str:
    """The value of the variable for a worker with these GPUs."""
    return ",".join(map(str, gpus))


def doubtful_sharing(values: Sequence[str]) -> list[str]:
    """A sentence for each value of the variable that gives several workers of one stage the same GPUs.

    `values` has that of each worker; "" where it is not set, which says nothing.
    """
    sharing: dict[str, list[str]] = {}
    for worker, value in enumerate(values):
        if value.partition(",")[0].strip() not in HIDES_ALL:
            sharing.setdefault(value, []).append(str(worker))
    return [
        f"workers {', '.join(workers)} share {VARIABLE}={value}: their batches compete for one device, so each takes "
        "longer and gains nothing from the other, and memory is taken once for each worker. Give each its own with "
        "gpus=, or start fewer; with max_batches=1 one computes and the others are ready for when it ends. Several pay "
        f"where they overlap work on the CPU, and a stage without a GPU has env={{'{VARIABLE}': ''}}"
        for value, workers in sharing.items()
        if len(workers) > 1
    ]


def _read_entry(label: str, entry: Any) -> Gpus:
    each = tuple(entry) if _is_list(entry) else (entry,)
    found = tuple(_plain(gpu) for gpu in each if _is_gpu(gpu))
    if not found or len(found) != len(each):
        raise ConfigError(
            f"stage {label!r}: gpus takes numbers from 0, ids as 'GPU-...', or lists of them that are not empty, "
            f"got {entry!r}"
        )
    if len(set(map(str, found))) != len(found):
        raise ConfigError(f"stage {label!r}: a worker gets each of its GPUs once, got {entry!r}")
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return _ID.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= sys.maxsize


def _plain(gpu: int | str) -> int | str:
    """A plain value of `gpu`: a message to a worker carries no subclasses."""
    return str(gpu) if isinstance(gpu, str) else int(gpu)
