"""How much of a failure is written; random histories against a plain list of what was written."""

from __future__ import annotations

import math
import random

import pytest

from night import histories
from penstock.core.fault_lines import (
    COUNT_SECONDS,
    LINES_PER_SECOND,
    MAX_KINDS,
    OTHERS,
    TRACEBACK_SECONDS,
    Detail,
    FaultKind,
    FaultLines,
)
from rows import each

TRACEBACK, LINE, COUNT = Detail.TRACEBACK, Detail.LINE, Detail.COUNT


def kind(n=0):
    return FaultKind("stage", "ValueError", f"model.py:{n}")


def judge(lines, now, n=1, of=None, *, has_traceback=True):
    return lines.judge(of or kind(), n, now, has_traceback=has_traceback)


def test_the_first_has_its_traceback_ten_more_are_lines_and_the_rest_is_counted():
    lines = FaultLines()
    assert [judge(lines, 5.0) for _ in range(14)] == [TRACEBACK] + [LINE] * 10 + [COUNT] * 3
    assert lines.next_count() == 6.0
    assert lines.take_counts(5.999) == []
    assert lines.take_counts(6.0) == [(kind(), 3)]
    assert (lines.next_count(), lines.take_counts(math.inf)) == (math.inf, [])


def test_kinds_beyond_the_limit_are_judged_as_one():
    lines = FaultLines()
    assert [judge(lines, 0.0, of=kind(n)) for n in range(MAX_KINDS)] == [TRACEBACK] * MAX_KINDS
    assert [judge(lines, 0.0, of=kind(n)) for n in range(MAX_KINDS, MAX_KINDS + 14)] == (
        [TRACEBACK] + [LINE] * 10 + [COUNT] * 3
    )
    assert lines.take_counts(1.0) == [(OTHERS, 3)]
    assert judge(lines, 1.0, of=kind(0)) is LINE, "those that are known stay known"


@pytest.mark.parametrize("busy", ["its traceback", "a line", "a count"])
def test_only_a_kind_of_which_nothing_is_to_be_remembered_makes_room(busy):
    lines = FaultLines()
    for n in range(MAX_KINDS):
        judge(lines, 0.0, of=kind(n))
    now = 9.0 if busy == "its traceback" else TRACEBACK_SECONDS
    if busy == "a count":
        for _ in range(12):
            judge(lines, 8.0, of=kind(3))
    if busy == "a line":
        judge(lines, 9.5, of=kind(3))
    judge(lines, now, of=kind(200))
    known = set(lines._records)
    if busy == "its traceback":
        assert kind(200) not in known
        assert len(known) == MAX_KINDS
    else:
        assert known == {kind(3), kind(200)}


class Model:
    """All that was ever written, as a list, and the counts."""

    def __init__(self):
        self.written = []
        self.counts = {}

    def judge(self, of, n, now, has_traceback):
        tracebacks = [at for k, d, at in self.written if k == of and d is TRACEBACK]
        if has_traceback and all(now - at >= TRACEBACK_SECONDS for at in tracebacks):
            detail = TRACEBACK
        elif sum(1 for k, d, at in self.written if k == of and d is LINE and now - at < 1.0) < LINES_PER_SECOND:
            detail = LINE
        else:
            first, counted = self.counts.get(of, (now, 0))
            self.counts[of] = (first, counted + n)
            return COUNT
        self.written.append((of, detail, now))
        return detail

    def take(self, now):
        due = {k: n for k, (first, n) in self.counts.items() if now >= first + COUNT_SECONDS}
        for k in due:
            del self.counts[k]
        return due

    def next_count(self):
        return min((first + COUNT_SECONDS for first, _ in self.counts.values()), default=math.inf)


@each("seed", range(histories(200)))
def test_random_histories_are_judged_as_a_plain_list_of_all_that_was_written_would(seed):
    rng = random.Random(seed)
    lines, model = FaultLines(), Model()
    # Eighths of a second are exact as floats, so sums of them compare as they should.
    now = 0.0
    pace = rng.choice([0, 1, 3, 20])
    total, told = 0, 0
    for _ in range(400):
        now += rng.randint(0, pace) / 8 if rng.random() < 0.3 else 0.0
        if rng.random() < 0.1:
            taken = lines.take_counts(now)
            assert dict(taken) == model.take(now)
            told += sum(n for _, n in taken)
        of, n, has_traceback = kind(rng.randrange(4)), rng.randint(1, 5), rng.random() < 0.8
        detail = judge(lines, now, n, of, has_traceback=has_traceback)
        assert detail is model.judge(of, n, now, has_traceback)
        total += n
        told += n if detail is not COUNT else 0
        assert lines.next_count() == model.next_count()
    assert told + sum(n for _, n in lines.take_counts(math.inf)) == total
