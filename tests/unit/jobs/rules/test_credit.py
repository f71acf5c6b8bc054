from penstock.jobs.rules.credit import NO_CREDIT, Credit, credit


def allowed(**given):
    usual = {
        "held": 0,
        "begun": 0,
        "held_bytes": 0,
        "window": 4,
        "downloads": 0,
        "concurrency": 0,
        "max_bytes": 1000,
    }
    return credit(**{**usual, **given})


def test_an_empty_consumer_claims_one_batch_for_each_worker():
    assert allowed(window=64) == Credit(64, 1000)


def test_what_has_not_begun_takes_its_place_and_what_has_begun_does_not():
    assert allowed(held=3, begun=0).jobs == 1
    assert allowed(held=3, begun=3).jobs == 4
    assert allowed(held=4, begun=0) == NO_CREDIT
    assert allowed(held=9, begun=2) == NO_CREDIT


def test_each_download_at_a_time_is_one_job_more():
    assert allowed(downloads=8).jobs == 12


def test_concurrency_bounds_all_that_is_held():
    assert allowed(concurrency=1).jobs == 1
    assert allowed(concurrency=1, held=1, begun=1) == NO_CREDIT
    assert allowed(concurrency=6, held=4, begun=4).jobs == 2


def test_bytes_that_are_held_leave_room_for_the_rest_only():
    assert allowed(held_bytes=400).nbytes == 600
    assert allowed(held_bytes=1000) == NO_CREDIT
    assert allowed(held_bytes=2000) == NO_CREDIT


def test_a_service_without_a_worker_claims_nothing():
    assert allowed(window=0, downloads=8) == NO_CREDIT
