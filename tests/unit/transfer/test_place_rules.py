import pytest

from penstock.errors import ConfigError, TransferRejected
from penstock.transfer.place_rules import PlaceRules
from penstock.transfer.places import FilePlace, ObjectPlace, WebPlace


def rules():
    return PlaceRules.parse("file:///in,s3://bucket/in", "file:///out", "10.0.0.0/8")


def test_what_lies_beneath_a_prefix_is_allowed_in_its_direction():
    assert rules().check_input("file:///in/a") == FilePlace(("in", "a"))
    assert rules().check_input("s3://bucket/in/a") == ObjectPlace("bucket", ("in", "a"))
    assert rules().check_output("file:///out/a") == FilePlace(("out", "a"))
    for check, url in ((rules().check_output, "file:///in/a"), (rules().check_input, "file:///out/a")):
        with pytest.raises(TransferRejected, match="not below a prefix of --allow-"):
            check(url)


def test_without_options_there_are_no_files_and_no_objects():
    nothing = PlaceRules.parse(None, None, None)
    for url in ("file:///in/a", "s3://bucket/in/a"):
        with pytest.raises(TransferRejected):
            nothing.check_input(url)
    assert isinstance(nothing.check_input("https://example.org/a"), WebPlace)


def test_an_address_is_judged_and_a_name_is_left_to_the_connection():
    assert isinstance(rules().check_output("http://10.1.2.3/a"), WebPlace)
    assert isinstance(rules().check_input("http://internal.example/a"), WebPlace)
    assert isinstance(rules().check_input("http://93.184.216.34/a"), WebPlace)
    for url in ("http://127.0.0.1/a", "http://[::1]/a", "http://169.254.169.254/latest"):
        with pytest.raises(TransferRejected, match="--allow-net"):
            rules().check_input(url)


def test_an_output_has_no_name_that_is_kept_for_parts():
    with pytest.raises(TransferRejected, match="reserved for unfinished outputs"):
        rules().check_output("file:///out/.a.1.part")


@pytest.mark.parametrize("options", [("https://a", None, None), (None, "x", None), (None, None, "10.0.0.0/99")])
def test_an_option_that_cannot_be_read_is_told(options):
    with pytest.raises(ConfigError):
        PlaceRules.parse(*options)
