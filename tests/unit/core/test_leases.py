import pytest

from penstock.core.leases import longest_call, reconnect_delay, renewal_delay, retry_delay


def test_a_lease_is_renewed_each_third_give_or_take_a_fifth():
    assert renewal_delay(30.0, 0.5) == pytest.approx(10.0)
    assert renewal_delay(30.0, 0.0) == pytest.approx(8.0)
    assert renewal_delay(30.0, 1.0) == pytest.approx(12.0)


@pytest.mark.parametrize("lease", [1.0, 30.0, 3600.0])
def test_two_renewals_that_fail_leave_time_for_a_third(lease):
    assert renewal_delay(lease, 1.0) + 2 * retry_delay(lease, 1.0) < 0.6 * lease


@pytest.mark.parametrize("lease", [1.0, 15.0, 3600.0])
def test_a_renewal_that_is_never_answered_leaves_time_for_another(lease):
    assert renewal_delay(lease, 1.0) + longest_call(lease) + retry_delay(lease, 1.0) < 0.9 * lease
    assert longest_call(lease) <= 5.0


def test_a_long_lease_is_tried_again_within_seconds():
    assert retry_delay(3600.0, 1.0) == 2.0


def test_a_store_is_asked_again_after_rests_that_double_to_five_seconds():
    assert [reconnect_delay(n, 1.0) for n in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert reconnect_delay(7, 1.0) == 5.0
    assert reconnect_delay(10_000, 1.0) == 5.0
    assert reconnect_delay(1, 0.0) == 0.05
