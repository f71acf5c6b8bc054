from penstock.jobs.rules.pauses import IDS_IN_LOOK, longer_pause


def test_a_pause_grows_by_half_up_to_the_longest():
    assert longer_pause(0.1, 1.0, 1) == 0.1 * 1.5
    assert longer_pause(0.9, 1.0, 1) == 1.0


def test_the_longest_pause_grows_with_the_waits():
    assert longer_pause(9.0, 1.0, IDS_IN_LOOK - 1) == 1.0
    assert longer_pause(9.0, 1.0, IDS_IN_LOOK) == 2.0
    assert longer_pause(9.0, 1.0, 4 * IDS_IN_LOOK) == 5.0
