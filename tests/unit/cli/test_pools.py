import math

import pytest

import penstock as ps
from penstock.cli.pools import Pools, parse_pools, resized
from penstock.errors import ConfigError


def services():
    embed = ps.stage(math.sqrt, name="embed", workers=2, env={"A": "1"})
    return [
        ps.Service(embed, ps.stage(math.exp, name="rank"), name="one"),
        ps.Service(ps.stage(math.exp, name="other"), name="two"),
    ]


def numbers(text):
    return [
        {spec.name: spec.workers for spec in service.stages}
        for service in resized(services(), parse_pools(text), by_flag=True)
    ]


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        (None, Pools()),
        ("1", Pools(each=1)),
        ("embed=4,rank=1", Pools(named={"embed": 4, "rank": 1})),
        (" embed = 4 , rank=1 ", Pools(named={"embed": 4, "rank": 1})),
    ],
)
def test_workers_are_one_number_or_a_number_for_each_stage_named(text, pools):
    assert parse_pools(text) == pools


@pytest.mark.parametrize("text", ["two", "", "1.5", "embed=", "embed=x", "=2", "embed=1,", "1,embed=2", "a=b=1"])
def test_what_is_no_number_of_workers_is_shown_how_it_is_written(text):
    with pytest.raises(ConfigError, match="workers must be a number, as in 2, or numbers by stage"):
        parse_pools(text)


@pytest.mark.parametrize("text", ["0", "-1", "embed=0"])
def test_fewer_than_one_worker_is_an_error(text):
    with pytest.raises(ConfigError, match=f"workers must be at least 1, got '{text}'"):
        parse_pools(text)


def test_a_stage_named_twice_is_an_error():
    with pytest.raises(ConfigError, match="workers names stage 'embed' twice"):
        parse_pools("embed=1,embed=2")


def test_each_stage_gets_its_workers_and_the_others_keep_theirs():
    assert numbers(None) == [{"embed": 2, "rank": 1}, {"other": 1}]
    assert numbers("3") == [{"embed": 3, "rank": 3}, {"other": 3}]
    assert numbers("rank=4,other=2") == [{"embed": 2, "rank": 4}, {"other": 2}]


def test_a_service_that_is_not_resized_stays_the_same_object():
    given = services()
    assert resized(given, Pools(), by_flag=False) == given


def test_a_stage_that_is_not_there_is_told_those_that_are():
    with pytest.raises(ConfigError, match="workers: unknown stage 'embd'; the stages are embed, rank, other"):
        numbers("embd=2")


def test_workers_that_attach_from_outside_are_not_counted_here():
    mixed = ps.Service(ps.remote("square"), ps.stage(math.exp, name="rank"), name="mixed")
    (made,) = resized([mixed], parse_pools("3"), by_flag=True)
    assert [spec.workers for spec in made.stages] == [0, 3]
    with pytest.raises(ConfigError, match=r"^stage 'square': it is remote"):
        resized([mixed], parse_pools("square=2"), by_flag=False)
    alone = ps.Service(ps.remote("cube"), name="alone")
    assert resized([mixed, alone], parse_pools("3"), by_flag=True)[1] is alone
    with pytest.raises(ConfigError, match=r"^workers: 3 applies to no stage: cube have remote workers$"):
        resized([alone], parse_pools("3"), by_flag=True)
    assert resized([alone], parse_pools("3"), by_flag=False) == [alone], "a variable is for others"
