"""Count in a worker, and have the coordinator told once a second.

Contract
--------
* A worker that counts nothing has no thread, no timer and no frame for it.
* A count is sent at most `INTERVAL_SECONDS` after it was made, also while a call goes on, and at the end of a worker
  that ends in order.  A worker that is killed loses what it has not sent.
* A count is sent once: what could not be sent waits for the next connection.
* Any thread of a worker process may count; in a process that a worker has forked nothing counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from penstock.core.series import (
    LONGEST_VALUE,
    MOST_SERIES,
    OWN,
    USER,
    Series,
    SeriesCounts,
    amount_of,
    check_series,
    series_of,
)
from penstock.errors import ConfigError

INTERVAL_SECONDS: Final = 1.0

Counted: TypeAlias = list[tuple[Series, float]]
"""Series, and what was counted of each since it was sent last."""
SendCounts: TypeAlias = Callable[[Counted], Counted]
"""Sends what was counted, from any thread; returns what it could not send."""


class Counting:
    """Counts of one worker that are not sent yet, and the thread that sends them, from the first count on.

    With `whole_process` it is that of every thread of this process, else of the thread that has begun it.
    """

    def __init__(self, send: SendCounts, *, whole_process: bool) -> None:
        self._send = send
        self._whole_process = whole_process
        self._lock = threading.Lock()
        self._pending: dict[Series, float] = {}
        # One more than the coordinator takes, so that it sees that there are more, and says so.
        self._known = SeriesCounts(MOST_SERIES + 1)
        self._labels: dict[str, tuple[str, ...]] = {}
        """The names of the labels of each counter."""
        self._awake = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        """Let `count` find this."""
        global _of_process  # noqa: PLW0603  # each worker process has one, for all of its threads
        if self._whole_process:
            _of_process = self
        else:
            _of_thread.counting = self

    def __exit__(self, *_: object) -> None:
        """Send what is left, and count no more."""
        global _of_process  # noqa: PLW0603
        if counting_here() is not self:
            return  # a fork that comes back from the stage: what is left is its parent's
        if self._whole_process:
            _of_process = None
        else:
            del _of_thread.counting
        self._over.set()
        self._awake.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self.flush()

    def add(self, series: Series, amount: float) -> None:
        """Count `amount`; ConfigError where there can be no such series."""
        with self._lock:
            if series in self._pending:
                self._pending[series] += amount
            elif series in self._known or self._admit(series):
                self._pending[series] = amount
            else:
                return
            if self._awake.is_set():
                return
            self._awake.set()
            if self._thread is None and not self._over.is_set():
                self._begin_to_send()

    def _admit(self, series: Series) -> bool:
        """Make a place for a new series; False if there is none."""
        check_series(series)
        name, labels = series
        given = tuple([label for label, _ in labels])
        before = self._labels.get(name, given)
        if before != given:
            raise ConfigError(
                f"the counter {name.removeprefix(USER)!r} was used before with the labels {_listed(before)}, now with "
                f"{_listed(given)}: use the same labels each time"
            )
        if not self._known.add(series, 0.0):
            return False
        self._labels[name] = given
        return True

    def flush(self) -> None:
        """Send what was counted until now."""
        with self._lock:
            pending, self._pending = self._pending, {}
        if not pending:
            return
        unsent = self._send(list(pending.items()))
        if unsent:
            with self._lock:
                for series, amount in unsent:
                    self._pending[series] = self._pending.get(series, 0.0) + amount

    def _begin_to_send(self) -> None:
        thread = threading.Thread(target=self._send_on, name="penstock-counts", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads: the next count tries again
            self._awake.clear()
            return
        self._thread = thread

    def _send_on(self) -> None:
        while True:
            self._awake.wait()
            if self._over.wait(INTERVAL_SECONDS):
                return
            self._awake.clear()
            self.flush()


def _listed(labels: tuple[str, ...]) -> str:
    return "(" + ", ".join(labels) + ")"


_of_process: Counting | None = None
_of_thread = threading.local()


def _forget() -> None:
    """Count no more: this process is a fork of a worker, has none of its threads, and may have its lock held."""
    global _of_process, _of_thread
    _of_process, _of_thread = None, threading.local()


os.register_at_fork(after_in_child=_forget)


def count(name: str, n: float = 1, /, **labels: Any) -> None:
    """Count `n` more of `name`, which `/metrics` shows as ``penstock_user_NAME_total`` of this service and stage.

    Call it in `setup`, `predict` or what they call, also in threads that the stage has started in its process.  Outside
    of a worker, and in processes that the stage starts, nothing is counted.  Counts are sent once a second; a worker
    that is killed loses those of its last second.

    Args:
        name: A lower-case letter, then lower-case letters, digits and underscores, at most 100 in all.
        n: A number from 0 to 2**53; 0 shows the counter before anything has happened.
        labels: At most 10, the same for each count of that name.  Values are taken as texts, of which the first 200
            characters count.  A stage has at most 1000 combinations of name and values; more are dropped.

    Raises:
        ConfigError: such a name, number or label cannot be counted.
    """
    _count(f"{USER}{name}", n, labels)


def flush_counts() -> None:
    """Send at once what this worker has counted."""
    counting = counting_here()
    if counting is not None:
        counting.flush()


def count_own(name: str, n: float, /, **labels: str) -> None:
    """Count `n` more of a counter of Penstock's own, one of `core.series.OWN`, as `count` does it for users."""
    if name not in OWN:
        raise ConfigError(f"{name!r} is not one of Penstock's own counters: {', '.join(OWN)}")
    _count(name, n, labels)


def _count(name: str, n: Any, labels: dict[str, Any]) -> None:
    amount = float(n) if type(n) is int and 0 <= n <= 1 << 53 else amount_of(n)
    for label, value in labels.items():
        text = value if type(value) is str else str(value)
        if not text.isascii() or len(text) > LONGEST_VALUE:
            # A lone surrogate, which a file's name may have, cannot be sent.
            text = text[:LONGEST_VALUE].encode("utf-8", "replace").decode()
        labels[label] = text
    series = series_of(name, labels)
    counting = counting_here()
    if counting is None:
        check_series(series)
    else:
        counting.add(series, amount)


def counting_here() -> Counting | None:
    """The counting of the worker that this thread works for; None where it works for none."""
    return _of_thread.__dict__.get("counting") or _of_process


def count_in_thread(counting: Counting | None) -> None:
    """Have this thread count in `counting`, that of the worker it works for."""
    _of_thread.counting = counting
