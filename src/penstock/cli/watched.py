"""Tell of changed Python files below a folder.  Only this file needs watchfiles, and only for `--reload`.

Files in environments and in hidden folders do not count: nobody edits them, and an install changes thousands of them.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.errors import ConfigError

NOT_THE_USERS = frozenset({"venv", "env", "site-packages", "node_modules", "__pycache__"})
"""Folders, besides hidden ones, with files that the user does not write."""
LOOK_MILLISECONDS = 200
"""How long the watching thread waits before it looks whether it shall end."""
GATHER_MILLISECONDS = 100
"""How long changes gather at most before they are told; `Reloading` decides which belong together."""
STEP_MILLISECONDS = 20
"""How long no further change must come for them to be told at once."""


def need_watchfiles() -> None:
    """Raise ConfigError where watchfiles is not installed."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError("--reload needs watchfiles, which is not installed: pip install 'penstock[reload]'")


def is_watched(path: Path, root: Path) -> bool:
    """Whether a change of `path`, a file somewhere below `root`, may change the service."""
    try:
        folders = path.relative_to(root).parts[:-1]
    except ValueError:  # it is not below it
        return False
    if path.suffix != ".py" or path.name.startswith("."):
        return False
    if any(folder.startswith(".") or folder in NOT_THE_USERS for folder in folders):
        return False
    # An environment may have any name, and has this file.
    return not any((root.joinpath(*folders[: depth + 1]) / "pyvenv.cfg").exists() for depth in range(len(folders)))


def watch(root: Path, tell: Callable[[list[Path]], None], fail: Callable[[Exception], None]) -> Callable[[], None]:
    """Call `tell` with changed files below `root`, in a thread; returns what ends that.

    `tell` is first called without a file, when changes are seen from then on.  `fail` is called once if nothing can be
    watched any more.
    """
    over = threading.Event()

    def look() -> None:
        from watchfiles import watch as changes

        try:
            for found in changes(
                root,
                watch_filter=lambda _change, path: is_watched(Path(path), root),
                debounce=GATHER_MILLISECONDS,
                step=STEP_MILLISECONDS,
                rust_timeout=LOOK_MILLISECONDS,
                yield_on_timeout=True,
                raise_interrupt=False,
                stop_event=over,
            ):
                tell(_files(found))
        except Exception as error:  # noqa: BLE001  # of the library, or of the system: too many folders, for one
            fail(error)

    threading.Thread(target=look, name="penstock-reload", daemon=True).start()
    return over.set


def _files(found: Iterable[tuple[object, str]]) -> list[Path]:
    return sorted({Path(path) for _change, path in found})
