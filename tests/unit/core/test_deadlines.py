"""Requests that run out of time, against a plain list."""

from __future__ import annotations

import math
import sys
from random import Random

from penstock.core.deadlines import BUCKETS_PER_SECOND, Deadlines
from rows import each

BUCKET = 1 / BUCKETS_PER_SECOND


def test_adding_says_whether_the_next_moment_came_nearer(request_of):
    deadlines = Deadlines()
    assert deadlines.add(request_of(deadline=5.0)) is True
    assert deadlines.add(request_of(deadline=6.0)) is False
    assert deadlines.add(request_of(deadline=5.0)) is False
    assert deadlines.add(request_of(deadline=4.0)) is True
    assert deadlines.next_moment() == 4.0


def test_an_expired_request_is_told_once(request_of):
    deadlines = Deadlines()
    request = request_of(deadline=5.0)
    deadlines.add(request)
    assert deadlines.expired(4.999) == []
    assert deadlines.expired(5.0) == [request]
    assert deadlines.expired(6.0) == []


def test_a_settled_request_is_not_told(request_of):
    deadlines = Deadlines()
    a, b = request_of(deadline=5.0), request_of(deadline=5.0)
    deadlines.add(a)
    deadlines.add(b)
    deadlines.discard(a)
    deadlines.discard(a)
    assert deadlines.expired(5.0) == [b]
    deadlines.discard(b)


def test_whoever_asks_at_the_next_moment_is_told_and_never_early(request_of):
    for tick in range(1, 2000):
        for deadline in (tick * BUCKET, math.nextafter(tick * BUCKET, math.inf), tick * BUCKET + BUCKET / 3):
            deadlines = Deadlines()
            request = request_of(deadline=deadline)
            deadlines.add(request)
            moment = deadlines.next_moment()
            assert deadline - 1e-9 <= moment <= deadline + BUCKET + 1e-9
            assert deadlines.expired(math.nextafter(moment, 0.0)) == []
            assert deadlines.expired(moment) == [request]


@each("seed", range(50))
def test_random_histories_agree_with_a_plain_list(seed, request_of):
    random = Random(seed)
    deadlines, watched = Deadlines(), []
    now = 1000.0
    for _ in range(200):
        step = random.random()
        if step < 0.5:
            request = request_of(deadline=now + random.choice((0.0, 0.003, 0.01, 0.5, 3.0, math.inf)))
            deadlines.add(request)
            if request.deadline != math.inf:
                watched.append(request)
        elif step < 0.7 and watched:
            request = watched.pop(random.randrange(len(watched)))
            deadlines.discard(request)
        else:
            now += random.choice((0.0, 0.004, 0.1, 1.0))
            told = deadlines.expired(now)
            assert len(told) == len(set(told))
            assert all(request in watched and request.deadline <= now + 1e-9 for request in told)
            watched = [request for request in watched if request not in told]
            assert all(request.deadline + BUCKET + 1e-9 > now for request in watched), "noticed within a bucket"
            moment = deadlines.next_moment()
            assert moment is None or moment > now
            if watched:
                assert moment <= min(request.deadline for request in watched) + BUCKET + 1e-9


def test_a_bucket_that_is_empty_again_holds_no_memory(request_of):
    deadlines = Deadlines()
    requests = [request_of(deadline=5.0) for _ in range(1000)]
    for request in requests:
        deadlines.add(request)
    bucket = requests[0].bucket
    for request in requests:
        deadlines.discard(request)
    assert sys.getsizeof(bucket) == sys.getsizeof(set())


def test_a_long_deadline_leaves_no_more_behind_than_a_short_one(request_of):
    deadlines = Deadlines()
    for i in range(50_000):
        request = request_of(deadline=3600.0 + i / BUCKETS_PER_SECOND)
        deadlines.add(request)
        deadlines.discard(request)
    kept = request_of(deadline=1e6)
    deadlines.add(kept)
    assert len(deadlines._buckets) < 3000
    assert len(deadlines._order) == len(deadlines._buckets)
    assert deadlines.expired(2e6) == [kept]


def test_a_deadline_is_noticed_within_ten_milliseconds(request_of):
    deadlines = Deadlines()
    deadlines.add(request_of(deadline=5.001))
    assert deadlines.next_moment() == 5.01


def test_emptied_buckets_are_swept_out_when_as_many_again_as_are_left_may_have_come(request_of):
    deadlines = Deadlines()

    def add(buckets):
        made = [request_of(deadline=(bucket - 0.5) / BUCKETS_PER_SECOND) for bucket in buckets]
        for request in made:
            deadlines.add(request)
        return made

    for request in add(range(5000, 6000)):
        deadlines.discard(request)
    assert len(deadlines._order) == 1000, "so many may lie ahead"
    kept = add(range(1500, 500, -1))
    assert len(deadlines._order) == len(deadlines._buckets) == 1000, "the next one swept them out"
    for request in add(range(5000, 7001)):
        deadlines.discard(request)
    kept += add(range(405, 400, -1))
    assert len(deadlines._order) == 3006, "the last sweep left 1003: twice that and a thousand may lie ahead"
    kept += add([400])
    assert len(deadlines._order) == len(deadlines._buckets) == 1006
    assert deadlines.next_moment() == 4.0
    assert deadlines.expired(20.0) == kept[::-1]
