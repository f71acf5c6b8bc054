"""Who a request is from, and for how long a name is kept."""

from __future__ import annotations

import pytest

from penstock.core.shown_tenants import shown_rows
from penstock.core.tenants import FREE, TenantNumbers, Tenants, TenantTerms, check_tenant_name
from penstock.errors import ConfigError


@pytest.mark.parametrize("name", ["", "a", "A-1_b.c", "n" * 64])
def test_names_of_tenants(name):
    check_tenant_name(name)


@pytest.mark.parametrize("name", ["a b", "é", "n" * 65, 5, None, "a\n"])
def test_what_is_no_name_of_a_tenant(name):
    with pytest.raises(ConfigError, match="a tenant's name must have 1 to 64"):
        check_tenant_name(name)


def test_a_name_is_the_same_tenant_each_time():
    tenants = Tenants({"gold": TenantTerms(weight=3.0, urgency=2)}, TenantTerms(weight=0.5))
    gold = tenants.find("gold", 0.0)
    assert (gold.weight, gold.best_urgency, gold.limited) == (3.0, 2, False)
    assert tenants.find("gold", 500.0) is gold
    other = tenants.find("other", 0.0)
    assert other.weight == 0.5
    assert tenants.find("other", 1.0) is other
    assert tenants.find("", 0.0) is tenants.anyone
    assert tenants.anyone.weight == 0.5  # who has no name is one of all others


def test_a_tenant_that_has_nothing_is_forgotten_after_a_minute():
    tenants = Tenants()
    first = tenants.find("a", 0.0)
    first.requests = 1
    tenants.forget_idle(100.0)
    assert tenants.find("a", 100.0) is first  # it has something
    first.requests = 0
    tenants.answered(first, 100.0)
    tenants.forget_idle(159.9)
    assert tenants.find("a", 159.9) is first
    tenants.forget_idle(160.0)
    assert tenants.find("a", 160.0) is not first


def test_a_tenant_of_the_file_is_never_forgotten():
    tenants = Tenants({"gold": FREE})
    gold = tenants.find("gold", 0.0)
    tenants.answered(gold, 0.0)
    tenants.forget_idle(1000.0)
    assert tenants.find("gold", 1000.0) is gold


def test_a_tenant_is_kept_until_its_bucket_is_full_again():
    tenants = Tenants(others=TenantTerms(rate=0.01, burst=1.0))
    first = tenants.find("a", 0.0)
    first.bucket.take(0.0)  # full again at 100
    tenants.forget_idle(60.0)
    assert tenants.find("a", 60.0) is first
    tenants.forget_idle(120.0)
    assert tenants.find("a", 120.0) is not first


def test_when_a_thousand_tenants_are_busy_a_new_name_is_served_as_nobody():
    tenants = Tenants({"gold": FREE})
    for n in range(999):
        tenants.find(f"t{n}", 0.0).requests = 1
    assert tenants.find("new", 1000.0) is tenants.anyone
    assert tenants.find("gold", 1000.0) is not tenants.anyone
    gone = tenants.find("t5", 1000.0)
    gone.requests = 0
    tenants.answered(gone, 1000.0)
    assert tenants.find("new", 1059.0) is tenants.anyone
    assert tenants.find("new", 1060.0).name == "new"
    assert len(tenants.known()) == 1001  # a thousand names, and nobody's


def test_the_weights_of_those_with_items_in_hand():
    tenants = Tenants({"gold": TenantTerms(weight=3.0), "iron": TenantTerms(weight=2.0)})
    assert tenants.sum_weights() == 0
    tenants.find("gold", 0.0).items = 2
    assert tenants.sum_weights() == 3.0
    tenants.anyone.items = 1
    assert tenants.sum_weights() == 4.0


# -- what metrics show ------------------------------------------------------------------------------------------------


def test_nothing_is_shown_while_no_tenant_has_a_name():
    assert shown_rows(Tenants(), 0.0) == []


def test_each_tenant_is_shown_by_name_and_the_rest_together():
    tenants = Tenants({"idle": FREE})
    tenants.anyone.accepted = 5
    a = tenants.find("a", 0.0)
    a.accepted, a.refused, a.waited = 3, 1, 0.5
    tenants.find("other", 0.0).accepted = 2  # no name of its own: it would look like the rest
    assert shown_rows(tenants, 0.0) == [
        ("", TenantNumbers(5, 0, 0.0)),
        ("a", TenantNumbers(3, 1, 0.5)),
        ("other", TenantNumbers(2, 0, 0.0)),
    ]


def test_a_hundred_are_shown_and_no_counter_goes_backwards():
    tenants = Tenants()
    for n in range(150):
        tenants.find(f"t{n}", 0.0).accepted = n + 1
    rows = dict(shown_rows(tenants, 0.0))
    assert len(rows) == 101
    assert set(rows) == {"", "other"} | {f"t{n}" for n in range(51, 150)}  # the busiest
    assert rows["other"].accepted == sum(range(1, 52))
    for n in range(50, 150):  # those shown go away, and others come to be shown
        tenants.answered(tenants.find(f"t{n}", 0.0), 0.0)
    for n in range(50):
        tenants.find(f"t{n}", 59.0).requests = 1
        tenants.find(f"t{n}", 59.0).accepted += 10
    after = dict(shown_rows(tenants, 60.0))
    assert after["t0"].accepted == 10  # what was counted before stays with the rest
    assert after["other"].accepted == sum(range(1, 52))
    tenants.find("t0", 61.0).accepted += 1
    assert dict(shown_rows(tenants, 61.0))["t0"].accepted == 11


def test_a_tenant_that_is_forgotten_while_it_is_shown_takes_its_numbers_with_it():
    tenants = Tenants({"gold": FREE})
    tenants.find("a", 0.0).accepted = 7
    shown_rows(tenants, 0.0)
    assert shown_rows(tenants, 60.0) == [("", TenantNumbers()), ("other", TenantNumbers())]
