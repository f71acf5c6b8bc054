"""Name what an attempt writes before it is committed.  Pure: the name follows from the place, the job and the fence.

Contract
--------
* No two attempts, of whatever jobs, have one name beside one place, and no place has the name of a part.
* A name is at most 255 bytes long, as file systems have it.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

LONGEST_NAME_BYTES = 255
KEPT_CHARACTERS = 40
"""How much of a long name is kept, so that somebody who lists the folder knows what it is; 160 bytes at most."""


def part_name(name: str, job_id: str, fence: int) -> str:
    """The name of the part of `name` that attempt `fence` of a job writes: ``.NAME.JOB.FENCE.part``.

    In it the job's id is percent-encoded and has no dots, so that the name can be read in one way only.  A name that
    would be too long is cut, and has a hash of itself and of the id in the id's place.
    """
    encoded = encode_id(job_id)
    whole = f".{name}.{encoded}.{fence}.part"
    if len(whole.encode()) <= LONGEST_NAME_BYTES:
        return whole
    digest = hashlib.sha256(f"{len(name)}:{name}{job_id}".encode()).hexdigest()[:32]
    return f".{name[:KEPT_CHARACTERS]}.={digest}.{fence}.part"  # an encoded id has no `=`


def encode_id(job_id: str) -> str:
    """A job's id as a part of a file's name."""
    return quote(job_id, safe="").replace(".", "%2E")


def is_part(name: str) -> bool:
    """Whether `name` looks like that of a part."""
    return name.startswith(".") and name.endswith(".part")
