"""Do one claimed task: call its function while its lease is renewed, and have the store keep what became of it.

Contract
--------
* What the function returned is kept, or it is `LeaseLost`, or `RunFailed` where the run has failed meanwhile, or the
  file could not be used for as long as `Patience` has.
* An exception of the function is a failed attempt, and so is a result that JSON cannot carry.  The loop goes on.
* KeyboardInterrupt and SystemExit end it at once: `work_until_done` gives the task back.  What was being told to the
  store at that moment is told, once.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from penstock.errors import LeaseLost, PenstockError, TrainingError
from penstock.training.lost_tasks import lease_lost, run_failed
from penstock.training.patience import Patience
from penstock.training.rules.json_text import json_text
from penstock.training.rules.task_states import Phase
from penstock.training.run_options import RunOptions
from penstock.training.task_renewing import TaskRenewing
from penstock.training.task_store import ClaimedTask, Failed, TaskHold, TaskStore
from penstock.training.telling import Telling
from penstock.worker.problems import describe_error

T = TypeVar("T")
TaskFunction: TypeAlias = Callable[[ClaimedTask], Any]
Renew: TypeAlias = Callable[[TaskHold, float], TaskRenewing]


class TaskWork:
    """Does tasks, one after the other.

    Args:
        store: keeps what becomes of them.
        functions: what is called for each kind.
        options: of the run.
        telling: hears what is done.
        patience: asks the store again.
        renew: makes what renews the lease of a task, at most for so many seconds.
    """

    def __init__(
        self,
        store: TaskStore,
        functions: Mapping[Phase, TaskFunction],
        options: RunOptions,
        *,
        telling: Telling,
        patience: Patience,
        renew: Renew,
    ) -> None:
        self._store = store
        self._functions = functions
        self._options = options
        self._telling = telling
        self._patience = patience
        self._renew = renew

    def do(self, task: ClaimedTask) -> None:
        """Do one task.

        Raises:
            LeaseLost: another worker has the task, and what became of it here was dropped.
            RunFailed: the same, and the run has failed.
            RunUnavailable: the store could not be told what became of it.
        """
        hold = task.hold
        with self._renewed(hold), self._telling.doing(task):
            try:
                result = self._call(task)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  # the user's code; a panic of an extension is no Exception
                self._fail(hold, error)
            else:
                self._finish(hold, result)

    def _call(self, task: ClaimedTask) -> Any:
        result = self._functions[task.hold.kind](task)
        # What this raises is told as the failure of the task.
        text = json_text(result, f"the return value of the function for {task.hold.kind}")
        return json.loads(text)  # which nobody changes any more, as a thread of the function might change the result

    def _finish(self, hold: TaskHold, result: Any) -> None:
        if not self._tell_store(lambda: self._store.finish(hold, result)):
            raise self._why_lost(hold)

    def _fail(self, hold: TaskHold, error: BaseException) -> None:
        problem = describe_error(error)
        trouble = problem.traceback
        if not self._tell_store(lambda: self._store.fail(hold, trouble, attempts=self._options.max_attempts)):
            why = self._why_lost(hold)
            if isinstance(error, LeaseLost) and isinstance(why, LeaseLost):
                raise error
            raise why from error
        self._telling.failed(hold, problem.type_name, problem.message)

    def _tell_store(self, tell: Callable[[], T]) -> T:
        """What `tell` returns.  Where somebody interrupts it, it may have done nothing yet, and is called once more."""
        try:
            return self._patience.ask(tell)
        except (KeyboardInterrupt, SystemExit):
            with contextlib.suppress(PenstockError):  # then the attempt is lost
                tell()
            raise

    def _why_lost(self, hold: TaskHold) -> TrainingError:
        """What is raised where the fence of a task counts no longer."""
        options = self._options
        found = self._patience.ask(lambda: self._store.claim((), lease=options.lease, attempts=options.max_attempts))
        return run_failed(found) if isinstance(found, Failed) else lease_lost(hold)

    @contextlib.contextmanager
    def _renewed(self, hold: TaskHold) -> Iterator[None]:
        renewing = self._renew(hold, self._options.save_timeout if hold.kind is Phase.SAVE else math.inf)
        try:
            renewing.start()
            yield
        finally:
            renewing.stop()
