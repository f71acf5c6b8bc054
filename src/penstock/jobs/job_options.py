"""What a submitter may ask of a job besides its input: frozen, and checked at birth.

Times are Unix seconds.  The moment of submission is not known here: `new_jobs` compares a deadline with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.codec.formats import MEDIA_TYPES
from penstock.codec.media_types import answer_codec, content_codec, too_long
from penstock.errors import ConfigError, TransferRejected
from penstock.jobs.stores.urls import masked
from penstock.spelling import nearest
from penstock.transfer.places import parse_file_or_object

MOST_PRIORITY: Final = 1_000_000_000
LONGEST_DELAY_SECONDS: Final = 10 * 366 * 86400.0
"""Ten years: more than any store is kept, and far less than a clock can count.  No deadline is further ahead either."""
JOB_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
LONGEST_KEY: Final = 256
SERVICE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
LONGEST_URL: Final = 8192
URL_SCHEMES: Final = ("file", "s3", "http", "https")
"""Where an input may be read and an output be written."""
_LIKELY_NAME: Final = 0.7
_PLAIN_NUMBERS: Final = frozenset((int, float, bool, type(None)))
_ANY_CODEC: Final = tuple(MEDIA_TYPES)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a job is to be; the defaults are those of `JobQueue.submit`."""

    priority: int = 0
    """Higher is claimed first; from -1 000 000 000 to 1 000 000 000."""
    delay: float = 0.0
    """Seconds from its submission before which it is not claimed; 0 is at once."""
    deadline: float | None = None
    """The moment after which nobody begins it any more; None is never."""
    key: str | None = None
    """What makes it the same job as an earlier one of the queue: 1 to 256 characters that can be printed."""
    id: str | None = None
    """Its id; None makes one."""
    service: str = ""
    """The service that it is for; "" is any."""
    input_url: str | None = None
    """Where its input is, if it is not in the store."""
    output_url: str | None = None
    """Where its result is to be written; None keeps it in the store."""
    content_type: str | None = None
    """The media type of its input; None is what the input is written as."""
    accept: str | None = None
    """The media types that its result may have, as the header `Accept` names them; None is what the service prefers."""

    def __post_init__(self) -> None:
        for name in ("priority", "delay", "deadline"):
            value = getattr(self, name)
            if type(value) not in _PLAIN_NUMBERS:
                object.__setattr__(self, name, _as_plain(value))
        _check_priority(self.priority)
        _check_delay(self.delay)
        if self.deadline is not None and not _is_number(self.deadline):
            raise ConfigError(f"deadline must be a time in Unix seconds, got {self.deadline!r}")
        if self.id is not None:
            _check_pattern("id", self.id, JOB_ID)
        if self.service != "":
            _check_pattern("service", self.service, SERVICE_NAME)
        _check_key(self.key)
        for name in ("input_url", "output_url"):
            _check_url(name, getattr(self, name))
        _check_content_type(self.content_type, inline=self.input_url is None)
        _check_accept(self.accept)


OPTION_NAMES: Final = tuple(f.name for f in fields(JobOptions))


def read_job_options(given: Mapping[str, Any], besides: tuple[str, ...] = ()) -> JobOptions:
    """The options that `given` names, whose keys in `besides` are no options.

    Raises:
        ConfigError: a name is not known, or a value cannot be.
    """
    for name in given:
        if name not in OPTION_NAMES and name not in besides:
            known = (*besides, *OPTION_NAMES)
            near = nearest(str(name), known, _LIKELY_NAME)
            hint = f": did you mean {near!r}?" if near else f"; options: {', '.join(known)}"
            raise ConfigError(f"a job has no option {name!r}{hint}")
    return JobOptions(**{name: value for name, value in given.items() if name not in besides})


