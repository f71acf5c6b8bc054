import pytest

from penstock.spelling import explain_keyword, is_slip, nearest


@pytest.mark.parametrize(
    "name",
    ["setup", "set_up", "SetUp", "setp", "setups", "seetup", "esetup", "setpu", "estup", "getup", "setu"],
)
def test_a_slip_is_one_letter_or_none(name):
    assert is_slip(name, "setup")
    assert is_slip("setup", name)


@pytest.mark.parametrize("name", ["", "se", "step", "setup_model", "puset", "set", "steps", "upset", "etusp"])
def test_more_than_one_letter_is_no_slip(name):
    assert not is_slip(name, "setup")
    assert not is_slip("setup", name)


def test_the_nearest_name_is_told_where_one_is_near():
    assert nearest("log_formt", ["log_level", "log_format"]) == "log_format"
    assert nearest("preprocess_text", ["preprocess"]) is None


ELSEWHERE = {"batch({})": ["max_size", "max_wait"], "stage({})": ["workers", "timeout"]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("workers", "write `stage(workers=...)`"),
        ("num_workers", "write `stage(workers=...)`"),
        ("max_batch_size", "write `batch(max_size=...)`"),
        ("max_queue_size", "write `max_queued=...`"),
        ("timeout", "write `stage(timeout=...)`"),
        ("max_queud", "did you mean `max_queued=...`?"),
        ("wrkers", "did you mean `stage(workers=...)`?"),
    ],
)
def test_an_argument_that_is_not_there_is_told_where_it_is(name, words):
    assert explain_keyword(name, ["max_queued", "host"], ELSEWHERE) == f"there is no {name!r} here: {words}"


def test_what_the_call_itself_has_under_another_name_comes_first():
    words = "there is no 'timeout' here: write `max_wait=...`"
    assert explain_keyword("timeout", ["max_size", "max_wait"], ELSEWHERE) == words


def test_an_argument_that_nobody_has_is_told_what_there_is():
    assert explain_keyword("bogus", ["a", "b"], ELSEWHERE) == "there is no 'bogus' here; there are a, b"
