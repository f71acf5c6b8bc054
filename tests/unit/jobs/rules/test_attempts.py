import pytest

from penstock.jobs.rules.attempts import LONGEST_REST_SECONDS, MOST_ATTEMPTS, Cause, judge


@pytest.mark.parametrize(
    ("cause", "most"),
    [(Cause.APPLICATION, 3), (Cause.CRASH, 2), (Cause.LOST, 5), (Cause.TRANSFER, 10), (Cause.INPUT, 1)],
)
def test_the_last_attempt_of_a_cause_ends_the_run(cause, most):
    counts = {}
    for _ in range(most - 1):
        verdict = judge(counts, cause, alone=True, backoff=1.0, draw=0.5)
        assert not verdict.dead
        assert verdict.counts
        counts[cause] = counts.get(cause, 0) + 1
    assert judge(counts, cause, alone=True, backoff=1.0, draw=0.5).dead


def test_every_cause_but_released_has_a_last_attempt():
    assert set(Cause) - set(MOST_ATTEMPTS) == {Cause.RELEASED}


def test_causes_are_counted_apart():
    almost = {cause: most - 1 for cause, most in MOST_ATTEMPTS.items()}
    del almost[Cause.CRASH]
    assert not judge(almost, Cause.CRASH, alone=True, backoff=1.0, draw=0.5).dead


def test_a_release_counts_for_nothing_and_waits_for_nothing():
    for _ in range(100):
        assert judge({"released": 100}, Cause.RELEASED, alone=False, backoff=1.0, draw=1.0) == (False, False, False, 0)


def test_a_crash_among_others_is_not_counted_but_the_job_runs_alone_from_then_on():
    verdict = judge({"crash": 1}, Cause.CRASH, alone=False, backoff=1.0, draw=0.5)
    assert (verdict.dead, verdict.counts, verdict.alone) == (False, False, True)


@pytest.mark.parametrize("cause", [Cause.APPLICATION, Cause.CRASH, Cause.LOST])
def test_who_may_have_failed_through_others_runs_alone(cause):
    assert judge({}, cause, alone=True, backoff=1.0, draw=0.5).alone


def test_a_broken_transfer_is_no_reason_to_run_alone():
    assert not judge({}, Cause.TRANSFER, alone=False, backoff=1.0, draw=0.5).alone


def test_the_rest_doubles_with_each_attempt_that_counts_and_is_drawn_below_that():
    def rest(counted, draw):
        return judge({"transfer": counted}, Cause.TRANSFER, alone=False, backoff=1.0, draw=draw).rest

    assert [rest(n, 1.0) for n in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert rest(3, 0.25) == 2.0
    assert rest(3, 0.0) == 0.0
    assert rest(9, 1.0) == 0.0  # the tenth ends it
    many = {"transfer": 5, "lost": 4, "application": 1}
    assert judge(many, Cause.TRANSFER, alone=False, backoff=1.0, draw=1.0).rest == LONGEST_REST_SECONDS


def test_who_lost_a_lease_rests_no_longer():
    assert judge({"application": 2}, Cause.LOST, alone=True, backoff=1.0, draw=1.0).rest == 0.0


def test_a_backoff_of_zero_is_no_rest():
    assert judge({"application": 1}, Cause.APPLICATION, alone=True, backoff=0.0, draw=1.0).rest == 0.0
