"""Names of parts: one for each attempt, none too long, none that is a place's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transfer.part_names import download_name, is_part, part_name

NAMES = st.text("ab.%=/0", min_size=1, max_size=6)
ATTEMPTS = st.tuples(NAMES, NAMES, st.integers(1, 12))


def test_a_part_is_named_for_its_place_its_job_and_its_fence():
    assert part_name("a.json", "job-1", 7) == ".a.json.job-1.7.part"
    assert part_name("a", "x/../y", 7) == ".a.x%2F%2E%2E%2Fy.7.part"


@given(ATTEMPTS, ATTEMPTS)
def test_no_two_attempts_have_one_name(one, other):
    assert (part_name(*one) == part_name(*other)) is (one == other)


@pytest.mark.parametrize("name", ["a" * 255, "\u20ac" * 85, "\U0001f600" * 63])
def test_a_long_name_is_cut_and_stays_its_own(name):
    names = {part_name(name, job_id, fence) for job_id in ("a", "b" * 300) for fence in (1, 2)}
    assert len(names) == 4
    assert all(len(found.encode()) <= 255 and found.startswith(f".{name[:40]}") for found in names)
    assert part_name(name[:-1] + "x", "a", 1) not in names


def test_the_longest_name_that_fits_is_not_cut():
    name = "a" * (255 - len("..j.1.part"))
    assert part_name(name, "j", 1) == f".{name}.j.1.part"
    assert "=" in part_name(name + "a", "j", 1)


def test_a_part_is_known_by_its_name():
    assert is_part(part_name("a", "b", 1))
    assert not is_part("a.part")
    assert not is_part(".a")


def test_a_download_is_named_for_its_job_and_its_fence():
    assert download_name("job/../1", 7) == "job%2F%2E%2E%2F1.7"
    assert download_name("j" * 100, 7) == "j" * 100 + ".7"


def test_no_two_downloads_have_one_name_however_long_their_ids_are():
    ids = ["x" * 127 + end for end in "ab"] + ["." * 127 + end for end in "ab"] + ["x" * 100]
    names = {download_name(job_id, fence) for job_id in ids for fence in (1, 2)}
    assert len(names) == 2 * len(ids)
    assert max(map(len, names)) <= 120