def _as_plain(value: object) -> object:
    """A number of numpy or of another library as one of Python's; whatever is no number stays as it is."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e300


def _check_priority(priority: object) -> None:
    whole = isinstance(priority, int) and not isinstance(priority, bool)
    if not whole or not -MOST_PRIORITY <= priority <= MOST_PRIORITY:  # type: ignore[operator]  # it is a number here
        raise ConfigError(f"priority must be an integer from {-MOST_PRIORITY} to {MOST_PRIORITY}, got {priority!r}")


def _check_delay(delay: object) -> None:
    if not _is_number(delay) or not 0 <= delay <= LONGEST_DELAY_SECONDS:  # type: ignore[operator]  # it is a number here
        raise ConfigError(f"delay must be seconds from 0 to {LONGEST_DELAY_SECONDS:.0f}, got {delay!r}")


def _check_pattern(name: str, value: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ConfigError(f"{name} must be 1 to 128 characters of A-Z a-z 0-9 . _ -, got {value!r}")


def _check_key(key: object) -> None:
    if key is None or (isinstance(key, str) and 1 <= len(key) <= LONGEST_KEY and key.isprintable()):
        return
    raise ConfigError(f"key must be 1 to {LONGEST_KEY} printable characters, got {key!r}")


def _check_url(name: str, url: object) -> None:
    """Whether the URL may be used is decided by the consumer; here it is told that it can never be one."""
    if url is None:
        return
    if not isinstance(url, str) or not 0 < len(url) <= LONGEST_URL or not url.isprintable():
        shown = masked(url)[:200] if isinstance(url, str) else url
        raise ConfigError(f"{name} must be a URL of at most {LONGEST_URL} printable characters, got {shown!r}")
    scheme, separator, rest = url.partition("://")
    try:
        urlsplit(url)
    except ValueError:
        rest = ""
    if not separator or not rest:
        raise ConfigError(f"{name} must be a URL such as s3://bucket/a.wav or file:///in/a.wav, got {masked(url)!r}")
    if scheme.lower() not in URL_SCHEMES:
        near = nearest(scheme.lower(), URL_SCHEMES, _LIKELY_NAME)
        hint = f": did you mean {near}://?" if near else f"; use {', '.join(f'{s}://' for s in URL_SCHEMES)}"
        raise ConfigError(f"{name}: scheme {scheme}:// is not supported{hint}")
    try:
        parse_file_or_object(url)
    except TransferRejected as error:
        raise ConfigError(f"{name}: {error}") from None


def _check_content_type(content_type: object, *, inline: bool) -> None:
    if content_type is None:
        return
    if not isinstance(content_type, str) or not content_type.isprintable() or not content_type.isascii():
        raise ConfigError(f"content_type must be a media type such as application/json, got {content_type!r}")
    given = content_type.encode()
    # A file at a URL may be of any type: a stage that takes the file reads it.
    if too_long(given) or not given.strip() or (inline and content_codec(given) is None):
        names = ", ".join(MEDIA_TYPES.values())
        raise ConfigError(f"no service accepts the content type {content_type[:200]!r}; supported: {names}")


def _check_accept(accept: object) -> None:
    if accept is None:
        return
    if not isinstance(accept, str) or not accept.isascii() or not accept.isprintable():
        raise ConfigError(f"accept must be media types such as application/json, got {accept!r}")
    given = accept.encode()
    if too_long(given) or not given.strip() or answer_codec(given, _ANY_CODEC) is None:
        names = ", ".join(MEDIA_TYPES.values())
        raise ConfigError(f"no service produces {accept[:200]!r}; supported: {names}")


def check_deadline(deadline: float | None, now: float) -> None:
    """Raise ConfigError where `deadline` has passed at the moment `now`, or is further ahead than anybody can mean."""
    if deadline is None or now < deadline <= now + LONGEST_DELAY_SECONDS:
        return
    if deadline > now:
        # JavaScript and Java count moments in milliseconds.
        hint = ": is it in milliseconds?" if deadline > 100 * now else ""
        raise ConfigError(
            f"deadline must be a time in Unix seconds; {deadline:.15g} is more than ten years ahead{hint}"
        )
    ago = now - deadline
    if ago > now / 2:  # before 1995: these are seconds from now that somebody took for a moment
        raise ConfigError(
            f"deadline must be a time in Unix seconds; {deadline:g} has passed: write time.time() + {deadline:g}"
        )
    raise ConfigError(f"the deadline passed {math.ceil(ago)} s ago")
