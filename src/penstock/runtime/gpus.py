"""Which GPUs each worker of a stage gets.  They are given by an environment variable; no library is asked or loaded.

The numbers of a stage count what this process sees, as CUDA counts for a program: under ``CUDA_VISIBLE_DEVICES=3,5``,
which a scheduler may have set, 0 is the GPU 3.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from penstock.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""What CUDA reads when it is first used: the GPUs that a process sees.  It counts them from 0 in this order."""

FOLDER = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver has a folder for each GPU."""

Gpus: TypeAlias = tuple[int | str, ...]
"""The GPUs of one worker: numbers from 0, or ids as ``GPU-...`` and ``MIG-...``."""

_NAME = re.compile(r"[0-9]{1,19}|(?:GPU|MIG)-[A-Za-z0-9/._:-]+")
"""How a GPU may be written.  A comma would make two of one."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}(?![0-9])")
"""How an entry of the variable begins that CUDA takes for a number; the rest of it is not read."""
_ID_KINDS = ("GPU-", "MIG-")


class GpusHere(NamedTuple):
    """The GPUs of this process, as far as it can know without CUDA."""

    variable: str | None
    """The value that it was started with; None: it sees every GPU of the machine."""
    devices: int | None
    """How many the driver tells of; None where it tells nothing."""


def gpus_here(environ: Mapping[str, str], folder: Path = FOLDER) -> GpusHere:
    """Look at the environment, and at the driver's folder."""
    try:
        count = sum(1 for _ in folder.iterdir())
    except OSError:
        return GpusHere(environ.get(VARIABLE), None)
    return GpusHere(environ.get(VARIABLE), count)


def visible(value: str) -> list[str]:
    """The GPUs that a process with this value sees.

    CUDA reads numbers, or ids of the kind that the first one has, up to the first entry that is none.  A GPU that is
    there twice hides all of them.  PyTorch has it so (`torch.cuda._parse_visible_devices`).
    """
    entries = [entry.strip() for entry in value.split(",")]
    kind = next((kind for kind in _ID_KINDS if entries[0].startswith(kind)), "")
    found: list[str] = []
    for entry in entries:
        gpu = _entry(entry, kind)
        if not gpu:
            break
        if any(_is_one(gpu, other) for other in found):
            return []
        found.append(gpu)
    return found


def read_gpus(label: str, gpus: Any) -> tuple[Gpus, ...]:
    """The GPUs of each worker of stage `label`; () for None.

    Raises:
        ConfigError: `gpus` is no list with an entry for each worker, or an entry is no GPU and no list of GPUs.
    """
    if gpus is None:
        return ()
    if not _is_list(gpus) or not gpus:
        raise ConfigError(f"stage {label!r}: gpus must be a list with an entry for each worker, got {gpus!r}")
    return tuple(_read_entry(label, entry) for entry in gpus)


def check_environments(label: str, gpus: Sequence[Gpus], env: Sequence[Mapping[str, str]]) -> None:
    """ConfigError if `env` sets what is made of `gpus`."""
    if gpus and any(VARIABLE in mapping for mapping in env):
        raise ConfigError(f"stage {label!r}: gpus and env both set {VARIABLE}: remove one of them")


def variable_of(label: str, gpus: Gpus, here: GpusHere) -> str:
    """The value of the variable for a worker of stage `label` with these GPUs.

    Raises:
        ConfigError: one of them is not among those that this process sees, or is there twice, or numbers and ids are
            mixed.
    """
    if here.variable is None:
        found = [_name(gpu) for gpu in gpus]
    else:
        seen = visible(here.variable)
        if not seen:
            return here.variable
        found = [_seen_as(label, gpu, seen, here) for gpu in gpus]
        if _has_one_twice(found):
            raise ConfigError(
                f"stage {label!r}: a worker cannot have the same GPU twice, but with {VARIABLE}={here.variable} "
                f"gpus={list(gpus)!r} are {', '.join(found)}"
            )
    value = ",".join(found)
    if len(visible(value)) < len(found):
        raise ConfigError(
            f"stage {label!r}: gpus={list(gpus)!r} sets {VARIABLE}={value} for a worker, of which CUDA reads only "
            f"{', '.join(visible(value))}: use only numbers, or only ids of one kind"
        )
    return value


