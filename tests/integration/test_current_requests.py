"""`penstock.current_requests` in workers that are threads, behind two stages, and over ASGI."""

from __future__ import annotations

import httpx
import pytest

import penstock as ps


class Tell(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[str]) -> list[str]:
        return [f"{x} {each!r}" for x, each in zip(xs, ps.current_requests(), strict=True)]


class TellAgain(Tell):
    pass


@pytest.mark.parametrize("inline", [False, True])
async def test_a_call_in_process_has_no_id(inline):
    async with ps.Service(Tell, inline=inline) as service:
        assert await service.predict("x") == "x ''"
        assert await service.predict_many(["x", "y"]) == ["x ''", "y ''"]


@pytest.mark.parametrize("inline", [False, True])
async def test_over_asgi_each_stage_is_told_the_id_of_the_answer(inline):
    service = ps.Service(Tell, TellAgain, inline=inline)
    app = ps.asgi(service)
    transport = httpx.ASGITransport(app=app)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.post("/predict", json="x", headers={"X-Request-ID": "mine"})
        assert answer.json() == "x 'mine' 'mine'"
        answer = await client.post("/predict", json="x")
        name = answer.headers["x-request-id"]
        assert answer.json() == f"x {name!r} {name!r}"
        answer = await client.post("/batch", json=["x", "y"], headers={"X-Request-ID": "b"})
        assert [each["result"] for each in answer.json()["outcomes"]] == ["x 'b:0' 'b:0'", "y 'b:1' 'b:1'"]


def test_outside_of_a_worker_there_are_none():
    assert ps.current_requests() == ()
