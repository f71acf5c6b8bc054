"""Load the parts of this room that need a framework, when they are asked for."""

from __future__ import annotations

import sys
from typing import Any

from penstock.errors import ConfigError


def load_part(part: str, library: str) -> Any:
    """The module of this room with that name.

    Raises:
        ConfigError: the library that it needs is not installed.
    """
    name = f"penstock.features.{part}"
    try:
        # In a `tf.function` AutoGraph translates what is called, but for builtins.  Of `importlib` it warns: it cannot.
        __import__(name)
        return sys.modules[name]
    except ModuleNotFoundError as exc:
        if exc.name != library:
            raise
        raise ConfigError(f"this requires the library {library}: pip install 'penstock[{library}]'") from None
