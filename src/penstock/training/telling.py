"""Decide what a worker tells of a run on stderr, and how often.

Contract
--------
* Nothing that is told ends the work: what raises while it is shown is dropped, and nothing is shown from then on.
* Whoever wrote a note, no character of it can steer a terminal.
* What goes wrong is told each time.  That this worker has no function for a kind is told once per kind.
* The tasks are counted again every `LOOK_SECONDS` at most, and where another kind has begun.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from penstock.codec.text import printable
from penstock.errors import PenstockError
from penstock.training.rules.task_rules import task_name
from penstock.training.rules.task_states import Phase
from penstock.training.task_store import Blocked, ClaimedTask, KindProgress, TaskHold

LOOK_SECONDS: Final = 0.25


class Shown(Protocol):
    """Where a worker tells what it does."""

    def show(self, kind: Phase, words: str, progress: Sequence[KindProgress]) -> None:
        """What this worker does from now on, with a task of `kind`, and how far the run is."""

    def note(self, words: str) -> None:
        """What the user should know, also when all is done."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Leave the terminal to others inside."""


class ShownNowhere:
    """Shows nothing."""

    def show(self, kind: Phase, words: str, progress: Sequence[KindProgress]) -> None:
        """See `Shown`."""

    def note(self, words: str) -> None:
        """See `Shown`."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """See `Shown`."""
        return contextlib.nullcontext()


class UnfailingShown:
    """Hands on to a `Shown`, until that raises: it is left alone from then on.

    It may raise anything, as where the user has put another object in place of `sys.stderr`.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def show(self, kind: Phase, words: str, progress: Sequence[KindProgress]) -> None:
        """See `Shown`."""
        self._hand_on(lambda shown: shown.show(kind, words, progress))

    def note(self, words: str) -> None:
        """See `Shown`."""
        self._hand_on(lambda shown: shown.note(words))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """See `Shown`.  What is raised inside passes."""
        entered = contextlib.ExitStack()
        self._hand_on(lambda shown: entered.enter_context(shown.aside()))
        try:
            yield
        finally:
            self._hand_on(lambda _: entered.close())

    def _hand_on(self, tell: Callable[[Shown], object]) -> None:
        try:
            tell(self._shown)
        except Exception:  # noqa: BLE001  # the stream may be the user's
            self._shown = ShownNowhere()


class Telling:
    """What one worker tells.

    `look` tells how far each kind is; `now` is the time in seconds.
    """

    def __init__(
        self, shown: Shown, look: Callable[[], Sequence[KindProgress]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._shown = UnfailingShown(shown)
        self._look = look
        self._now = now
        self._progress: Sequence[KindProgress] = ()
        self._next_look = now()
        self._kind: Phase | None = None
        self._left_to_others: set[Phase] = set()

    def note(self, words: str) -> None:
        """What the user should know."""
        self._shown.note(printable(words))

    @contextlib.contextmanager
    def doing(self, task: ClaimedTask) -> Iterator[None]:
        """Tell that this worker has begun `task`, which it does inside."""
        attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
        self._shown.show(
            task.hold.kind, f"{task_name(task.hold.kind, task.hold.place)}{attempt}", self._counted(task.hold.kind)
        )
        if task.hold.kind is Phase.SAVE:  # which tells its own steps
            with self._shown.aside():
                yield
        else:
            yield

    def failed(self, hold: TaskHold, type_name: str, message: str) -> None:
        """Tell that the function of a task raised; of a message the first line."""
        first = message.strip().partition("\n")[0]
        what = type_name.removeprefix("builtins.")
        self.note(f"{task_name(hold.kind, hold.place)} failed: {f'{what}: {first}' if first else what}")

    def given_back(self, holds: Iterable[TaskHold]) -> None:
        """Tell that somebody interrupted this worker, which had these tasks."""
        for hold in holds:
            self.note(f"interrupted: {task_name(hold.kind, hold.place)} was released; another worker may take it")

    def waits(self, blocked: Blocked, *, has_function: bool) -> None:
        """Tell that there is nothing to do for this worker now; `has_function`: for the kind that is worked on."""
        if not has_function and blocked.kind not in self._left_to_others:
            self._left_to_others.add(blocked.kind)
            self.note(f"this process has no function for {blocked.kind} and leaves it to other workers")
        self._shown.show(blocked.kind, "waiting for other workers", self._counted(blocked.kind))

    def _counted(self, kind: Phase) -> Sequence[KindProgress]:
        now = self._now()
        if now >= self._next_look or kind is not self._kind:
            self._kind = kind
            self._next_look = now + LOOK_SECONDS
            with contextlib.suppress(PenstockError):  # it was told already, or will be
                self._progress = self._look()
        return self._progress
