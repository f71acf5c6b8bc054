"""Make the job that a store keeps, of an input and what is asked of it.

Contract
--------
* What is made here is valid: a store checks nothing but its key and its id.
* Two submissions of the same input with the same options have the same digest, whenever and by whomever they are made.
  Inputs are the same where they stand for the same value.
  `id`, `key`, `delay` and `deadline` do not count: a submission that is made once more computes its times anew.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError, InputTooLarge
from penstock.jobs.inputs import JobInput, is_same_input
from penstock.jobs.job_options import JobOptions, check_deadline
from penstock.jobs.store import KeptInput, NewJob

MAX_INLINE: Final = 256 * 1024
"""The largest input in a store, in bytes, unless somebody has set another bound."""


def new_job(given: JobInput | None, options: JobOptions, *, now: float, max_inline_bytes: int = MAX_INLINE) -> NewJob:
    """The job that `options` ask for.

    Args:
        given: the input, or None where `options` name its URL.
        options: what is asked of the job.
        now: the moment of submission, in Unix seconds.
        max_inline_bytes: the largest input, in bytes; 0 takes only empty ones.

    Raises:
        ConfigError: there is no input, or it is given twice; the deadline has passed, or is more than ten years
            ahead.
        InputTooLarge: the input has more bytes than `max_inline_bytes`.
    """
    if given is not None and options.input_url is not None:
        raise ConfigError("give input or input_url, not both")
    if given is None and options.input_url is None:
        raise ConfigError("a job needs an input or an input_url")
    check_deadline(options.deadline, now)
    body, content_type, canonical = given or JobInput(b"", options.content_type or "", b"")
    if len(body) > max_inline_bytes:
        raise InputTooLarge(
            f"the input has {len(body)} bytes, more than max_inline_bytes ({max_inline_bytes}): store it in a file or "
            "a bucket and submit its input_url"
        )
    return NewJob(
        id=options.id if options.id is not None else new_job_id(now),
        body=body,
        content_type=content_type,
        accept=options.accept or "",
        service=options.service,
        key=options.key,
        digest=_digest(
            canonical,
            (content_type, options.accept, options.service, options.priority, options.input_url, options.output_url),
        ),
        priority=options.priority,
        delay=float(options.delay),
        deadline=None if options.deadline is None else float(options.deadline),
        input_url=options.input_url,
        output=options.output_url,
    )


def new_job_id(now: float) -> str:
    """An id that nobody else makes; of two, that of a later millisecond sorts behind the other."""
    return f"{max(0, int(now * 1000)):012x}-{secrets.token_hex(10)}"


def is_same_job(new: NewJob, value: Any, kept: KeptInput) -> bool:
    """Whether `new`, whose input was written from `value`, is the job of `kept`.

    Digests were of an input's bytes once, and jobs from that time are still there.
    """
    if kept.digest in (new.digest, _digest_of(new, new.body)):
        return True
    if kept.body is None or kept.digest != _digest_of(new, kept.body):
        return False
    return is_same_input(value, new.body, kept.body, new.content_type)


def _digest_of(job: NewJob, body: bytes) -> str:
    """The digest of a job with the options of `job` and another input."""
    asked = (job.content_type, job.accept or None, job.service, job.priority, job.input_url, job.output)
    return _digest(body, asked)


def _digest(body: bytes, asked: tuple[str | int | None, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode(asked) + b"\0" + body).hexdigest()
