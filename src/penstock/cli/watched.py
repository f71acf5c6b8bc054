"""Tell of changed Python files below a folder.  Only this file needs watchfiles, and only for `--reload`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.cli.python_files import Found, PythonFiles
from penstock.errors import ConfigError

LOOK_MILLISECONDS = 200
"""How long the watching thread waits before it looks whether it shall end."""
GATHER_MILLISECONDS = 50
"""How long changes gather at most before they are told; `Reloading` decides which belong together, by its
`QUIET_SECONDS`."""
STEP_MILLISECONDS = 20
"""How long no further change must come for them to be told at once."""

AGAIN_SECONDS = 0.5
"""How long nobody watches after a watch has failed.  Each begins with a look at every folder."""


def need_watchfiles() -> None:
    """Raise ConfigError where watchfiles is not installed."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError("--reload needs watchfiles, which is not installed: pip install watchfiles")


def watch(root: Path, tell: Callable[[Found], None], fail: Callable[[Exception], None]) -> Callable[[], None]:
    """Call `tell` with what has happened to files below `root`, in a thread; returns what ends that.

    `tell` is first called without a file, when changes are seen from then on.  `fail` is called once if nothing can be
    watched any more.  A `root` that was removed or replaced is watched again as soon as it is there.
    """
    over = threading.Event()

    def look() -> None:
        """The work of the thread: one watch after the other."""
        files = PythonFiles(root)
        begun = failed = False
        while not over.is_set():
            try:
                for found in _looks(files, root, over):
                    if not begun:
                        begun = True
                        tell(Found([], []))
                    elif any(found):
                        tell(found)
            except Exception as error:  # noqa: BLE001  # of the library, or of the system: too many folders, for one
                # A folder that was there may come again, and a name that is not UTF-8 ends every watch of watchfiles.
                again = begun if isinstance(error, FileNotFoundError) else isinstance(error, RuntimeError)
                if not again or (failed and not begun):
                    fail(error)
                    return
                failed = True
                if begun and any(found := files.look([root])):  # it may have gone between two watches
                    tell(found)
                over.wait(AGAIN_SECONDS)

    threading.Thread(target=look, name="penstock-reload", daemon=True).start()
    return over.set


def _looks(files: PythonFiles, root: Path, over: threading.Event) -> Iterator[Found]:
    """What is found below `root` each time that something happens there, or `LOOK_MILLISECONDS` have passed.

    The first is what has happened while nobody watched.  It ends with `over`, or where `root` is another folder.
    """
    from watchfiles import watch as changes

    missed = True
    with _held(root) as is_at_its_place:
        for events in changes(
            root,
            watch_filter=None,  # of a folder that is moved the event names nothing else
            debounce=GATHER_MILLISECONDS,
            step=STEP_MILLISECONDS,
            rust_timeout=LOOK_MILLISECONDS,
            yield_on_timeout=True,
            raise_interrupt=False,
            stop_event=over,
        ):
            yield files.look([root] if missed else {Path(path) for _change, path in events})
            missed = False
            if not is_at_its_place():  # what is watched is the folder, wherever it is now
                yield files.look([root])
                return


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[Callable[[], bool]]:
    """What tells whether `folder` is still the one that it is now.

    It is kept open, because another folder could get its number otherwise.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    held = os.fstat(descriptor)

    def is_at_its_place() -> bool:
        try:
            return os.path.samestat(held, folder.stat())
        except OSError:
            return False

    try:
        yield is_at_its_place
    finally:
        os.close(descriptor)
