from penstock.jobs.rules.credit import NO_CREDIT, Credit, credit


def allowed(**given):
    usual = {
        "held": 0,
        "fetching": 0,
        "ready": 0,
        "held_bytes": 0,
        "window": 4,
        "downloads": 8,
        "concurrency": 0,
        "max_bytes": 1000,
    }
    return credit(**{**usual, **given})


def test_an_empty_consumer_claims_one_batch_for_each_worker_and_what_it_fetches_at_a_time():
    assert allowed(window=64) == Credit(64, 8, 1000)


def test_what_has_not_begun_takes_its_place_and_what_has_begun_does_not():
    assert allowed(held=3, ready=3).jobs == 1
    assert allowed(held=3, ready=0).jobs == 4
    assert allowed(held=4, ready=4) == Credit(0, 8, 1000)
    assert allowed(held=9, ready=4).jobs == 0


def test_what_is_fetched_takes_no_place_of_a_job_that_has_its_input():
    assert allowed(held=8, fetching=8) == Credit(4, 0, 1000)
    assert allowed(held=5, fetching=5) == Credit(4, 3, 1000)


def test_what_was_fetched_and_is_more_than_the_model_needs_next_keeps_its_place():
    assert allowed(held=4, ready=4, fetching=0).fetched == 8
    assert allowed(held=9, ready=9, fetching=0) == Credit(0, 3, 1000)
    assert allowed(held=12, ready=9, fetching=3) == NO_CREDIT


def test_concurrency_bounds_all_that_is_held():
    assert allowed(concurrency=1) == Credit(1, 0, 1000)
    assert allowed(concurrency=1, fetched_first=True) == Credit(0, 1, 1000)
    assert allowed(concurrency=1, held=1) == NO_CREDIT
    assert allowed(concurrency=6, held=4, fetching=1) == Credit(2, 0, 1000)
    assert allowed(concurrency=9, held=0) == Credit(4, 5, 1000)


def test_bytes_that_are_held_leave_room_for_the_rest_only():
    assert allowed(held_bytes=400).nbytes == 600
    assert allowed(held_bytes=1000) == NO_CREDIT
    assert allowed(held_bytes=2000) == NO_CREDIT


def test_a_service_without_a_worker_claims_nothing():
    assert allowed(window=0) == NO_CREDIT
