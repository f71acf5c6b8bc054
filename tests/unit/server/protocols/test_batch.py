"""`POST /batch`: a list in, a list of outcomes out."""

from __future__ import annotations

import msgspec
import pytest
from waiting import until

from penstock.codec.formats import Codec
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Result
from penstock.errors import DeadlineExceeded, InvalidItem, NotReady, Overloaded, StageFailed
from penstock.server.protocols import batch as batch_route


def batch(fakes, app, body, **headers):
    return fakes.call(app, path="/batch", body=body, **headers)


async def answered(call):
    await until(lambda: call.replies, patience=20, pause=0)


def test_items_are_submitted_together_as_bulk_and_their_results_come_back_in_order(fakes):
    service = fakes.Service()
    call = batch(fakes, fakes.app(service), b" [ [1], [2.5] ,[]] ")
    (submission,) = service.engine.submissions
    assert [bytes(item) for item in submission.payloads] == [b"[1]", b"[2.5]", b"[]"]
    assert submission.lane is Lane.BULK
    assert submission.hold_results
    submission.settle(b"[1.0]", [b"[2", b".5]"], b"[]")
    assert (call.status, call.response.content_type) == (200, b"application/json")
    assert call.json == {"outcomes": [{"result": [1.0]}, {"result": [2.5]}, {"result": []}]}


def test_the_items_have_the_id_of_the_request(fakes):
    service = fakes.Service()
    call = batch(fakes, fakes.app(service), b"[[1]]", x_request_id="mine")
    call = fakes.call(fakes.app(service), body=b"[1]", x_request_id="yours")
    call = fakes.call(fakes.app(service), body=b"[1]")
    assert [s.request_id for s in service.engine.submissions] == [b"mine", b"yours", call.request.id]


def test_one_bad_item_makes_207_and_stands_in_its_place_with_its_own_status(fakes):
    service = fakes.Service()
    call = batch(fakes, fakes.app(service), b"[[1],2,[3]]", x_request_id="mine")
    service.engine.submissions[0].settle(b"[1]", InvalidItem("expected `array`"), b"[3]")
    assert call.status == 207
    good, bad, _ = call.json["outcomes"]
    assert good == {"result": [1]}
    assert list(bad) == ["error"]
    assert bad["error"]["status"] == 422
    assert bad["error"]["detail"] == "expected `array`"
    assert bad["error"]["request_id"] == "mine"


def test_an_empty_list_is_200_and_reaches_no_engine(fakes):
    service = fakes.Service()
    call = batch(fakes, fakes.app(service), b"[]")
    assert (call.status, call.json) == (200, {"outcomes": []})
    assert not service.engine.submissions


@pytest.mark.parametrize("body", [b"", b"[1", b"{}", b'"x"', b"[1,]", b"\xff", b"[1] 2", b"[" * 100_000, b"1"])
def test_a_broken_array_is_400_as_a_whole(fakes, body):
    service = fakes.Service()
    call = batch(fakes, fakes.app(service), body)
    assert (call.status, call.response.content_type) == (400, b"application/problem+json")
    assert not service.engine.submissions


@pytest.mark.parametrize("name", ["", "/one"])
def test_one_item_instead_of_a_list_is_told_where_one_item_goes(fakes, name):
    app = fakes.app(fakes.Service(name="one"), fakes.Service(name="two")) if name else fakes.app()
    call = fakes.call(app, path=f"{name}/batch", body=b'{"a": 1}')
    assert (call.status, call.json["detail"]) == (
        400,
        f"expected `array`, got `object`; send a single item to {name}/predict",
    )


def test_messagepack_in_messagepack_out_the_207_too(fakes):
    service = fakes.Service()
    body = msgspec.msgpack.encode([[1.0], "x"])
    call = batch(fakes, fakes.app(service), body, content_type="application/msgpack")
    submission = service.engine.submissions[0]
    assert (submission.codec_in, submission.codec_out) == (Codec.MSGPACK, Codec.MSGPACK)
    assert [bytes(item) for item in submission.payloads] == [msgspec.msgpack.encode(x) for x in ([1.0], "x")]
    submission.settle(msgspec.msgpack.encode([1.0]), InvalidItem("no"))
    assert (call.status, call.response.content_type) == (207, b"application/msgpack")
    good, bad = msgspec.msgpack.decode(call.response.body)["outcomes"]
    assert good == {"result": [1.0]}
    assert bad["error"]["status"] == 422


