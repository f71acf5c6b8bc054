import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from fake_work import Double, Measure, fake_service, outside_service, service_of
from penstock.codec.formats import Codec
from penstock.core.state import WorkerState
from penstock.errors import InvalidItem, StageFailed
from penstock.jobs.job_formats import JobTarget
from penstock.runtime.external_spec import remote
from rows import each


class Exits(msgspec.Struct):
    x: int

    def __post_init__(self):
        raise SystemExit(3)


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
    with pytest.raises(InvalidItem, match="cannot produce"):
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


@each(
    ("how", "items"),
    [
        ({"workers": 2, "concurrency": 64}, 128),
        ({"workers": 3, "concurrency": 2, "max_size": 8}, 48),
        ({"workers": 3, "concurrency": 2, "max_size": 8, "max_in_flight_batches": 4}, 32),
        ({"workers": 2, "concurrency": 64, "max_in_flight_batches": 500}, 128),
    ],
)
def test_a_worker_of_a_waiting_stage_counts_with_each_batch_that_it_may_have_in_progress(how, items):
    assert JobTarget(fake_service(**how)).batch_items == items


def test_a_job_for_workers_from_outside_may_be_in_what_they_read_or_what_its_type_is_read_from():
    target = JobTarget(outside_service(accepts=["npy"]))
    assert target.formats("application/x-npy", "").codec_in is Codec.NPY
    assert target.formats(JSON, "").codec_in is Codec.JSON
    assert target.formats(MSGPACK, "").codec_in is Codec.MSGPACK
    with pytest.raises(InvalidItem, match="does not accept the content type 'application/octet-stream'"):
        target.formats("application/octet-stream", "")
    typed = JobTarget(outside_service(accepts=["json"], item=bytes))
    assert typed.formats("application/octet-stream", "").codec_in is Codec.RAW


def test_their_result_comes_in_a_format_of_theirs_unless_another_is_asked_for():
    target = JobTarget(outside_service(accepts=["npy"], result=np.ndarray))
    assert target.formats(JSON, "")[1:] == (Codec.NPY, "application/x-npy")
    assert target.formats(JSON, JSON).codec_out is Codec.JSON
    assert target.formats(JSON, MSGPACK).codec_out is Codec.MSGPACK
    assert JobTarget(outside_service(accepts=["msgpack"])).formats(JSON, "").codec_out is Codec.JSON
    assert JobTarget(outside_service()).formats(MSGPACK, "*/*").codec_out is Codec.MSGPACK
    assert JobTarget(outside_service(accepts=["raw", "json"])).formats(JSON, "").codec_out is Codec.RAW


def test_a_batch_counts_for_every_worker_from_outside_that_is_there():
    service = outside_service(max_size=4)
    target = JobTarget(service)
    states = [WorkerState.IDLE, WorkerState.BUSY, WorkerState.DOWN]
    service.engine.stages[0].workers = []
    assert target.batch_items == 4
    service.engine.stages[0].workers = [SimpleNamespace(state=state) for state in states]
    assert target.batch_items == 8
    service.engine = None
    assert target.batch_items == 4


@pytest.mark.parametrize("ends", [("first",), ("last",), ("first", "last")])
def test_only_the_end_that_is_outside_is_converted(ends):
    outside, (inside,) = remote("out", accepts=["json"]), fake_service(Double).stages
    target = JobTarget(service_of([outside if "first" in ends else inside, outside if "last" in ends else inside]))
    crossing = target.crossing
    assert crossing.sent_in(Codec.MSGPACK) is (Codec.JSON if "first" in ends else Codec.MSGPACK)
    assert crossing.given_in(Codec.MSGPACK) is (Codec.JSON if "last" in ends else Codec.MSGPACK)
    assert crossing.item(b"\x07", Codec.MSGPACK) == (b"7" if "first" in ends else b"\x07")
    assert crossing.result(b"7", Codec.MSGPACK) == (b"\x07" if "last" in ends else b"7")


def test_what_the_workers_read_goes_to_them_as_it_came():
    body = b'{"x" : 1}'
    crossing = JobTarget(outside_service(accepts=["json"], item=int)).crossing
    assert crossing.item(body, Codec.JSON) is body
    assert crossing.result([b"[1", b", 2]"], Codec.JSON) == b"[1, 2]"


@pytest.mark.parametrize(
    ("item", "body", "words"),
    [
        (int, b'"a"', "expected `int`, got `str`"),
        (int, b"", "the body is empty"),
    ],
)
def test_an_input_that_cannot_be_converted_is_invalid(item, body, words):
    with pytest.raises(InvalidItem, match=words):
        JobTarget(outside_service(item=item)).crossing.item(body, Codec.JSON)
    with pytest.raises(InvalidItem, match="the input cannot be written as RAW"):
        JobTarget(outside_service(accepts=["raw"])).crossing.item(b"1", Codec.JSON)


def test_a_fault_in_a_check_of_the_items_type_is_the_stages_failure():
    with pytest.raises(StageFailed) as failed:
        JobTarget(outside_service(item=Exits)).crossing.item(b'{"x": 1}', Codec.JSON)
    assert (failed.value.stage, failed.value.type_name) == ("out", "builtins.SystemExit")
    assert failed.value.raised_at.startswith(__file__)


@pytest.mark.parametrize(
    ("result", "body", "words"),
    [
        (int, b"\xa1a", "the result cannot be read from MSGPACK: expected `int`, got `str`"),
        (Exits, b"\x81\xa1x\x01", "the result cannot be read from MSGPACK: "),
        (float, msgspec.msgpack.encode(math.inf), "the result has NaN or infinity"),
    ],
)
def test_a_result_that_cannot_be_converted_is_the_stages_failure(result, body, words):
    with pytest.raises(StageFailed, match=words) as failed:
        JobTarget(outside_service(result=result)).crossing.result(body, Codec.JSON)
    assert failed.value.stage == "out"
