"""The scripts of the Redis store, as they are sent to a server: each file of `lua/` behind what all begin with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "lua"
_COMMON: Final = "common"


class Script:
    """The text of a script, and the name by which a server that has it knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def read_scripts() -> dict[str, Script]:
    """Every script by the name of its file."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.lua"))}
    common = texts.pop(_COMMON)
    return {name: Script(common + text) for name, text in texts.items()}


SCRIPTS: Final = read_scripts()
