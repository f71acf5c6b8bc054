"""Keep the newest checkpoints of a training run, each whole or absent.

Contract
--------
* A checkpoint is a folder `N`, a number from 1 on that only grows.  It appears by one rename after all of it is on the
  disk; until then it is in a stage, `.stage-RANDOM`, which nothing reads.
* The newest `KEPT` stay.  What `latest` answers is there until as many newer ones were kept.
* What raises leaves no checkpoint and no stage.  The stage of a process that was killed is removed by the next one that
  keeps a checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, RunUnavailable
from penstock.hosting.file_rights import share_tree
from penstock.hosting.folder_lock import folder_lock
from penstock.hosting.held_folder import STAGE, held_folder
from penstock.hosting.synced_files import make_folders, sync_folder, sync_tree

KEPT: Final = 2
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`; None where there is none.

    Raises:
        ConfigError: there is something else in place of the folder.
        RunUnavailable: it cannot be read.
    """
    with _told(f"cannot read the checkpoints in {folder}"):
        numbers = _numbers(folder)
    return folder / str(numbers[-1]) if numbers else None


def keep_checkpoint(folder: Path, write: Callable[[Path], Any], check: Callable[[], None]) -> Path:
    """Keep what `write(path)` puts into the empty folder `path`, and return the checkpoint.

    Args:
        folder: where the checkpoints are; made where it is missing.
        write: fills the folder that it is given.
        check: raises where the caller may not keep it any more; called under the lock.

    Raises:
        ConfigError: `write` put nothing into the folder, or there is something else in place of `folder`.
        RunUnavailable: what `write` had written could not be kept, as on a full disk.  What `write` raises is raised as
            it is.
    """
    refused = f"cannot save a checkpoint in {folder}"
    with contextlib.ExitStack() as at_end:
        with _told(refused):
            make_folders(folder)
            stage = at_end.enter_context(held_folder(folder, STAGE))
            filled = stage / "filled"
            filled.mkdir()
        write(filled)
        _check_filled(filled)
        with _told(refused):
            with contextlib.suppress(PermissionError):  # a checkpoint of this user alone is better than none
                share_tree(filled, folder)
            sync_tree(filled)
            with folder_lock(folder):
                check()
                return _publish(folder, stage, filled)


@contextlib.contextmanager
def _told(refused: str) -> Iterator[None]:
    """What the system refuses, as an error of the run; what `write` raises is the user's own."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"{refused}: {error.filename} is not a directory; use another directory for the run"
        ) from error
    except OSError as error:
        raise RunUnavailable(f"{refused}: {error}") from error


def _publish(folder: Path, stage: Path, filled: Path) -> Path:
    numbers = _numbers(folder)
    checkpoint = folder / str(numbers[-1] + 1 if numbers else 1)
    filled.rename(checkpoint)
    sync_folder(folder)
    for number in numbers[: len(numbers) + 1 - KEPT]:
        (folder / str(number)).rename(stage / str(number))  # the stage is removed with all that is in it
    return checkpoint


def _check_filled(filled: Path) -> None:
    if not filled.is_dir() or filled.is_symlink():
        raise ConfigError("write(path) replaced the directory at path; write the files into it")
    if not any(filled.iterdir()):
        raise ConfigError("write(path) wrote no file into the directory at path, so there is no checkpoint")


def _numbers(folder: Path) -> list[int]:
    """Those of the checkpoints, in order."""
    try:
        found = [path.name for path in folder.iterdir() if _NUMBER.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(map(int, found))
