import pytest

from penstock.spelling import is_slip, nearest


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
