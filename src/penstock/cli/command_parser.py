"""The parser of each command: flags are written in full, and an error shows how its command is called.

`penstock health` uses it too, so nothing is imported here that takes a while.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

_LIKELY = 0.7
"""The least likeness, by difflib, of a word that is a slip of a command: `tset` and `test` have 0.75."""


class CommandParser(argparse.ArgumentParser):
    """As argparse has it, but without abbreviations: a flag that is added later would change what one means.

    The innermost parser that has read the words is `parser` among the arguments.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{**more, "allow_abbrev": False})

    @property
    def flags(self) -> list[str]:
        """Every flag of this command alone."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def format_usage(self) -> str:
        """How the command is called, without the flags that it can do without: some have a hundred."""
        needed = [action for action in self._actions if action.required or not action.option_strings]
        formatter = self._get_formatter()
        formatter.add_usage(None, needed, [])
        return formatter.format_help().replace(self.prog, f"{self.prog} [options]", 1)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from penstock.spelling import RENAMED, nearest  # `difflib`, too, only where somebody erred

            old = f"{self.prog} {value}"
            if old not in RENAMED and nearest(value, action.choices, _LIKELY) is None:
                old = self.prog  # one that had no commands of its own
            if old in RENAMED:
                self.error(f"{old} is {RENAMED[old]} now")
        super()._check_value(action, value)

    def parse_known_args(  # type: ignore[override]  # argparse's own is overloaded
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does; sub-commands come through here with their own words."""
        found, unknown = super().parse_known_args(args, namespace)
        if not hasattr(found, "parser"):
            found.parser = self
        return found, unknown
