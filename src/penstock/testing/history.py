"""Check what happened to jobs: nothing lost, nothing done twice, whatever was killed or stood still meanwhile.

    store = RecordedStore(open_store(url), log_to(path))   # in each process
    with record_call(path, job_ids): ...                   # in the stage
    ...
    with open(path, "rb") as lines:
        check_history(read_events(lines), store.list_jobs(None, 10_000, None), most_held=64)

What is checked, of jobs that are not purged:

* I1: each run of a job that was accepted ends once, and in the end every job has ended.
* I2: nobody renews or commits after another has claimed the job, and each claim of a job has a fence of its own.
* I3: an effect comes after what it stands for, and once: a commit after the model's call, a move after its commit.
* I4: the attempts that count are those that were told or lost, by their causes.
* I5: a lease is nobody else's before it runs out, its holder renews it in time, and it is claimed soon afterwards; its
  holder's own claim does not take it.
* I6: nobody holds more than may be held.
* I7: the calls of one model never overlap.
* I8: a claim hands out what its rooms have place for: jobs of their services and kinds, and of each host its share.
* I9: a claim hands out a job from each room that has place for one that waits.

A judgement is passed only where the log leaves no doubt: an act takes place at some moment between its two lines, and
one without its second line may have been done or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.jobs.job import Job
from penstock.testing.history_events import Act, Event, EventLog, Part, log_to, read_events, record_call
from penstock.testing.history_index import Bounds, History
from penstock.testing.history_rules import RULES, all_ended
from penstock.testing.recorded_store import RecordedStore

__all__ = ["Act", "Event", "EventLog", "Part", "RecordedStore", "check_history", "log_to", "read_events", "record_call"]


def check_history(
    events: Sequence[Event],
    jobs: Sequence[Job],
    *,
    finished: bool = True,
    reclaim_within: float | None = None,
    most_held: int | None = None,
    most_held_bytes: int | None = None,
) -> None:
    """Raise AssertionError if a promise is broken, with the job and the lines of the log that show it.

    Args:
        events: what was recorded; see `read_events`.
        jobs: all jobs as the store has them in the end.
        finished: whether every job should have ended.
        reclaim_within: the seconds from the end of a lease to the next claim, at most; None where nobody may have had
            room to claim.
        most_held: the jobs that a process may hold at once; None is not checked.
        most_held_bytes: the bytes of their inputs together; one job alone may have more.
    """
    history = History(events, jobs)
    bounds = Bounds(reclaim_within, most_held, most_held_bytes)
    breaches = [breach for rule in RULES for breach in rule(history, bounds)]
    if finished:
        breaches += all_ended(history)
    assert not breaches, "\n".join(map(str, breaches[:10]))
