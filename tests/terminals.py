"""A terminal that is not one, for what shows itself otherwise where people read it."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """Keeps what is written to it, and says that people read it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """It is a terminal."""
        return True
