"""The base of what belongs to one process: connections, and threads that nobody could send elsewhere."""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import ConfigError


class OfOneProcess:
    """Cannot be pickled or copied.  A fork has its own words for its calls."""

    def __reduce__(self) -> NoReturn:
        """Raise ConfigError."""
        name = type(self).__name__
        raise ConfigError(f"{name} cannot be pickled or shared by processes: make one in each process")
