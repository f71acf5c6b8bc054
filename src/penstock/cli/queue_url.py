"""Decide which queue a command is about: `--queue-url URL`, else `--queue-url-file PATH`, else `PENSTOCK_QUEUE_URL`.

A file keeps the password of a URL out of the list of processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from penstock.cli.options import WronglyCalled
from penstock.errors import ConfigError
from penstock.jobs.stores.urls import read_store_url

VARIABLE = "PENSTOCK_QUEUE_URL"


def add_queue_flags(parser: argparse.ArgumentParser) -> None:
    """The flags `--queue-url` and `--queue-url-file`."""
    group = parser.add_argument_group("queue")
    group.add_argument(
        "--queue-url",
        metavar="URL",
        help=f"sqlite:///q.db, redis://HOST, …, with ?queue=NAME for another queue than `default` (default {VARIABLE})",
    )
    group.add_argument(
        "--queue-url-file",
        metavar="PATH",
        help="file that contains that URL, so that a password does not appear in the process list",
    )


def read_queue_url(url: str | None, file: str | None, environ: Mapping[str, str]) -> str | None:
    """The URL of the queue that is meant, checked; None where none is named.

    Args:
        url: what `--queue-url` says, or None.
        file: what `--queue-url-file` says, or None.
        environ: the environment, in which an empty `PENSTOCK_QUEUE_URL` names nothing.

    Raises:
        WronglyCalled: both flags are given, the file cannot be read, or it is not the URL of a queue.
    """
    if url is not None and file is not None:
        raise WronglyCalled(ConfigError("--queue-url and --queue-url-file cannot be used together"))
    try:
        found = url if url is not None else _read(file) if file is not None else environ.get(VARIABLE) or None
        if found is not None:
            read_store_url(found)
    except ConfigError as error:
        raise WronglyCalled(error) from None
    return found


def needed_queue_url(url: str | None, file: str | None, environ: Mapping[str, str]) -> str:
    """As `read_queue_url`; none is an error."""
    found = read_queue_url(url, file, environ)
    if found is None:
        raise WronglyCalled(
            ConfigError(
                f"no queue is set: write --queue-url URL, such as sqlite:///q.db, or set the variable {VARIABLE}"
            )
        )
    return found


def _read(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8-sig").strip()  # some editors write the mark
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--queue-url-file {file}: {reason}") from None
    if not text or "\n" in text:
        raise ConfigError(f"--queue-url-file {file}: the file must have one line, the URL of a queue")
    return text
