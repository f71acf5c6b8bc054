"""Which addresses are public: every kind that is not, in every form in which one can be written."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.transfer.addresses import NOT_PUBLIC_4, parse_nets, why_refused
from rows import each

PUBLIC_4 = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1"]
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1", "127.255.0.1",
    "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.9", "192.0.0.192",
    "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
]  # fmt: skip


def carriers(text: str) -> dict[str, str]:
    """The forms of IPv6 that carry the IPv4 address `text`; those of Teredo have a public one beside it."""
    bits = int(ipaddress.IPv4Address(text))
    public = int(ipaddress.IPv4Address("8.8.8.8"))
    values = {
        "mapped": 0xFFFF << 32 | bits,
        "compatible": bits,
        "nat64": 0x64_FF9B << 96 | bits,
        "6to4": 0x2002 << 112 | bits << 80 | 1,
        "teredo client": 0x2001_0000 << 96 | public << 64 | (bits ^ 0xFFFFFFFF),
        "teredo server": 0x2001_0000 << 96 | bits << 64 | (public ^ 0xFFFFFFFF),
    }
    return {name: str(ipaddress.IPv6Address(value)) for name, value in values.items()}


@pytest.mark.parametrize("address", [*PUBLIC_4, "2606:4700:4700::1111", "2a00:1450:4001::1", "2001:200::1"])
def test_an_address_of_the_internet_is_public(address):
    assert why_refused(address) == ""


@each("address", NOT_PUBLIC)
def test_what_is_kept_back_is_refused(address):
    assert why_refused(address) == f"{address} is not a public address"


@each(
    "address",
    [
        "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "2001:db8::1", "3fff::1",
        "3ffe::1", "2001:2::1", "2001:10::1", "2001:20::1", "100::1", "5f00::1", "4000::1", "64:ff9b:1::808:808",
        "64:ff9b:1:808:8:800::", "::ffff:0:808:808",
    ],
)  # fmt: skip
def test_what_is_kept_back_in_ipv6_is_refused(address):
    assert why_refused(address)


@pytest.mark.parametrize("form", carriers("8.8.8.8"))
def test_an_address_that_carries_another_is_as_public_as_that(form):
    assert why_refused(carriers("8.8.8.8")[form]) == ""
    assert [address for address in NOT_PUBLIC if not why_refused(carriers(address)[form])] == []


def test_the_metadata_of_a_cloud_behind_nat64_is_refused():
    assert why_refused("64:ff9b::a9fe:a9fe")
    assert why_refused("64:ff9b::169.254.169.254")


@pytest.mark.parametrize("address", ["fe80::1%eth0", "8.8.8.8%1", "2606:4700::1%2"])
def test_a_scope_id_is_refused_and_cannot_be_allowed(address):
    assert why_refused(address, parse_nets("::/0,0.0.0.0/0")) == f"{address} has a scope id, which is not supported"


@pytest.mark.parametrize("text", ["", "localhost", "0x7f.1", "2130706433", "127.1", "1.2.3.4.5", "08.8.8.8", "[::1]"])
def test_what_is_no_address_is_refused(text):
    assert why_refused(text, parse_nets("::/0,0.0.0.0/0")) == f"{text!r} is not an IP address"


def test_a_named_network_is_allowed_and_its_neighbours_are_not():
    allowed = parse_nets("127.0.0.0/8, fd00::/8,10.1.2.3")
    assert [why_refused(address, allowed) for address in ("127.0.0.1", "::ffff:127.0.0.1", "fd12::1", "10.1.2.3")] == [
        "",
        "",
        "",
        "",
    ]
    refused = ("10.1.2.4", "fc00::1", "::ffff:10.0.0.1", "::1", "169.254.169.254")
    assert [address for address in refused if not why_refused(address, allowed)] == []


def test_a_named_network_is_not_reached_through_a_relay():
    forms = carriers("10.0.0.1")
    del forms["mapped"]
    assert [form for form, address in forms.items() if not why_refused(address, parse_nets("10.0.0.0/8"))] == []
    assert why_refused(forms["nat64"], parse_nets("64:ff9b::/96")) == ""


@given(st.ip_addresses(v=4))
def test_no_address_of_a_refused_network_passes_in_any_form(address):
    inside = any(address in net for net in NOT_PUBLIC_4)
    answers = [why_refused(str(address)), *(why_refused(form) for form in carriers(str(address)).values())]
    assert not inside or all(answers)


def test_no_networks_are_an_empty_list():
    assert parse_nets("") == parse_nets(" , ") == ()


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "example.com", "::/129", "10.0.0.0/8;::/0"])
def test_what_is_no_network_is_an_error_of_the_option(text):
    with pytest.raises(ConfigError, match=r"^allow_net: "):
        parse_nets(f"127.0.0.0/8,{text}")
