"""Read the text of the option `log_level`: which logger has which level."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import ConfigError

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""The levels by name, as numbers of Python's `logging`."""
ALL_LOGGERS = ""
"""The key of the level that is for every logger without one of its own."""
OWN_LOGGERS = "penstock"
"""The logger above all of Penstock's own."""
ACCESS_LOGGER = "penstock.access"
"""The logger of the access log."""


def read_log_levels(text: str) -> dict[str, int]:
    """The level of each logger that the option `log_level` names, and under `ALL_LOGGERS` that of the others.

    The text is a list with commas between its entries.  A level alone is that of every logger that is not named; it
    stands once at most, and without it that is `info`.  Levels may be written in upper or lower case, and spaces around
    a name or a level count for nothing.

    Raises:
        ConfigError: the text cannot be read; it says what can be.
    """
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, level = (part.strip() for part in entry.rpartition("="))
        if equals and not name:
            raise ConfigError(
                f"log_level: {entry.strip()!r} has no logger name; write NAME=LEVEL, or LEVEL for all loggers"
            )
        if level.lower() not in LOG_LEVELS:
            raise ConfigError(f"log_level: unknown level {level!r}; the levels are {', '.join(LOG_LEVELS)}")
        if name in found:
            raise ConfigError(
                f"log_level: {f'the level of {name!r}' if name else 'the level of all loggers'} is given twice"
            )
        found[name] = LOG_LEVELS[level.lower()]
    return {ALL_LOGGERS: LOG_LEVELS["info"], **found}


def own_log_levels(levels: Mapping[str, int]) -> dict[str, int]:
    """Those of `levels` that are for Penstock's own loggers; `OWN_LOGGERS` is always there."""
    own = {name: level for name, level in levels.items() if name == OWN_LOGGERS or name.startswith(f"{OWN_LOGGERS}.")}
    return {OWN_LOGGERS: levels[ALL_LOGGERS], **own}
