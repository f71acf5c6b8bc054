import pytest

from fake_work import Double, Measure, fake_service
from penstock.codec.formats import Codec
from penstock.errors import InvalidItem
from penstock.jobs.job_formats import JobTarget

JSON, MSGPACK = "application/json", "application/msgpack"


def test_a_pair_of_media_types_is_a_pair_of_codecs():
    target = JobTarget(fake_service(Double))
    assert target.formats(JSON, JSON) == (Codec.JSON, Codec.JSON, JSON)
    assert target.formats(MSGPACK, JSON) == (Codec.MSGPACK, Codec.JSON, JSON)
    assert target.formats(JSON, MSGPACK) == (Codec.JSON, Codec.MSGPACK, MSGPACK)
    assert target.formats(JSON, JSON) is target.formats(JSON, JSON)


def test_who_accepts_anything_gets_the_format_of_the_input():
    target = JobTarget(fake_service(Double))
    assert target.formats(MSGPACK, "*/*").codec_out is Codec.MSGPACK
    assert target.formats(JSON, "").codec_out is Codec.JSON


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-npy", "a" * 5000, "application/json; charset=x"])
def test_a_content_type_that_is_not_taken_is_told_with_those_that_are(content_type):
    with pytest.raises(InvalidItem, match=JSON) as refused:
        JobTarget(fake_service(Double)).formats(content_type, JSON)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("accept", ["audio/wav", "," * 5000])
def test_a_result_that_cannot_be_given_is_told(accept):
    with pytest.raises(InvalidItem, match="gives nothing of"):
        JobTarget(fake_service(Double)).formats(JSON, accept)


def test_many_pairs_of_media_types_take_a_bounded_table():
    target = JobTarget(fake_service(Double))
    for n in range(1000):
        target.formats(f"application/json; x={n}", JSON)
    assert len(target._known) <= 128


def test_a_stage_that_takes_a_path_takes_any_content_type_and_no_body():
    target = JobTarget(fake_service(Measure))
    assert target.takes_file
    assert target.formats("audio/wav", JSON).codec_in is Codec.PICKLE
    with pytest.raises(InvalidItem, match="takes a file"):
        target.check_inline()
    JobTarget(fake_service(Double)).check_inline()


def test_a_batch_counts_for_every_worker():
    assert JobTarget(fake_service(workers=3, max_size=8)).batch_items == 24
    assert JobTarget(fake_service(workers=3)).batch_items == 3
