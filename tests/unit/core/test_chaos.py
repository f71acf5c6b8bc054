"""Which faults are caused: how the option is read, and that the same numbers get the same ones."""

from __future__ import annotations

import pytest

from penstock.chaos_text import CHAOS_EXAMPLE, CHAOS_KINDS
from penstock.config import ServerOptions
from penstock.core.chaos import Chaos
from penstock.errors import ConfigError
from rows import each


def hit(chaos, kind, n=20_000):
    return {number for number in range(n) if chaos.hits(kind, number)}


@each("kind", CHAOS_KINDS)
@each("fraction", [0.001, 0.05, 0.5])
def test_a_fraction_of_the_numbers_is_hit(kind, fraction):
    n = 20_000
    found = len(hit(Chaos(seed=7, **{kind: fraction}), kind, n))
    assert found == pytest.approx(fraction * n, abs=5 * (fraction * n) ** 0.5)


@pytest.mark.parametrize("kind", CHAOS_KINDS)
def test_none_and_all_are_exact(kind):
    assert hit(Chaos(seed=7), kind, 1000) == set()
    assert len(hit(Chaos(seed=7, **{kind: 1.0}), kind, 1000)) == 1000


def test_the_same_seed_hits_the_same_numbers_everywhere():
    assert sorted(hit(Chaos(seed=7, error=0.05), "error", 100)) == [15, 73]
    assert hit(Chaos(seed=7, error=0.05), "error") != hit(Chaos(seed=8, error=0.05), "error")


def test_kinds_are_drawn_by_themselves():
    chaos = Chaos(seed=7, error=0.5, drop=0.5)
    both = len(hit(chaos, "error") & hit(chaos, "drop"))
    assert both == pytest.approx(5_000, abs=300)


def test_the_option_is_read():
    chaos = Chaos.read(CHAOS_EXAMPLE)
    assert chaos == Chaos(seed=7, error=0.05, delay=0.1, seconds=0.5, kill=0.001, drop=0.01)
    assert chaos.words == CHAOS_EXAMPLE
    assert Chaos.read(" error = 1 ").words == "seed=0,error=1"
    assert Chaos.read("delay=1:0").seconds == 0


@each(
    "text",
    [
        "erorr=0.1",
        "error",
        "error=",
        "error=1.1",
        "error=-0.1",
        "error=nan",
        "error=x",
        "delay=0.5",
        "delay=0.5:",
        "delay=0.5:x",
        "delay=0.5:-1",
        "delay=0.5:3601",
        "delay=2:1",
        "seed=1.5,error=1",
        "seed=-1,error=1",
        "seed=" + "9" * 30 + ",error=1",
        "seed=7",
        "error=0.1,error=0.2",
        "error=0.1,,drop=0.1",
        ",",
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(text):
    with pytest.raises(ConfigError, match=r"^chaos: .*(fractions from 0 to 1|is given twice)"):
        ServerOptions(chaos=text)


def test_an_option_that_can_be_read_is_kept():
    assert ServerOptions(chaos=CHAOS_EXAMPLE).chaos == CHAOS_EXAMPLE
