"""What every thread of this process is doing now, as text.  No file is read for it."""

from __future__ import annotations

import sys
import threading
from types import FrameType

STACKS_BYTES = 64 * 1024
"""Most of the stacks of one process that are written; of more, the middle is left out."""
FRAMES_PER_THREAD = 100
"""The innermost frames of a thread that are written; `faulthandler` has the same limit."""


def stacks_of_threads() -> str:
    """The stack of each thread of this process, this thread first, in the form of `faulthandler`.

    It has no lines of source, because those would be read from files.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    ours = threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda thread: thread[0] != ours)
    return "\n".join(
        f"Thread {names.get(thread, 'unknown')} (most recent call first):\n{_stack(frame)}" for thread, frame in frames
    )


def _stack(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES_PER_THREAD:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}')
        frame = frame.f_back
    if frame is not None:
        lines.append("  ...")
    return "\n".join(lines)
