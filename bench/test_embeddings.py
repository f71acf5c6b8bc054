"""The bench of embedding tables: its limits, and that both sides of a scene do the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embeddings import SCENES, Sizes, measure, parts_of_fit, sides_of

TINY = Sizes(rows=100, width=3, ids=64, steps=2, laps=4, warmup=1)


def test_each_scene_has_its_limit() -> None:
    limits = {"memory": (1.19, 1.21), "shared": (1.99, 2.01), "store": (0.51, 0.49), "keras": (0.49, 0.51)}
    assert set(SCENES) == set(limits)
    for name, (kept, missed) in limits.items():
        assert SCENES[name].limit.met([kept])
        assert not SCENES[name].limit.met([missed])


@pytest.mark.parametrize("scene", list(SCENES))
def test_both_sides_of_a_scene_learn_the_same(scene: str, tmp_path: Path) -> None:
    if scene != "store":
        pytest.importorskip("keras" if scene == "keras" else "torch")
    ids = np.random.default_rng(0).integers(TINY.rows, size=(1, TINY.ids))
    # The Adagrad of Keras has its epsilon below the root.
    near = 2e-5 if scene == "keras" else 2e-6
    with sides_of(scene, tmp_path, TINY) as (ours, theirs):
        first = ours(ids)
        np.testing.assert_allclose(first, theirs(ids), rtol=near, atol=near)
        for _ in range(10):
            mine, yours = ours(ids), theirs(ids)
            np.testing.assert_allclose(mine, yours, rtol=near, atol=near)
    assert not np.allclose(first, mine, rtol=100 * near)


def test_the_parts_of_a_step_of_fit_are_told() -> None:
    pytest.importorskip("keras")
    whole, fetch, apply, idle, dense = parts_of_fit(TINY).values()
    assert 0 < fetch + apply < whole
    assert min(idle, dense) > 0


def test_a_round_has_a_figure_of_each_turn() -> None:
    rounds = list(measure("store", 2, TINY))
    assert [(one.scene, one.number) for one in rounds] == [("store", 0), ("store", 1)]
    assert all(len(side) == TINY.laps and min(side) > 0 for one in rounds for side in (one.ours, one.theirs))
