"""Have `breakpoint()` say what to do in a process whose standard input is empty: a worker, a check, a reload.

Python's own debugger would read the end of its input there and raise `BdbQuit`, which tells nobody why.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn


def refuse_breakpoints() -> None:
    """Have `breakpoint()` raise RuntimeError from now on, unless a debugger has been set up for it.

    Nothing of ours stands between the two: a debugger stops in the frame that called it.
    """
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _refuse


def _refuse(*_args: Any, **_options: Any) -> NoReturn:
    raise RuntimeError(
        "breakpoint() is not supported here: the standard input of this process is empty. Call the "
        "service from a program, by service.configured(inline=True).blocking(), or set "
        "PYTHONBREAKPOINT to a remote debugger."
    )
