"""What clients are told and given by a service whose stages have workers from outside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.codec.formats import Codec
from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.hosting.servable import files_of_workers
from penstock.runtime.spec import External
from penstock.server.asgi import asgi
from penstock.server.serve import serve
from penstock.server.wsgi import wsgi

JSON, MSGPACK, RAW, NPY = Codec.JSON, Codec.MSGPACK, Codec.RAW, Codec.NPY
MEDIA = {
    JSON: "application/json",
    MSGPACK: "application/msgpack",
    RAW: "application/octet-stream",
    NPY: "application/x-npy",
}


def external(*accepts, item=Any, result=Any):
    return External(accepts, item, result)


def doubled(x: float) -> float: ...


async def waits(x: float) -> float: ...


# -- formats ----------------------------------------------------------------------------------------------------------


def test_what_its_workers_do_not_read_is_415_and_names_what_they_do(fakes):
    app = fakes.app(fakes.Service(external(NPY, MSGPACK)))
    call = fakes.call(app, content_type="application/json")
    assert call.status == 415
    assert "send one of: application/msgpack, application/x-npy" in call.json["detail"]
    assert call.headers[b"accept"] == b"application/msgpack, application/x-npy"
    assert fakes.call(app).status == 415, "no Content-Type is JSON"


@pytest.mark.parametrize(
    ("accepts", "sent", "asked", "answered"),
    [
        ((JSON, MSGPACK), JSON, None, JSON),
        ((JSON, MSGPACK), MSGPACK, None, MSGPACK),
        ((JSON, MSGPACK), JSON, MSGPACK, MSGPACK),
        ((RAW, JSON), JSON, None, JSON),
        ((RAW, JSON), RAW, None, RAW),
        ((NPY,), NPY, None, NPY),
        ((JSON, NPY), JSON, NPY, NPY),
    ],
)
def test_the_answer_is_in_the_format_asked_for_or_in_that_of_the_request(fakes, accepts, sent, asked, answered):
    service = fakes.Service(external(*accepts))
    fields = {"content_type": MEDIA[sent]} | ({} if asked is None else {"accept": MEDIA[asked]})
    call = fakes.call(fakes.app(service), body=b"as it is", **fields)
    (submission,) = service.engine.submissions
    assert submission.payloads == [b"as it is"]
    assert (submission.codec_in, submission.codec_out) == (sent, answered)
    submission.settle(b"answer")
    assert call.response.content_type == MEDIA[answered].encode()


def test_where_the_last_stage_cannot_answer_as_asked_its_first_format_is_given(fakes):
    service = fakes.Service(doubled, last=external(NPY, RAW))
    fakes.call(fakes.app(service), body=b"1.5")
    (submission,) = service.engine.submissions
    assert (submission.codec_in, submission.codec_out) == (JSON, NPY)


def test_what_its_workers_do_not_write_is_406_and_names_what_they_do(fakes):
    call = fakes.call(fakes.app(fakes.Service(external(JSON))), accept="application/octet-stream")
    assert call.status == 406
    assert call.json["detail"].endswith("supported: application/json")


def test_a_stage_of_ours_behind_it_answers_as_its_type_says(fakes):
    service = fakes.Service(external(RAW, JSON), last=doubled)
    fakes.call(fakes.app(service), body=b"x", content_type=MEDIA[RAW])
    (submission,) = service.engine.submissions
    assert (submission.codec_in, submission.codec_out) == (RAW, JSON)


# -- client batches ---------------------------------------------------------------------------------------------------


def test_the_items_of_a_client_batch_cross_as_they_stand_in_it(fakes):
    service = fakes.Service(external(JSON, MSGPACK))
    call = fakes.call(fakes.app(service), path="/batch", body=b'[1,{"a":2}]')
    (submission,) = service.engine.submissions
    assert [bytes(payload) for payload in submission.payloads] == [b"1", b'{"a":2}']
    submission.settle(b"10", b"20")
    assert call.json == {"outcomes": [{"result": 10}, {"result": 20}]}


def test_a_client_batch_is_of_formats_that_its_workers_read(fakes):
    app = fakes.app(fakes.Service(external(MSGPACK, NPY)))
    refused = fakes.call(app, path="/batch", body=b"[1]")
    assert refused.status == 415
    assert "send one of: application/msgpack (" in refused.json["detail"]
    assert not fakes.call(app, path="/batch", body=msgspec.msgpack.encode([1]), content_type=MEDIA[MSGPACK]).refused


@pytest.mark.parametrize("stages", [{"target": external(NPY)}, {"target": doubled, "last": external(RAW)}])
def test_where_no_list_can_be_read_or_written_a_client_batch_is_told_what_to_do(fakes, stages):
    app = fakes.app(fakes.Service(**stages))
    call = fakes.call(app, path="/batch", body=b"[1]")
    assert call.status == 415
    assert call.json["detail"].endswith("send each item by itself to predict")


# -- the document -----------------------------------------------------------------------------------------------------


def operation(fakes, service, path="/predict"):
    call = fakes.call(fakes.app(service), method="GET", path="/openapi.json")
    return call.json["paths"][path]["post"]


def test_the_document_has_the_types_and_formats_of_an_external_stage(fakes):
    service = fakes.Service(external(JSON, NPY, item=list[int], result=dict[str, float]), examples=([1, 2],))
    described = operation(fakes, service)
    content = described["requestBody"]["content"]
    assert content == {
        "application/json": {
            "schema": {"type": "array", "items": {"type": "integer"}},
            "examples": {"example1": {"value": [1, 2]}},
        },
        "application/x-npy": {},
    }
    assert described["responses"]["200"]["content"] == {
        "application/json": {"schema": {"type": "object", "additionalProperties": {"type": "number"}}},
        "application/x-npy": {},
    }
    assert set(operation(fakes, service, "/batch")["requestBody"]["content"]) == {"application/json"}


def test_the_document_says_nothing_of_the_author_of_an_external_stage(fakes):
    call = fakes.call(fakes.app(fakes.Service(external(JSON))), method="GET", path="/openapi.json")
    assert call.json["info"]["description"] == ""


# -- what a server needs for them -------------------------------------------------------------------------------------


def test_a_worker_that_attaches_takes_one_file_and_one_of_ours_four(fakes):
    ours = fakes.Service(doubled, last=doubled, shm_bytes=0)
    theirs = fakes.Service(external(JSON), last=doubled, max_remote_workers=10, shm_bytes=0)
    assert files_of_workers([ours]) == 4 + 4
    assert files_of_workers([ours, theirs]) == 4 + 4 + 10 + 4


def test_a_slab_takes_three_files(fakes):
    """One is for what arrives, where our own workers read it, and one for the results of each of our stages."""
    ours = fakes.Service(doubled, last=doubled)
    theirs = fakes.Service(external(JSON), last=doubled, max_remote_workers=10)
    outside = fakes.Service(external(JSON), max_remote_workers=10)
    assert files_of_workers([ours]) == 4 + 4 + 3 * 3
    assert files_of_workers([theirs]) == 10 + 4 + 3
    assert files_of_workers([outside]) == 10


def test_a_waiting_stage_takes_none_for_slabs(fakes):
    assert files_of_workers([fakes.Service(waits, last=doubled)]) == 4 + 4 + 3
    assert files_of_workers([fakes.Service(doubled, last=waits)]) == 4 + 4 + 2 * 3


def test_two_doors_cannot_listen_on_one_path(fakes, tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    service = fakes.Service(external(JSON), name="a", remote_worker_socket=path)
    with pytest.raises(ConfigError) as refused:
        serve([service], ServerOptions(uds=path))
    words = f"remote_worker_socket of service 'a' and uds have the same path {path!r}: each socket needs its own path"
    assert str(refused.value) == words
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="and uds have the same path"):
        serve([service], ServerOptions(uds="s"))
    other = fakes.Service(external(JSON), name="b", remote_worker_socket=path)
    with pytest.raises(
        ConfigError, match=r"^remote_worker_socket of service 'b' and remote_worker_socket of service 'a' have the same"
    ):
        serve([service, other], ServerOptions())
    assert service.calls == other.calls == []
    for mounted in (asgi, wsgi):
        with pytest.raises(ConfigError, match="each socket needs its own path"):
            mounted([service, other])
