"""What a file of tenants may say."""

from __future__ import annotations

from hashlib import sha256

import pytest

from penstock.core.tenant_rules import read_rules
from penstock.core.tenants import FREE, TenantTerms
from penstock.errors import ConfigError
from rows import each

KEY = sha256(b"a key").hexdigest()


def rules(text):
    return read_rules(text.encode(), "tenants 'file.toml'")


def test_a_file_is_read_as_it_is_shown_in_the_reference():
    found = rules(f"""
        [tenants.gold]
        key_sha256 = ["{KEY.upper()}"]
        weight = 3
        max_queued = 200
        rate = 50.0
        burst = 100
        urgency = 2
        [tenants."*"]
        rate = 0.5
    """)
    assert found.named == {"gold": TenantTerms(3.0, 200, 50.0, 100.0, 2)}
    assert found.others == TenantTerms(1.0, None, 0.5, 1.0, 0)
    assert found.keys == {sha256(b"a key").digest(): "gold"}
    assert found.of("gold").weight == 3.0
    assert found.of("else") == found.others
    assert found.rated


@pytest.mark.parametrize("text", ["", "[tenants]", "\ufeff[tenants]", "[tenants.a]"])
def test_what_is_left_out_binds_nobody(text):
    found = rules(text)
    assert found.of("a") == FREE
    assert not found.rated
    assert found.keys == {}


def test_a_burst_is_the_rate_and_at_least_one():
    assert rules("[tenants.a]\nrate = 7.5").of("a").burst == 7.5
    assert rules("[tenants.a]\nrate = 0.1").of("a").burst == 1.0


NUMBER = "must be a number from 1e-06 to 1e+09, got"


@each(
    ("text", "message"),
    [
        ("tenants = 3", "tenants must be a table with a table for each tenant"),
        ("[tenant.gold]", "tenant is not a key of this table; its keys are tenants"),
        ("[tenants]\ngold = 3", "tenants.gold must be a table"),
        (
            "[tenants.gold]\nwieght = 3",
            "tenants.gold.wieght is not a key of this table; its keys are key_sha256, weight, ",
        ),
        ('[tenants."a b"]', "tenants.'a b': a tenant's name must have 1 to 64 letters, digits and `._-`, or be `*`"),
        (f"[tenants.{'n' * 65}]", "a tenant's name must have 1 to 64 letters"),
        ("[tenants.gold]\nweight = 0", f"tenants.gold.weight {NUMBER} 0"),
        ("[tenants.gold]\nweight = true", f"tenants.gold.weight {NUMBER} True"),
        ("[tenants.gold]\nweight = '3'", f"tenants.gold.weight {NUMBER} '3'"),
        ("[tenants.gold]\nrate = nan", f"tenants.gold.rate {NUMBER} nan"),
        ("[tenants.gold]\nrate = inf", f"tenants.gold.rate {NUMBER} inf"),
        ("[tenants.gold]\nrate = -1", f"tenants.gold.rate {NUMBER} -1"),
        ("[tenants.gold]\nrate = 1\nburst = 0.5", "tenants.gold.burst must be a number from 1 to 1e+09, got 0.5"),
        ("[tenants.gold]\nburst = 5", "tenants.gold.burst needs a rate"),
        (
            "[tenants.gold]\nmax_queued = 0",
            "tenants.gold.max_queued must be a whole number from 1 to 1000000000, got 0",
        ),
        ("[tenants.gold]\nmax_queued = 1000000001", "from 1 to 1000000000, got 1000000001"),
        (
            "[tenants.gold]\nmax_queued = 1.5",
            "tenants.gold.max_queued must be a whole number from 1 to 1000000000, got 1.5",
        ),
        ("[tenants.gold]\nurgency = 8", "tenants.gold.urgency must be a whole number from 0 to 7, got 8"),
        ("[tenants.gold]\nurgency = false", "tenants.gold.urgency must be a whole number from 0 to 7, got False"),
        ("[tenants.gold]\nkey_sha256 = 'x'", "tenants.gold.key_sha256 must be a list of strings of 64 hex digits"),
        (f"[tenants.gold]\nkey_sha256 = ['{KEY}', 5]", "tenants.gold.key_sha256[1] must be 64 hex digits"),
        (
            f"[tenants.'*']\nkey_sha256 = ['{KEY}']",
            "tenants.'*'.key_sha256 is not allowed: a key must belong to a named tenant",
        ),
        (
            f"[tenants.a]\nkey_sha256 = ['{KEY}']\n[tenants.b]\nkey_sha256 = ['{KEY.upper()}']",
            "tenants.b.key_sha256: the same key is in tenants.a and in tenants.b",
        ),
        (f"[tenants.a]\nkey_sha256 = ['{KEY}', '{KEY}']", "the same key is twice in tenants.a"),
        ("[tenants.gold", "is not TOML: "),
        ("x = " + "9" * 5000, "is not TOML: "),
        ("x = " + "[" * 100_000, "is not TOML: "),
        ("\n".join(f"[tenants.t{n}]" for n in range(1001)), "tenants must be at most 1000, got 1001"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_what_is_wrong(text, message):
    with pytest.raises(ConfigError) as caught:
        rules(text)
    assert "tenants 'file.toml'" in str(caught.value)
    assert message in str(caught.value)


@each("key", ["weight", "rate", "burst", "max_queued", "urgency"])
@each(
    ("value", "shown"),
    [
        ("0x" + "f" * 5000, "an integer of more than 100 digits"),
        ("1" + "0" * 99, "1" + "0" * 99),
        ("1" + "0" * 100, "an integer of more than 100 digits"),
        ("-1" + "0" * 100, "an integer of more than 100 digits"),
        ("'" + "x" * 100_000 + "'", "'" + "x" * 100 + "'..."),
        ('"a\\u001b[31m\\nb"', r"'a\x1b[31m\nb'"),
        ("[0x" + "f" * 5000 + "]", "a list"),
        ("{a = 0x" + "f" * 5000 + "}", "a table"),
        ("1979-05-27", "datetime.date(1979, 5, 27)"),
    ],
)
def test_a_message_is_one_line_that_ends_and_names_what_is_wrong(key, value, shown):
    with pytest.raises(ConfigError) as caught:
        rules(f"[tenants.gold]\nrate = 1\n{key} = {value}" if key != "rate" else f"[tenants.gold]\nrate = {value}")
    assert str(caught.value).startswith(f"tenants 'file.toml': tenants.gold.{key} must be a ")
    assert str(caught.value).endswith(f", got {shown}")


LONG = "x" * 100_000
STRANGE = '"a\\u001b[31m\\nb"'


@pytest.mark.parametrize(
    "text",
    [
        f"[tenants.{LONG}]",
        f"[{LONG}]",
        f"[tenants.gold]\n{LONG} = 1",
        f"[tenants.{STRANGE}]",
        f"[{STRANGE}]",
        f"[tenants.gold]\n{STRANGE} = 1",
        f"[tenants]\n{LONG} = 1",
        f"[{LONG}]\n[{LONG}]",
        f"[{STRANGE}]\n[{STRANGE}]",
    ],
)
def test_a_message_repeats_no_long_name_and_no_line_break_of_one(text):
    with pytest.raises(ConfigError) as caught:
        rules(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_file_in_another_encoding_is_refused():
    with pytest.raises(ConfigError, match="'f' is not UTF-8: byte 1"):
        read_rules(b"\n\xff", "'f'")


def test_no_message_repeats_what_may_be_a_key():
    with pytest.raises(ConfigError) as caught:
        rules("[tenants.gold]\nkey_sha256 = ['open sesame']")
    assert "sesame" not in str(caught.value)
