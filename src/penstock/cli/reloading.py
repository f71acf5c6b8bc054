"""Decide when a changed service takes the place of the one that serves.  No clock, no process, no file.

Contract
--------
* A changed file is first tried: imported in a process of its own.  While it is broken the old service serves on.
* The new service starts when the old one has ended, never before: its model may fill the GPU.
* No change is lost.  One that comes while the old service ends is in what is started next; one that comes later is
  tried in its turn.
* Changes that follow each other within `QUIET_SECONDS` are one change, for at most `MOST_QUIET_SECONDS`.
* A service that ends by itself is not started again before a file changes.
* After a stop nothing is started.  A service that is told a second time to end has `AT_ONCE_SECONDS` left.
"""

from __future__ import annotations

from enum import Enum

QUIET_SECONDS = 0.1
"""How long no file must have changed: an editor writes a file in several steps, and a formatter writes it again."""
MOST_QUIET_SECONDS = 2.0
"""How long a change waits at most while others follow it."""
TRIAL_SECONDS = 60.0
"""How long the import of a changed module may take; as long as a step of `penstock check`."""
AT_ONCE_SECONDS = 1.0
"""How long a service may take that was told to end at once."""
END_SECONDS = 15.0
"""How long a service may take to end: the drain, the end of its workers, what its module has left running."""


class Phase(Enum):
    """What there is."""

    WAITING = "waiting"
    """No service: the last one could not be started, or has ended."""
    RUNNING = "running"
    """A service, which serves or loads its models."""
    TRYING = "trying"
    """A service, and beside it a process that imports what has changed."""
    ENDING = "ending"
    """A service that was told to end, so that a new one can start."""
    STOPPING = "stopping"
    """A service that was told to end, and none shall follow."""
    STOPPED = "stopped"
    """Nothing, for good."""


class Do(Enum):
    """What the driver is to do."""

    START = "start"
    """Start the service."""
    END = "end"
    """Tell the service to end."""
    KILL = "kill"
    """Kill the service: it does not end."""
    TRY = "try"
    """Import what has changed in a process of its own."""
    GIVE_UP_TRIAL = "give up trial"
    """Kill that process."""
    TELL_IT_HANGS = "tell it hangs"
    """Say that the import takes too long."""


class Reloading:
    """The life of one service that is reloaded; each method returns what is to be done, in order."""

    def __init__(self) -> None:
        self.phase = Phase.WAITING
        self._first_change: float | None = None
        """When the first change came that was not looked at yet."""
        self._due = 0.0
        """When the changes are looked at, if there are any."""
        self._limit = 0.0
        """When a trial has taken too long, or a service to end."""

    def begin(self) -> list[Do]:
        """Start the first service, without a trial: there is none that could serve on."""
        self.phase = Phase.RUNNING
        return [Do.START]

    def changed(self, now: float) -> list[Do]:
        """A file has changed."""
        if self.phase not in (Phase.WAITING, Phase.RUNNING, Phase.TRYING):
            return []  # what is started next is what the files hold then
        if self._first_change is None:
            self._first_change = now
        self._due = min(now + QUIET_SECONDS, self._first_change + MOST_QUIET_SECONDS)
        if self.phase is Phase.TRYING:
            self.phase = Phase.RUNNING
            return [Do.GIVE_UP_TRIAL]
        return []

    def tried(self, now: float, *, well: bool) -> list[Do]:
        """The trial has ended: `well` says whether the service can be imported."""
        if self.phase is not Phase.TRYING:
            return []
        if not well:
            self.phase = Phase.RUNNING
            return []
        return self._end(Phase.ENDING, now)

    def ended(self) -> list[Do]:
        """The service has ended, whyever."""
        before = self.phase
        match before:
            case Phase.RUNNING:
                self.phase = Phase.WAITING
                return []
            case Phase.TRYING:
                self.phase = Phase.RUNNING
                return [Do.GIVE_UP_TRIAL, Do.START]
            case Phase.ENDING:
                self.phase = Phase.RUNNING
                return [Do.START]
            case _:
                self.phase = Phase.STOPPED
                return []

    def stop(self, now: float) -> list[Do]:
        """End for good; also when it was asked for before."""
        match self.phase:
            case Phase.STOPPING | Phase.STOPPED:
                return []
            case Phase.WAITING:
                self.phase = Phase.STOPPED
                return []
            case Phase.TRYING:
                return [Do.GIVE_UP_TRIAL, *self._end(Phase.STOPPING, now)]
            case Phase.ENDING:  # it was told to end; told twice it would end at once
                self.phase = Phase.STOPPING
                return []
            case _:
                return self._end(Phase.STOPPING, now)

    def hurry(self, now: float) -> None:
        """The service was told a second time to end."""
        if self.phase is Phase.STOPPING:
            self._limit = min(self._limit, now + AT_ONCE_SECONDS)

    def next_deadline(self) -> float | None:
        """When `at` has something to do, or None where only an event can bring it."""
        match self.phase:
            case Phase.WAITING | Phase.RUNNING:
                return None if self._first_change is None else self._due
            case Phase.STOPPED:
                return None
            case _:
                return self._limit

    def at(self, now: float) -> list[Do]:
        """What is due at `now`."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        match self.phase:
            case Phase.WAITING:
                self._first_change = None
                return self.begin()
            case Phase.RUNNING:
                self._first_change = None
                self._limit = now + TRIAL_SECONDS
                self.phase = Phase.TRYING
                return [Do.TRY]
            case Phase.TRYING:
                self.phase = Phase.RUNNING
                return [Do.GIVE_UP_TRIAL, Do.TELL_IT_HANGS]
            case _:
                self._limit = now + END_SECONDS
                return [Do.KILL]

    def _end(self, phase: Phase, now: float) -> list[Do]:
        self.phase = phase
        self._first_change = None
        self._limit = now + END_SECONDS
        return [Do.END]
