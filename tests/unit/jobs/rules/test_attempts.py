import pytest

from penstock.jobs.rules.attempts import LONGEST_REST_SECONDS, MOST_ATTEMPTS, FailureCause, judge


@pytest.mark.parametrize(
    ("cause", "most"),
    [
        (FailureCause.APPLICATION, 3),
        (FailureCause.WORKER_LOST, 2),
        (FailureCause.LEASE_EXPIRED, 5),
        (FailureCause.TRANSFER, 10),
        (FailureCause.INVALID_INPUT, 1),
    ],
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
    assert set(FailureCause) - set(MOST_ATTEMPTS) == {FailureCause.RELEASED}


def test_causes_are_counted_apart():
    almost = {cause: most - 1 for cause, most in MOST_ATTEMPTS.items()}
    del almost[FailureCause.WORKER_LOST]
    assert not judge(almost, FailureCause.WORKER_LOST, alone=True, backoff=1.0, draw=0.5).dead


def test_a_release_counts_for_nothing_and_waits_for_nothing():
    for _ in range(100):
        assert judge({"released": 100}, FailureCause.RELEASED, alone=False, backoff=1.0, draw=1.0) == (
            False,
            False,
            False,
            0,
        )


def test_a_crash_among_others_is_not_counted_but_the_job_runs_alone_from_then_on():
    verdict = judge({"worker_lost": 1}, FailureCause.WORKER_LOST, alone=False, backoff=1.0, draw=0.5)
    assert (verdict.dead, verdict.counts, verdict.alone) == (False, False, True)


@pytest.mark.parametrize("cause", [FailureCause.APPLICATION, FailureCause.WORKER_LOST, FailureCause.LEASE_EXPIRED])
def test_who_may_have_failed_through_others_runs_alone(cause):
    assert judge({}, cause, alone=True, backoff=1.0, draw=0.5).alone


def test_a_broken_transfer_is_no_reason_to_run_alone():
    assert not judge({}, FailureCause.TRANSFER, alone=False, backoff=1.0, draw=0.5).alone


def test_the_rest_doubles_with_each_attempt_that_counts_and_is_drawn_below_that():
    def rest(counted, draw):
        return judge({"transfer": counted}, FailureCause.TRANSFER, alone=False, backoff=1.0, draw=draw).rest

    assert [rest(n, 1.0) for n in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert rest(3, 0.25) == 2.0
    assert rest(3, 0.0) == 0.0
    assert rest(9, 1.0) == 0.0  # the tenth ends it
    many = {"transfer": 5, "lease_expired": 4, "application": 1}
    assert judge(many, FailureCause.TRANSFER, alone=False, backoff=1.0, draw=1.0).rest == LONGEST_REST_SECONDS


def test_who_lost_a_lease_rests_no_longer():
    assert judge({"application": 2}, FailureCause.LEASE_EXPIRED, alone=True, backoff=1.0, draw=1.0).rest == 0.0


def test_a_backoff_of_zero_is_no_rest():
    assert judge({"application": 1}, FailureCause.APPLICATION, alone=True, backoff=0.0, draw=1.0).rest == 0.0
