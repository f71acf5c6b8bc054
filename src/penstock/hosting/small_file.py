"""Read a small file that an option names, whole."""

from __future__ import annotations

import stat
from pathlib import Path

from penstock.errors import ConfigError


def read_small_file(path: str, most: int, where: str) -> bytes:
    """The content of the file at `path`, of at most `most` bytes; `where` is what messages call it.

    Raises ConfigError for a file that cannot be read, is larger, or is no regular one.  A pipe can be read only once,
    and these files are read again; whoever opens a named pipe waits for a writer, perhaps without end.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ConfigError(
                f"{where} is not a regular file: it is read more than once, which is not possible with a pipe"
            )
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise ConfigError(f"{where} is larger than {most} bytes")
    return data