def doubtful_gpus(gpus: Sequence[Gpus], values: Sequence[str], here: GpusHere, *, may_share: bool) -> list[str]:
    """Sentences about GPUs that the workers of a stage will not see, and those that several see.

    Args:
        gpus: those of each worker, as given; empty where nothing is said about them.
        values: the value of the variable in each worker; "" where it is not set, which says nothing.
        here: those of this process.
        may_share: whether several workers may have the same.
    """
    words = []
    numbers = {number for each in gpus for number in map(_number, each) if number is not None}
    if gpus and here.variable is not None and not visible(here.variable):
        words.append(
            f"gpus= is set, but this process was started with {VARIABLE}={here.variable!r}, which hides all GPUs: its "
            "workers see none"
        )
    elif here.variable is None and here.devices is not None:
        words += [
            f"gpus= names GPU {gpu} (counted from 0), but {FOLDER} has {here.devices}: its worker will not see that GPU"
            for gpu in sorted(numbers)
            if gpu >= here.devices
        ]
    return words if may_share else [*words, *_sharing(values)]


def _sharing(values: Sequence[str]) -> list[str]:
    """A sentence for each group of workers that share GPUs."""
    workers_of: dict[str, list[str]] = {}
    for worker, value in enumerate(values):
        for gpu in visible(value):
            known = next((each for each in workers_of if _is_one(each, gpu)), gpu)
            workers_of.setdefault(known, []).append(str(worker))
    shared: dict[str, list[str]] = {}
    for gpu, workers in workers_of.items():
        if len(workers) > 1:
            shared.setdefault(", ".join(workers), []).append(gpu)
    return [
        f"workers {workers} share {VARIABLE}={','.join(each)}: their batches compete for one device, so each runs "
        "longer, and each worker uses its own device memory. Assign GPUs with gpus=, start fewer workers, or set "
        "max_in_flight_batches=1 so that one runs while the others are on standby. Sharing helps only if workers "
        f"overlap work on the CPU; for a stage that uses no GPU set env={{'{VARIABLE}': ''}}"
        for workers, each in shared.items()
    ]


def _entry(entry: str, kind: str) -> str:
    """The GPU that CUDA reads in an entry of a list with ids of this `kind`, or with numbers; "" for none."""
    if kind:
        return entry if entry.startswith(kind) and entry != kind else ""
    begin = _NUMBER.match(entry)
    number = -1 if begin is None else int(begin[0])
    return str(number) if number >= 0 else ""


def _is_one(gpu: str, other: str) -> bool:
    """Whether both are the same GPU: CUDA takes the beginning of an id for it, but not of one as `MIG-GPU-.../1/2`."""
    if gpu == other or gpu.isdecimal() or "/" in gpu or "/" in other:
        return gpu == other
    return gpu.startswith(other) or other.startswith(gpu)


def _has_one_twice(gpus: Sequence[str]) -> bool:
    return any(_is_one(*pair) for pair in combinations(gpus, 2))


def _name(gpu: int | str) -> str:
    """A GPU as the variable has it."""
    number = _number(gpu)
    return str(gpu) if number is None else str(number)


def _number(gpu: int | str) -> int | None:
    """The number of a GPU, which may be written as text; None for an id."""
    return int(gpu) if str(gpu).isdecimal() else None


def _seen_as(label: str, gpu: int | str, seen: Sequence[str], here: GpusHere) -> str:
    """A GPU as the variable of this process has it, or an id as it was given."""
    number = _number(gpu)
    if number is None:
        return _known(label, str(gpu), seen)
    if number < len(seen):
        return seen[number]
    raise ConfigError(
        f"stage {label!r}: gpus= names GPU {number} (counted from 0), but this process sees {len(seen)} with "
        f"{VARIABLE}={here.variable}"
    )


def _known(label: str, name: str, seen: Sequence[str]) -> str:
    """The id `name`, which is seen; CUDA takes the beginning of an id that no other GPU's id has."""
    alike = [each for each in seen if _is_one(each, name)]
    if len(alike) == 1 or seen[0].isdecimal():  # what has a number there has an id that is not known here
        return name
    if alike:
        raise ConfigError(
            f"stage {label!r}: {name!r} of gpus= is ambiguous, it matches {' and '.join(alike)}: write more of the id"
        )
    raise ConfigError(
        f"stage {label!r}: gpus= names {name!r}, but this process sees only {', '.join(seen)}, from {VARIABLE}"
    )


def _read_entry(label: str, entry: Any) -> Gpus:
    each = tuple(entry) if _is_list(entry) else (entry,)
    found = tuple(_plain(gpu) for gpu in each if _is_gpu(gpu))
    if not found or len(found) != len(each):
        raise ConfigError(
            f"stage {label!r}: gpus must have numbers from 0, ids such as 'GPU-...', or non-empty lists of them, got "
            f"{entry!r}"
        )
    if _has_one_twice([_name(gpu) for gpu in found]):
        raise ConfigError(f"stage {label!r}: a worker cannot have the same GPU twice, got {entry!r}")
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return _NAME.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= sys.maxsize


def _plain(gpu: int | str) -> int | str:
    """A plain value of `gpu`: a message to a worker carries no subclasses."""
    return str(gpu) if isinstance(gpu, str) else int(gpu)
