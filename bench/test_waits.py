"""The bench of waiting stages: its limits, what it leaves out, and that its servers do what their scenes say."""

from __future__ import annotations

from pathlib import Path

import pytest

import waits
from builds import SOURCES
from pair_figures import PairRound
from waiting_notes import note, read_notes
from waits import (
    CHOICES,
    FAST_MACHINE,
    LEAVERS,
    SCENES,
    Sizes,
    litserve,
    litserve_version,
    measure,
    ours,
    scenes_of,
    served,
    take_turns,
)

TINY = Sizes(
    nap_turns=1,
    nap_seconds=0.5,
    plain_seconds=0.2,
    echo_turns=2,
    echo_requests=256,
    hooks_seconds=0.5,
    leave_turns=2,
)


def test_each_scene_has_its_limit() -> None:
    limits = {"nap": (0.91, 0.89), "async-echo": (0.61, 0.59), "hooks": (0.91, 0.89)}
    limits |= {"leave": (0.99, 1.01), "leave-metrics": (0.99, 1.01)}
    for name, (kept, missed) in limits.items():
        assert SCENES[name].limit.met([kept])
        assert not SCENES[name].limit.met([missed])
    assert {name for name, scene in SCENES.items() if scene.limit.bound is None} == SCENES.keys() - limits.keys()


@pytest.mark.parametrize(("factor", "bound"), [(1.01, 0.9), (0.99, 0.5)])
def test_the_limit_of_naps_is_that_of_the_machine(factor: float, bound: float) -> None:
    naps = PairRound("nap", 0, [2000.0], [2560.0])
    seen = [FAST_MACHINE * factor * odd for odd in (0.1, 1, 10)]
    plain = [PairRound("nap-machine", number, [rate], [FAST_MACHINE]) for number, rate in enumerate(seen)]
    found = {scene.name: scene.limit.bound for scene in scenes_of([naps, *plain])}
    assert found == {"nap": bound, "nap-machine": None}


def test_another_side_is_first_in_each_turn() -> None:
    calls: list[str] = []
    sides = [lambda name=name: float(len(calls.append(name) or calls)) for name in "abc"]
    seen = take_turns(1, 3, sides)
    assert "".join(calls) == "bcacababc"
    assert seen == [[3.0, 5.0, 7.0], [1.0, 6.0, 8.0], [2.0, 4.0, 9.0]]


def test_litserve_is_left_out_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "PEER", tmp_path / "python")
    assert litserve_version() is None


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.touch()
    for cancelled in (False, False, True):
        note(str(path), cancelled=cancelled)
    begun, cancels = read_notes(path)
    assert [*begun, *cancels] == sorted([*begun, *cancels])
    assert (len(begun), len(cancels)) == (2, 1)


def test_callers_that_leave_are_seen_by_their_tasks_and_in_the_metrics() -> None:
    assert Sizes().leave_turns * LEAVERS >= 100
    taken = list(measure("leave", 3, TINY, SOURCES, beside=False))
    assert [(one.scene, one.number, len(one.ours)) for one in taken] == [("leave", 3, 1), ("leave-metrics", 3, 1)]
    assert all(one.ours[0] > 0 for one in taken)


@pytest.mark.night
@pytest.mark.parametrize("choice", [name for name in CHOICES if name != "leave"])
def test_a_round_has_every_pair_of_its_scene(choice: str) -> None:
    taken = list(measure(choice, 0, TINY, SOURCES, beside=False))
    beside = {f"{choice}-litserve"}
    assert {one.scene for one in taken} == {name for name in SCENES if name.startswith(choice)} - beside
    assert all(min(*one.ours, *one.theirs) > 0 for one in taken)


@pytest.mark.night
def test_litserve_answers_what_the_load_generator_expects() -> None:
    if litserve_version() is None:
        pytest.skip("LitServe is installed by make bench-waiting")
    with served(ours("nap", SOURCES), litserve(0.1)) as servers:
        assert [server.subject.name for server in servers] == ["nap", "LitServe"]
