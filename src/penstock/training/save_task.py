"""Do the save task of a run: ask the user for the model, save and prove it in a stage, and publish it once.

Contract
--------
* A version that this run has published already is its version: nothing is saved again.
* Whether this worker may still publish is asked under the lock of the model directory.  One that lost its lease
  publishes nothing.
* A model that is saved waits for the lock of the model directory for as long as this worker has the task.
* What `save` or the publishing raises after the lease was lost is `LeaseLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.artifact.publishing import version_of_run
from penstock.artifact.staging import new_stage, remove_dead_stages
from penstock.errors import ConfigError, LeaseLost, PublishFailed
from penstock.export.saving import save_for_run
from penstock.hosting.fault_points import hit
from penstock.hosting.folder_lock import FolderLocked

Save = Callable[[], Mapping[str, Any]]


def save_and_publish(
    save: Save, run: str, model_dir: str, *, check: Callable[[], None], tell: Callable[[str], None]
) -> int:
    """The version that the run has published, now or before.

    Args:
        save: returns the arguments of `penstock.export.save`, without the path.
        run: the id of the run.
        model_dir: where it is published.
        check: raises `LeaseLost` where this worker has the task no longer.
        tell: hears what keeps the model from being published.

    Raises:
        LeaseLost: another worker has the save task.
        ConfigError: `save` returned something else.
        PenstockError: the model could not be saved, proved or published.
    """
    hit("save_claimed")
    version = version_of_run(model_dir, run)
    if version is None:
        try:
            version = _publish(save, run, model_dir, check, tell)
        except LeaseLost:
            raise
        except Exception:
            check()
            raise
    else:  # who published it may have died before the run knew
        remove_dead_stages(Path(model_dir))
    hit("before_save_known")
    return version


def _publish(save: Save, run: str, model_dir: str, check: Callable[[], None], tell: Callable[[str], None]) -> int:
    with new_stage(model_dir) as stage:
        arguments = save()
        _check_arguments(arguments)
        save_for_run(stage.artifact, run, arguments)
        while True:
            try:
                return stage.publish(run=run, check=check).version
            except PublishFailed as error:
                if not isinstance(error.__cause__, FolderLocked):
                    raise
                check()
                tell(f"the model is saved and waits to be published: {error}")


def _check_arguments(arguments: Any) -> None:
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise ConfigError(
            f"save must return a dict with the arguments of penstock.export.save, such as {{'model': ..., "
            f"'features': ..., 'reference_rows': ...}}, got {type(arguments).__name__}"
        )
    if "path" in arguments:
        raise ConfigError("save returned a path, but the run chooses the path of the model: leave it out")
