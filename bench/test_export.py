"""The bench of exported models: its ratios, its limits, and that a lap is long enough to be timed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from comparison import steady_ratio
from export import SCENES
from pair_figures import PairRound, PairRun, summarise


def a_run(*rounds: PairRound) -> PairRun:
    scenes = [SCENES[name] for name in dict.fromkeys(r.scene for r in rounds)]
    return PairRun(datetime.now(UTC), {"cpu": "some"}, {"rounds": 1}, scenes, list(rounds))


def a_round(scene: str, ratio: float, number: int = 0) -> PairRound:
    return PairRound(scene, number, [ratio, 2 * ratio, 4 * ratio, 8 * ratio], [1, 2, 4, 8])


def test_a_ratio_leaves_out_the_turns_in_which_others_had_the_machine() -> None:
    assert steady_ratio([0.1, 0.8, 0.8, 9.0], [1.0] * 4) == pytest.approx(0.8)


def test_a_turn_without_its_partner_is_no_turn() -> None:
    with pytest.raises(ValueError, match="zip"):
        steady_ratio([1.0], [1.0, 1.0])


def test_each_scene_has_its_limit() -> None:
    limits = {"served": (0.71, 0.69), "encode-32": (0.09, 0.11), "encode-100000": (0.99, 1.01)}
    assert set(SCENES) == set(limits)
    for scene, (kept, missed) in limits.items():
        assert a_run(a_round(scene, kept)).met()
        assert not summarise(a_run(a_round(scene, missed)))


def test_a_limit_is_for_the_median_of_the_rounds() -> None:
    assert a_run(*(a_round("served", ratio, n) for n, ratio in enumerate((0.5, 0.7001, 0.9)))).met()
    assert not a_run(*(a_round("served", ratio, n) for n, ratio in enumerate((0.5, 0.6, 0.9)))).met()


def test_one_scene_that_misses_its_limit_is_enough() -> None:
    assert not a_run(a_round("served", 0.9), a_round("encode-32", 0.2)).met()
