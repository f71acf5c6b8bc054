"""Decide whether what a caller gave can be the path of a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

ADDRESS: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/{1,2}")
"""As s3://bucket/model, and s3:/bucket/model, which `pathlib` makes of it.  ./s3:/bucket is a folder of that name."""


def given_folder(name: str, path: object) -> Path:
    """The path that the argument `name` has.

    Raises:
        ConfigError: it is no path: another type, nothing, an address, or a text that no file can be called.
    """
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or not given or "\0" in given or not _can_be_encoded(given):
        raise ConfigError(f"{name} must be the path of a directory, got {path!r}")
    address = ADDRESS.match(given)
    if address:  # it is not repeated as a whole: it may have a password
        raise ConfigError(
            f"{name} must be a local path, and {address[0]}… is a URL: copy the files into a directory "
            "and give its path"
        )
    return Path(given)


def absolute_folder(name: str, path: object) -> Path:
    """The path that the argument `name` has, as it is from everywhere; links in it stay.

    Raises:
        ConfigError: it is no path, or one from a working directory that somebody has removed.
    """
    folder = given_folder(name, path)
    try:
        return folder.absolute()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{name} is {path!r}, but the working directory does not exist any more: give an absolute path"
        ) from error


def _can_be_encoded(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
