"""Work on a run until nothing is left: claim a task, do it, or wait for others.  Everything is decided elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from penstock.errors import PenstockError
from penstock.training.lost_tasks import run_failed
from penstock.training.one_task import TaskWork
from penstock.training.patience import Patience
from penstock.training.rules.task_states import Phase
from penstock.training.run_options import RunOptions
from penstock.training.task_store import Blocked, ClaimedTask, Failed, Ready, TaskStore
from penstock.training.telling import Telling

POLL_SECONDS: Final = 0.2
"""How often who waits asks whether there is something to do."""


def work_until_done(
    store: TaskStore,
    kinds: Collection[Phase],
    options: RunOptions,
    *,
    tasks: TaskWork,
    telling: Telling,
    patience: Patience,
    sleep: Callable[[float], None] = time.sleep,
) -> int | None:
    """Do tasks of `kinds` until the run is done, and return the version that it published.

    KeyboardInterrupt and SystemExit give every task back that was claimed, wherever they are raised.

    Raises:
        RunFailed: a task used up its attempts, here or in another process.
        LeaseLost: a task was given to another worker.
        RunUnavailable: the store could not be used.
    """
    with _given_back(store, telling):
        while True:
            match patience.ask(lambda: store.claim(kinds, lease=options.lease, attempts=options.max_attempts)):
                case Ready(version):
                    return version
                case Failed() as failed:
                    raise run_failed(failed)
                case ClaimedTask() as claimed:
                    tasks.do(claimed)
                case Blocked() as blocked:
                    telling.waits(blocked, has_function=blocked.kind in kinds)
                    sleep(POLL_SECONDS)


@contextlib.contextmanager
def _given_back(store: TaskStore, telling: Telling) -> Iterator[None]:
    """Give back what was claimed where somebody interrupts what is done inside, wherever that is."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(PenstockError):  # the leases run out
            telling.given_back(store.release_all())
        raise
