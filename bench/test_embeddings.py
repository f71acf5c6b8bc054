"""The bench of embedding tables: its limits, and that both sides of a scene do the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from builds import SOURCES
from embeddings import READS, SCENES, Sizes, measure, measure_reads, parts_of_fit, sides_of
from stored_rows import draw_ids, ids_of, make_cold, readers, rows_beside

TINY = Sizes(rows=100, width=3, ids=64, steps=2, laps=4, warmup=1, cold_rows=100, cold_laps=2)


def test_each_scene_has_its_limit() -> None:
    limits = {"memory": (1.19, 1.21), "shared": (1.99, 2.01), "store": (0.51, 0.49), "keras": (0.49, 0.51)}
    limits |= {"rows": (0.71, 0.69), "rows-any": (1.21, 1.19), "rows-cold": (2.01, 1.99), "served": (0.81, 0.79)}
    assert set(SCENES) == set(limits)
    for name, (kept, missed) in limits.items():
        assert SCENES[name].limit.met([kept])
        assert not SCENES[name].limit.met([missed])


@pytest.mark.parametrize("scene", [name for name in SCENES if name not in (*READS, "served")])
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


@pytest.mark.parametrize(("kind", "cold"), [("dense", False), ("any", False), ("dense", True)])
def test_shards_and_one_map_have_the_same_rows(kind: str, cold: bool, tmp_path: Path) -> None:
    known = ids_of(kind, TINY.rows)
    with readers(tmp_path, kind, TINY.rows, TINY.width, cold=cold) as sides:
        for side in sides if cold else ():
            make_cold(side)
        ids = draw_ids(np.random.default_rng(0), known, TINY.ids)
        ours, theirs = (side(ids) for side in sides)
        assert len(np.unique(ids)) == TINY.ids
        assert (ours == theirs).all()
        assert len(sides[0].files) == (4 if kind == "dense" else 1)  # a header is longer than 25 rows


@pytest.mark.parametrize("scene", READS)
def test_a_round_of_reads_has_a_figure_of_each_turn(scene: str) -> None:
    rounds = list(measure_reads(scene, 2, TINY))
    assert [(one.scene, one.number) for one in rounds] == [(scene, 0), (scene, 1)]
    laps = TINY.cold_laps if scene == "rows-cold" else TINY.laps
    assert all(len(side) == laps and min(side) > 0 for one in rounds for side in (one.ours, one.theirs))


def test_what_is_not_installed_is_left_out_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = rows_beside(tmp_path, TINY.rows, TINY.width, TINY.ids)
    assert figures["rows/s of a dict of rows"] > 0
    told = capsys.readouterr().out
    for name, module in (("LMDB", "lmdb"), ("rocksdict", "rocksdict")):
        assert (f"rows/s of {name}" in figures) is not (f"{name} is left out: No module named '{module}'" in told)


def test_both_sides_of_the_service_answer_what_the_load_generator_expects(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from penstock.artifact.opened_artifact import open_artifact
    from penstock.artifact.served_model import open_model
    from served_rows import ANSWER, BODY, lookups_share, subjects

    subjects(tmp_path, 500, 8, SOURCES)
    for name, outside in (("outside", 1), ("inlined", 0)):
        artifact = open_artifact(tmp_path / name)
        assert len(artifact.manifest.outside) == outside
        values = open_model(artifact).predict_rows([json.loads(BODY)]).values
        assert {name: array.tolist()[0] for name, array in values.items()} == json.loads(ANSWER)
    assert lookups_share(tmp_path / "outside").keys() == {"ms of a batch of 256", "ms of the lookups in it"}
