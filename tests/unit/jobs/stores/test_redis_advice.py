"""What is right and what is wrong with a Redis server, from what it tells of itself."""

from __future__ import annotations

import pytest

from penstock.jobs.stores.redis_advice import advise, read_version

GOOD = {
    "redis_version": "7.0.15",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "role": "master",
}
SETTINGS = {"maxmemory-policy": "noeviction", "appendfsync": "everysec"}


def wrong(info, settings=SETTINGS):
    return {advice.what: advice.found for advice in advise(info, settings) if advice.wrong}


def test_a_server_as_it_should_be_has_nothing_wrong():
    assert wrong(GOOD) == {}
    assert [advice.what for advice in advise(GOOD, SETTINGS)] == [
        "version",
        "maxmemory-policy",
        "appendonly",
        "appendfsync",
        "disk",
    ]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"redis_version": "6.0.16"}, {"version": "6.0.16"}),
        ({"redis_version": "ours"}, {"version": "ours"}),
        ({"aof_enabled": "0"}, {"appendonly": "no"}),
        ({"aof_last_write_status": "err"}, {"disk": "aof_last_write_status not ok"}),
        ({"role": "slave"}, {"role": "replica"}),
        ({"used_memory": "3355443", "maxmemory": "1048576"}, {"memory": "3.2 of 1.0 MiB"}),
        ({"used_memory": "1048575", "maxmemory": "1048576"}, {}),
    ],
)
def test_what_may_lose_jobs_is_wrong(told, found):
    assert wrong(GOOD | told) == found


def test_an_eviction_policy_is_wrong_also_where_the_server_tells_no_settings():
    assert wrong(GOOD, SETTINGS | {"maxmemory-policy": "allkeys-lru"}) == {"maxmemory-policy": "allkeys-lru"}
    assert wrong(GOOD | {"maxmemory_policy": "volatile-ttl"}, {}) == {"maxmemory-policy": "volatile-ttl"}


def test_whatever_is_wrong_has_a_remedy():
    broken = {"redis_version": "5.0", "aof_enabled": "0", "role": "slave"}
    found = advise(broken, {"maxmemory-policy": "allkeys-lru"})
    assert [advice.what for advice in found] == ["version", "maxmemory-policy", "appendonly", "role"]
    assert all(advice.wrong and advice.remedy for advice in found)


def test_every_way_to_write_to_the_disk_says_what_a_power_cut_loses():
    told = {fsync: advise(GOOD, {"appendfsync": fsync})[3] for fsync in ("always", "everysec", "no")}
    assert {fsync: advice.wrong for fsync, advice in told.items()} == {"always": False, "everysec": False, "no": True}
    assert "last one or two seconds" in told["everysec"].remedy
    assert "lose 30 s" in told["no"].remedy
    assert advise(GOOD, {})[3].found == "unknown"


def test_a_version_is_compared_by_its_numbers():
    assert read_version("6.10.1") > read_version("6.2.0")
    assert read_version("7.x") == ()
