"""Decide for how long a stage has had work and given nothing back.  Pure: it is told what happened and when.

Contract
--------
* The time counts from the last answer, or from the moment at which work came to a stage that had none, whichever is
  later.  So a night without work is no stall, however long ago the last answer was.
* Work is what runs in a worker, and what waits for one.  What a free worker leaves waiting is none: the items wait for
  company, or for room behind the stage, and the stage could go on any time.
* Only an answered batch is an answer.  A worker that died has given nothing back, and neither has one that loads its
  model anew.
* Who is told of the time does not end it, and nothing is ended by it: a long batch may be no fault at all.
"""

from __future__ import annotations


class StageProgress:
    """One stage's record.  `stalls_after` are the seconds after which it has stalled; inf is never."""

    __slots__ = ("_since", "at_work", "stalls_after")

    def __init__(self, stalls_after: float) -> None:
        self.stalls_after = stalls_after
        self.at_work = False
        """Whether work waits or runs."""
        self._since = 0.0

    def work_changed(self, at_work: bool, now: float) -> None:
        """Work has come to a stage that had none, or the last of it is gone."""
        self.at_work = at_work
        self._since = now

    def answered(self, now: float) -> None:
        """A batch has come back."""
        self._since = now

    def age(self, now: float) -> float:
        """For how many seconds nothing has come back while there was work; 0 without work."""
        return now - self._since if self.at_work else 0.0

    def stalled(self, now: float) -> bool:
        """Whether that is too long."""
        return self.at_work and now >= self.stalls_at

    @property
    def stalls_at(self) -> float:
        """The moment from which that is too long, if nothing comes back before and there is work.

        It is compared with `now` as it is: the difference to it may be too small for a clock to go on by.
        """
        return self._since + self.stalls_after
