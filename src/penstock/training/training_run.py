"""A training run: tasks that any number of processes of one host do once, and one published model at the end.

Contract
--------
* To make a `Run` opens nothing.  Every call opens the run's file, and closes it before it returns; so a process may
  fork between calls.
* `plan` and `checkpoint` make the folder of the run; nothing else makes anything.
* `work` ends in every process the same way: with the version, or with `RunFailed`; or, for a process that lost a lease,
  with `LeaseLost`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from penstock.config import checked_keywords
from penstock.errors import ConfigError
from penstock.hosting.synced_files import make_folders
from penstock.training.checkpoints import keep_checkpoint, latest_checkpoint
from penstock.training.lost_tasks import lease_lost
from penstock.training.one_task import TaskWork
from penstock.training.patience import PATIENCE_SECONDS, Patience
from penstock.training.rules.task_rules import task_name
from penstock.training.rules.task_states import Phase
from penstock.training.run_options import RunOptions, folder_path
from penstock.training.shown_bar import run_shown
from penstock.training.sqlite_tasks import SqliteTasks, is_there
from penstock.training.task_renewing import TaskRenewing
from penstock.training.task_store import ClaimedTask, RunPlan, TaskHold, TaskStore
from penstock.training.tasks_in_hand import check_tasks, task_in_hand, task_of_this_thread
from penstock.training.telling import Telling
from penstock.training.working import work_until_done

RUN_FILE: Final = "run.db"
CHECKPOINTS: Final = "checkpoints"
PLANNED_KINDS: Final = tuple(kind for kind in Phase if kind is not Phase.SAVE)


class Run:
    """A training run in a folder of this host.

    `folder` is a `pathlib.Path`, `publish_to` one or None; `options` has the rest.
    """

    @checked_keywords("penstock.training.Run")
    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        publish_to: str | os.PathLike[str] | None = None,
        lease: float = 30.0,
        max_attempts: int = 3,
        save_timeout: float = 600.0,
    ) -> None:
        """Say where the run is; nothing is made or opened yet.

        Args:
            folder: its folder, which `plan` makes.
            publish_to: the model directory in which its model is published; None: the run publishes nothing.
            lease: seconds after which a task whose worker died is given to another, from 0.5 to a day.
            max_attempts: how often a task is tried until the run has failed.
            save_timeout: seconds after which the lease of the save task is renewed no longer; inf: it always is.

        Raises:
            ConfigError: an argument has a value it cannot have.
        """
        self.folder = folder_path("folder", folder)
        self.publish_to = None if publish_to is None else folder_path("publish_to", publish_to)
        self.options = RunOptions(lease=lease, max_attempts=max_attempts, save_timeout=save_timeout)

    @property
    def id(self) -> str | None:
        """The run's id, which stands in the manifest of its model; None before there is a plan."""
        if not is_there(self._file):
            return None
        with self._opened() as store:
            return store.run_id()

    @checked_keywords("penstock.training.Run.plan")
    def plan(self, *, train: Iterable[Any] = (), evaluate: Iterable[Any] = (), predict: Iterable[Any] = ()) -> None:
        """Keep the tasks of the run: a payload for each, which JSON can carry.  The same plan again changes nothing.

        Raises:
            ConfigError: the run has another plan, or publishes elsewhere, or where nothing can be published; or a
                payload is not JSON.
            RunUnavailable: the file of the run is locked, or the disk is full or fails.
        """
        if self.publish_to is not None and self.id is None:
            _check_place(self.publish_to)
        payloads = {"train": train, "evaluate": evaluate, "predict": predict}
        tasks = {Phase(name): _payloads(name, given) for name, given in payloads.items()}
        try:
            make_folders(self.folder)
        except OSError as error:
            raise ConfigError(f"cannot create the directory of the run, {self.folder}: {error.strerror}") from error
        check_run_file(self.folder)
        with closing(SqliteTasks(self._file)) as store:
            store.plan(RunPlan(tasks, None if self.publish_to is None else str(self.publish_to)))

    @checked_keywords("penstock.training.Run.work")
    def work(
        self,
        *,
        train: Callable[[Any], Any] | None = None,
        evaluate: Callable[[Any], Any] | None = None,
        predict: Callable[[Any], Any] | None = None,
        save: Callable[[], Mapping[str, Any]] | None = None,
    ) -> int | None:
        """Do tasks until the run is done, and return the version that it published, or None where it publishes nothing.

        Args:
            train: called with the payload of a train task; what it returns is kept, and has to be JSON.
            evaluate: the same for evaluate tasks, which begin when all train tasks are done.
            predict: the same for predict tasks, which begin when all evaluate tasks are done.
            save: returns the arguments of `penstock.export.save` as a dict, without the path.  One process calls it,
                when all other tasks are done.

        A phase without a function is left to other processes.

        Raises:
            RunFailed: a task used up its attempts, in this process or in another one.
            LeaseLost: a task was given to another worker, because this one lost its lease.
            ConfigError: the run has no plan or publishes elsewhere, or an argument is no function; or the function of
                a task of this run calls it.
            RunUnavailable: the file of the run is locked for long, or the disk is full or fails.
        """
        given = {"train": train, "evaluate": evaluate, "predict": predict, "save": save}
        functions = {Phase(name): _function(name, function) for name, function in given.items() if function is not None}
        doing = task_of_this_thread(self.folder)
        if doing is not None:
            raise ConfigError(
                f"work was called by the function of task {doing.name} of the same run. The call would wait "
                "for its own task and never return; call work outside of the functions"
            )
        with self._opened() as store:
            self._check_publish_to(store)
            with run_shown(self.folder.name) as shown:
                return self._work(store, functions, Telling(shown, store.progress))

    @checked_keywords("penstock.training.Run.checkpoint")
    def checkpoint(self, write: Callable[[Path], Any]) -> Path:
        """Keep the files that `write(path)` puts into the empty folder `path`; the newest two checkpoints stay.

        Raises:
            LeaseLost: this thread does a task that another worker has by now, or does none and this process does one
                such; nothing was kept.
            ConfigError: `write` put nothing into the folder, or the run's folder is none.
            RunUnavailable: what `write` had written could not be kept, as on a full disk.

        What `write` raises is raised as it is, also an OSError of a full disk.
        """
        return keep_checkpoint(self.folder / CHECKPOINTS, _function("write", write), lambda: check_tasks(self.folder))

    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint, which is there until two newer ones were kept; None where there is none.

        Raises:
            ConfigError: the run's folder, or that of the checkpoints, is no folder.
            RunUnavailable: it cannot be read.
        """
        return latest_checkpoint(self.folder / CHECKPOINTS)

    @checked_keywords("penstock.training.Run.results")
    def results(self, phase: str) -> list[Any]:
        """Results of the functions of a phase, in the order of the plan; None where a task is not done.

        Args:
            phase: "train", "evaluate" or "predict".

        Raises:
            ConfigError: there is no such phase, or no run.
            RunUnavailable: the file of the run is locked, or the disk is full or fails.
        """
        if phase not in PLANNED_KINDS:
            raise ConfigError(f"there is no phase {phase!r}; phases: {', '.join(PLANNED_KINDS)}")
        with self._opened() as store:
            return store.results(Phase(phase))

    @property
    def _file(self) -> Path:
        return self.folder / RUN_FILE

    @contextlib.contextmanager
    def _opened(self) -> Iterator[TaskStore]:
        if not is_there(self._file):
            raise ConfigError(f"there is no run in {self.folder}; call plan first, if only as run.plan()")
        with closing(open_run(self.folder)) as store:
            yield store

    def _check_publish_to(self, store: TaskStore) -> None:
        """Raise ConfigError where the run has no plan, or one that publishes elsewhere."""
        if store.run_id() is None:
            raise ConfigError(f"the run in {self.folder} has no plan; call plan first, if only as run.plan()")
        planned = store.publishes_to()
        if self.publish_to is not None and str(self.publish_to) != planned:
            raise ConfigError(
                f"publish_to is {self.publish_to}, but the run in {self.folder} publishes {_place(planned)}; "
                "create another run in a directory of its own"
            )

    def _work(self, store: TaskStore, functions: Mapping[Phase, Callable[..., Any]], telling: Telling) -> int | None:
        if Phase.SAVE in functions and store.publishes_to() is None:
            telling.note("save is never called, because the run has no publish_to")
        patience = Patience(max(PATIENCE_SECONDS, self.options.lease), telling.note)
        tasks = TaskWork(
            store,
            {kind: functools.partial(self._call, store, telling, function) for kind, function in functions.items()},
            self.options,
            telling=telling,
            patience=patience,
            renew=functools.partial(self._renewing, telling),
        )
        version = work_until_done(
            store, functions.keys(), self.options, tasks=tasks, telling=telling, patience=patience
        )
        telling.note("done" if version is None else f"done: version {version} in {store.publishes_to()}")
        return version

    def _renewing(self, telling: Telling, hold: TaskHold, limit: float) -> TaskRenewing:
        opened = functools.partial(open_run, self.folder)
        return TaskRenewing(opened, hold, lease=self.options.lease, limit=limit, tell=telling.note)

    def _call(self, store: TaskStore, telling: Telling, function: Callable[..., Any], task: ClaimedTask) -> Any:
        """What a function of the user returns for a task."""

        def check() -> None:
            if not store.holds(task.hold):
                raise lease_lost(task.hold)

        with task_in_hand(self.folder, task_name(task.hold.kind, task.hold.place), check):
            if task.hold.kind is not Phase.SAVE:
                return function(task.payload)
            from penstock.training.save_task import save_and_publish  # it needs numpy, and the run may save nothing

            run, publish_to = store.run_id(), store.publishes_to()
            assert run is not None, "a task was claimed, so there is a plan"
            assert publish_to is not None, "there is a save task, so the run publishes"
            return save_and_publish(function, run, publish_to, check=check, tell=telling.note)


def open_run(folder: Path) -> SqliteTasks:
    """The tasks of the run in `folder`, which are closed by the caller; nothing is made.

    Raises:
        ConfigError: there is no run.
        RunUnavailable: its file is locked, or the disk fails.
    """
    check_run_file(folder)
    return SqliteTasks.existing(folder / RUN_FILE)


def check_run_file(folder: Path) -> None:
    """Raise ConfigError where what has the name of the run's file cannot be one."""
    file = folder / RUN_FILE
    with contextlib.suppress(OSError):  # whoever opens it says so
        if file.exists() and not file.is_file():
            what = "a directory" if file.is_dir() else "not a regular file"
            raise ConfigError(
                f"{folder} is not a training run: {file} is {what}; move it, or use another directory for the run"
            )


def _check_place(publish_to: Path) -> None:
    """Raise ConfigError where no model can ever be published: the training would be for nothing."""
    with contextlib.suppress(ModuleNotFoundError):  # numpy, which who only plans may not have
        from penstock.artifact.model_directory import check_place

        check_place(publish_to)
    there = next(place for place in (publish_to, *publish_to.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ConfigError(f"publish_to is {publish_to}, but {there} is not a directory; use another path, or move it")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"publish_to is {publish_to}, but this user has no permission to write into {there}")


def _place(publish_to: str | None) -> str:
    return "nothing" if publish_to is None else f"to {publish_to}"


def _function(name: str, given: Any) -> Callable[..., Any]:
    if not callable(given):
        raise ConfigError(f"{name} must be a function, got {given!r}")
    function: Callable[..., Any] = given
    return function


def _payloads(name: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} must be a list with a payload for each task, got {given!r}")
    return list(given)