def test_a_batch_takes_json_and_messagepack_whatever_the_stage_takes(fakes):
    class Bytes:
        def predict(self, x: bytes) -> bytes:
            return x

    app = fakes.app(fakes.Service(Bytes))
    assert batch(fakes, app, b"[]", content_type="application/octet-stream").status == 415
    assert batch(fakes, app, b"[]", accept="application/octet-stream").status == 406
    assert batch(fakes, app, b"[]").response.content_type == b"application/json"


def test_a_service_that_is_full_when_the_items_are_known_refuses_them_all(fakes):
    service = fakes.Service()
    service.engine.full = Overloaded(retry_after=4)
    call = batch(fakes, fakes.app(service), b"[1,2]")
    assert (call.status, call.headers[b"retry-after"]) == (503, b"4")


def test_an_engine_that_went_while_the_body_came_refuses_them_all(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    call = batch(fakes, app, b"[1]")
    service.engine = None
    replies = []
    app.handle(call.request, replies.append)
    assert replies[0].status == 503


def test_many_failures_of_one_cause_are_one_log_entry(fakes, caplog):
    service = fakes.Service()
    call = batch(fakes, fakes.app(service), b"[" + b",".join([b"1"] * 20) + b"]", x_request_id="mine")
    fault = StageFailed("boom", stage="echo", type_name="builtins.ValueError", traceback="Traceback …")
    service.engine.submissions[0].settle(*[fault] * 20)
    (record,) = caplog.records
    assert record.request_ids == tuple(f"mine:{n}" for n in range(10))
    assert record.request_ids_left_out == 10
    for shown in ("mine:0", "mine:9", "10 more", "Traceback …"):
        assert shown in caplog.text
    assert [entry["error"]["id"] for entry in call.json["outcomes"]] == [f"mine:{n}" for n in range(20)]
    assert b"Traceback" not in call.response.body
    written = [entry["error"]["detail"].endswith("has the details under this id.") for entry in call.json["outcomes"]]
    assert written == [True] * 10 + [False] * 10


def test_a_client_that_leaves_withdraws_all_its_items(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    call = batch(fakes, app, b"[1,2]")
    app.cancel(call.request)
    assert service.engine.cancelled == service.engine.submissions
    assert call.status == 499
    app.cancel(call.request)
    assert len(service.engine.cancelled) == 1


class TestLongBody:
    """Bodies above the bound are split in a thread."""

    body = b"[" + b",".join([b'"' + b"x" * 1000 + b'"'] * 300) + b"]"

    async def submitted(self, service):
        await until(lambda: service.engine.submissions, patience=10, pause=0)

    async def test_it_is_split_off_the_loop_and_its_bytes_are_held_meanwhile(self, fakes):
        service = fakes.Service()
        call = batch(fakes, fakes.app(service), self.body)
        assert not service.engine.submissions
        assert service.engine.held_bytes == len(self.body)
        await self.submitted(service)
        assert service.engine.held_bytes == 300 * batch_route.ITEM_BYTES
        assert len(service.engine.submissions[0].payloads) == 300
        service.engine.submissions[0].settle(*[b"1"] * 300)
        assert call.status == 200

    async def test_a_body_at_the_bound_is_split_at_once(self, fakes):
        service = fakes.Service()
        body = b"[" + b" " * (batch_route.SPLIT_INLINE_BYTES - 3) + b"1]"
        assert len(body) == batch_route.SPLIT_INLINE_BYTES
        batch(fakes, fakes.app(service), body)
        assert len(service.engine.submissions) == 1

    @pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
    async def test_a_short_body_of_many_items_is_split_off_the_loop(self, fakes, encode):
        service = fakes.Service()
        kind = "application/json" if encode is msgspec.json.encode else "application/msgpack"
        batch(fakes, fakes.app(service), encode([0] * batch_route.SPLIT_INLINE_ITEMS), content_type=kind)
        assert len(service.engine.submissions) == 1
        body = encode([0] * (batch_route.SPLIT_INLINE_ITEMS + 1))
        batch(fakes, fakes.app(service), body, content_type=kind)
        assert len(body) < batch_route.SPLIT_INLINE_BYTES
        assert len(service.engine.submissions) == 1
        service.engine.submissions.clear()
        await self.submitted(service)

    async def test_a_broken_one_is_400(self, fakes):
        call = batch(fakes, fakes.app(), self.body[:-1])
        await answered(call)
        assert call.status == 400

    async def test_a_client_that_leaves_meanwhile_never_has_its_items_submitted(self, fakes):
        service = fakes.Service()
        app = fakes.app(service)
        call = batch(fakes, app, self.body)
        app.cancel(call.request)
        await answered(call)
        assert (call.status, service.engine.submissions, service.engine.held_bytes) == (499, [], 0)

    async def test_a_service_that_stops_meanwhile_refuses_it(self, fakes):
        service = fakes.Service()
        call = batch(fakes, fakes.app(service), self.body)
        service.engine.full = NotReady("The service is draining.", state="draining")
        await answered(call)
        assert (call.status, call.json["state"]) == (503, "draining")

    async def test_a_fault_of_ours_is_answered_and_logged(self, fakes, caplog, monkeypatch):
        def fail(codec, body, limit):
            raise MemoryError

        monkeypatch.setattr(batch_route, "split_list", fail)
        call = batch(fakes, fakes.app(), self.body)
        await answered(call)
        assert call.status == 500
        assert "MemoryError" in caplog.text


class TestManyItems:
    """What is done for each item of a long call is done in a thread; there is a most to it."""

    def test_as_many_as_the_bound_pass_and_one_more_is_413(self, fakes):
        service = fakes.Service()
        app = fakes.app(service, max_batch_items=3)
        batch(fakes, app, b"[1,2,3]")
        assert len(service.engine.submissions) == 1
        call = batch(fakes, app, b"[1,2,3,4]")
        assert call.status == 413
        assert "more than 3 items" in call.json["detail"]

    def test_an_item_counts_more_than_its_bytes_until_the_answer_is_there(self, fakes):
        service = fakes.Service()
        engine = service.engine
        app = fakes.app(service)
        batch(fakes, app, b"[1,2,3]")
        assert engine.held_bytes == 3 * batch_route.ITEM_BYTES
        left = batch(fakes, app, b"[1,2]")
        assert engine.held_bytes == 5 * batch_route.ITEM_BYTES
        app.cancel(left.request)
        assert engine.held_bytes == 3 * batch_route.ITEM_BYTES
        engine.full = Overloaded(retry_after=4)
        batch(fakes, app, b"[1,2]")
        assert engine.held_bytes == 3 * batch_route.ITEM_BYTES
        engine.submissions[0].settle(b"1", b"2", b"3")
        assert engine.held_bytes == 0

    def test_nothing_is_held_for_a_batch_that_was_answered_before_its_submission_returned(self, fakes):
        service = fakes.Service()
        service.engine.answer = bytes
        call = batch(fakes, fakes.app(service), b"[1,2,3]")
        assert (call.status, service.engine.held_bytes) == (200, 0)

    async def test_the_outcomes_of_many_are_put_together_off_the_loop(self, fakes):
        service = fakes.Service()
        n = batch_route.JOIN_INLINE_OUTCOMES + 1
        call = batch(fakes, fakes.app(service), b"[" + b",".join([b"1"] * n) + b"]")
        service.engine.submissions[0].settle(*[b"1"] * n)
        assert not call.replies
        objects = n * batch_route.ITEM_BYTES
        assert (service.engine.answer_bytes, service.engine.held_bytes) == (n, n + objects), "until the answer is there"
        await answered(call)
        assert call.status == 200
        assert len(call.json["outcomes"]) == n
        assert (service.engine.answer_bytes, service.engine.held_bytes) == (0, 0)

    async def test_items_that_end_alike_are_told_alike_with_others_between_them(self, fakes):
        service = fakes.Service()
        call = batch(fakes, fakes.app(service), b"[1,2,3,4]")
        late = Failure(DeadlineExceeded())
        service.engine.submissions[0].done([late, Result(b"1"), late, late])
        first, second, third, fourth = call.json["outcomes"]
        assert call.status == 207
        assert second == {"result": 1}
        assert first == third == fourth
        assert first["error"]["status"] == 503
