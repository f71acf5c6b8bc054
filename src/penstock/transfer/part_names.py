"""Name the files of an attempt: its input, and what it writes before it is committed.

Pure: a name follows from the place, the job and the fence.

Contract
--------
* No two attempts, of whatever jobs, have one name beside one place, and no place has the name of a part.
* No two attempts have one name for their downloads.
* A name is at most 255 bytes long, as file systems have it.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

LONGEST_NAME_BYTES = 255
LONGEST_ID_BYTES = 100
"""The longest encoded id that the name of a download has whole."""
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


def download_name(job_id: str, fence: int) -> str:
    """The name, without a suffix, of the file into which attempt `fence` of a job fetches its input: ``JOB.FENCE``.

    A long id is cut, and has a hash of itself behind it: many ids may begin alike.
    """
    encoded = encode_id(job_id)
    if len(encoded) > LONGEST_ID_BYTES:
        digest = hashlib.sha256(job_id.encode()).hexdigest()[:32]
        encoded = f"{encoded[:KEPT_CHARACTERS]}={digest}"  # an encoded id has no `=`
    return f"{encoded}.{fence}"


def encode_id(job_id: str) -> str:
    """A job's id as a part of a file's name."""
    return quote(job_id, safe="").replace(".", "%2E")


def is_part(name: str) -> bool:
    """Whether `name` looks like that of a part."""
    return name.startswith(".") and name.endswith(".part")
