"""Tenants of a real server: shares under two floods, keys that stand in no log, rates."""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256

import httpx
import pytest
from served import run

SLOW = """
import time
import penstock as ps

def slow(xs: list[int]) -> list[int]:
    time.sleep(0.2)
    return [x * x for x in xs]

service = ps.Service(ps.stage(slow, batch=ps.Batch(max_size=4)), name="slow")
"""
KEY = "s3cr3t-key-of-gold"


def tenants_file(folder, text):
    path = folder / "tenants.toml"
    path.write_text(text)
    return str(path)


async def flood(address, loads, answers):
    """How many of `answers` each tenant gets, after half as many, of `loads` connections that ask again and again."""
    served = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    async def ask(http, tenant):
        while len(served) < answers * 3 // 2:
            answer = await http.post("/predict", json=3, headers={"X-Tenant": tenant})
            if answer.status_code == 200:
                served.append(tenant)
            else:
                assert answer.status_code == 503, answer.text
                assert answer.json()["reason"] in ("queue_full", "preempted")
                await asyncio.sleep(1.0)  # more refusals than answers leave a slow machine no time for floods

    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=30, verify=False) as http:
        await asyncio.gather(*[ask(http, tenant) for tenant, count in loads.items() for _ in range(count)])
    return Counter(served[answers // 2 : answers * 3 // 2])


def test_two_floods_are_served_by_their_weights(serve, tmp_path):
    tenants = tenants_file(tmp_path, "[tenants.gold]\nweight = 3\n[tenants.iron]\nweight = 1")
    options = ("--tenants-file", tenants, "--tenant-header", "X-Tenant", "--max-in-flight", "32")
    server = serve(*options, source=SLOW)
    served = asyncio.run(flood(server.address, {"gold": 28, "iron": 20}, 80))
    assert 2 <= served["gold"] / served["iron"] <= 4.5, f"{served}: they ask as 7 to 5"
    metrics = server.http.get("/metrics").text
    assert 'penstock_tenant_items_accepted_total{service="slow",tenant="gold"}' in metrics


@pytest.mark.smoke
def test_keys_and_rates_of_tenants(serve, tmp_path):
    digest = sha256(KEY.encode()).hexdigest()
    tenants = tenants_file(tmp_path, f'[tenants.gold]\nkey_sha256 = ["{digest}"]\nrate = 0.05\nburst = 2\nurgency = 2')
    server = serve("--tenants-file", tenants, "--access-log", "--max-body-bytes", "1000", source=SLOW)
    http = server.http
    assert http.post("/predict", json=3).status_code == 401
    assert http.post("/predict", json=3, headers={"x-api-key": "wrong-key"}).status_code == 401
    key = {"authorization": f"Bearer {KEY}"}
    first = http.post("/predict", json=3, headers={**key, "priority": "u=0", "x-request-id": "first"})
    assert (first.status_code, first.json()) == (200, 9)
    assert first.headers["ratelimit-policy"] == '"items";q=2;w=40'
    assert first.headers["ratelimit"].startswith('"items";r=1;t=')
    assert http.post("/batch", json=[4], headers=key).status_code == 200
    refused = http.post("/predict", json=3, headers=key)
    assert (refused.status_code, refused.json()["reason"]) == (429, "quota")
    assert refused.json()["type"] == "urn:penstock:problem:quota-exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["ratelimit"].startswith('"items";r=0;t=')
    for status, sent in (
        (413, {"content": b"1" * 2000}),
        (415, {"content": b"1", "headers": {"content-encoding": "gzip"}}),
    ):
        never = http.post("/predict", **{**sent, "headers": {**key, **sent.get("headers", {})}})
        assert (never.status_code, never.headers["x-should-retry"]) == (status, "false")
    assert http.get("/metrics").status_code == 401
    assert http.get("/metrics", headers=key).status_code == 200
    server.wait_for(r"POST /predict 200 1 0\.\d+ first tenant=gold u=2")
    for secret in (KEY, "wrong-key", digest):
        assert secret not in server.output
        assert secret not in refused.text


@pytest.mark.smoke
def test_a_wrong_file_ends_the_start_with_words(serve, tmp_path, module):

    folder = module(SLOW)
    (folder / "tenants.toml").write_text("[tenants.gold]\nweight = -1")
    status, output = run(folder, "serve", "model:service", "--port", "0", "--tenants-file", "tenants.toml")
    assert status == 1
    assert "tenants_file 'tenants.toml': tenants.gold.weight must be a number" in output
    assert "Traceback" not in output
