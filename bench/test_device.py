"""The ideal of the simulated device, what figures are called, and which of them a target is about."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builds import SOURCES
from device import NOTES_VARIABLE, WAIT_VARIABLE, Ideal, SleepNotes, Sleeps, ideal_rate, new_notes, read_sleeps
from loadgen import run_load
from report import OF_IDEAL, summarise, targets_of
from run import turns
from sample_runs import a_run, measured
from servers import FIXED_WAITS, HOLD, LARGE, SUBJECTS, Server, fixed_name

# -- the ideal --------------------------------------------------------------------------------------------------------


def test_the_ideal_has_all_callers_in_one_batch_as_far_as_they_fit() -> None:
    for callers, rate in ((1, 1 / 0.0051), (8, 8 / 0.0058), (64, 64 / 0.0114), (256, 64 / 0.0114)):
        assert ideal_rate(callers) == pytest.approx(rate)


def test_the_ideal_of_a_measurement_counts_what_its_sleeps_took() -> None:
    before = Sleeps(100, 300, 9.0)
    after = Sleeps(110, 380, 9.0 + 10 * 0.005 + 80 * 0.0001 + 10 * 0.0004)
    slept = after - before
    assert (slept.batches, slept.items) == (10, 80)
    assert slept.oversleep == pytest.approx(0.0004)
    ideal = Ideal.of(8, slept)
    assert ideal.asked == pytest.approx(8 / 0.0058)
    assert ideal.real == pytest.approx(8 / 0.0062)
    assert ideal.mean_batch == 8


def test_without_a_batch_nothing_was_overslept() -> None:
    assert Ideal.of(1, Sleeps()) == Ideal(ideal_rate(1), ideal_rate(1), 0.0, 0.0)


def test_notes_of_sleeps_are_read_while_they_are_made_and_go_on_in_a_new_worker(tmp_path: Path) -> None:
    path = tmp_path / "sleeps"
    new_notes(path)
    assert read_sleeps(path) == Sleeps()
    SleepNotes(path).add(3, 0.5)
    again = SleepNotes(path)
    assert read_sleeps(path) == Sleeps(1, 3, 0.5)
    again.add(2, 0.25)
    assert read_sleeps(path) == Sleeps(2, 5, 0.75)


@pytest.mark.night
def test_the_server_tells_how_long_its_device_slept() -> None:
    server = Server(replace(HOLD["accelerator-0"], build=SOURCES))
    try:
        server.wait_ready()
        before = server.sleeps()
        seen = run_load(server.port, "/predict", connections=4, seconds=10, warmup=0, requests=40)
        after = server.sleeps()
    finally:
        server.stop()
    assert before is not None
    assert after is not None
    slept = after - before
    assert seen.completed <= slept.items <= seen.completed + 4
    assert slept.items / 4 <= slept.batches <= slept.items
    assert 0 < slept.oversleep < 0.1


@pytest.mark.night
def test_each_fixed_wait_is_that_of_its_server() -> None:
    for wait in FIXED_WAITS:
        assert max_wait_of(fixed_name(wait)) == repr(wait)


@pytest.mark.night
def test_the_default_policy_is_measured_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "0.003")
    default = "import penstock; print(repr(penstock.Batch().max_wait))"
    assert max_wait_of("accelerator") == printed(default, {})


def max_wait_of(name: str) -> str:
    asked = "import accelerator; print(repr(accelerator.Accelerator.batch.max_wait))"
    return printed(asked, dict(HOLD[name].variables))


def printed(program: str, variables: dict[str, str]) -> str:
    environment = {**os.environ, **SOURCES.environment(), **variables}
    environment.pop(NOTES_VARIABLE, None)
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


# -- what is measured, and what it is called --------------------------------------------------------------------------


def test_a_round_has_every_server_over_every_number_and_equals_behind_one_another() -> None:
    subjects = [SUBJECTS["floor"], LARGE["large-npy"], SUBJECTS["penstock"]]
    assert list(turns(subjects, [1, 8, 64], 0)) == [
        (0, 1), (1, 32), (2, 1),
        (0, 8), (1, 256), (2, 8),
        (0, 64), (2, 64),
    ]  # fmt: skip
    assert [which for which, _ in turns(subjects, [1], 1)] == [1, 2, 0, 1]


# -- targets ----------------------------------------------------------------------------------------------------------


def test_the_default_policy_is_held_to_the_ideal_with_real_sleeps() -> None:
    for connections, bound in OF_IDEAL.items():
        for several in (True, False):
            assert summarise(a_run(measured("accelerator", connections, bound + 0.001, several=several)))
            assert not summarise(a_run(measured("accelerator", connections, bound - 0.001, several=several)))


def test_only_what_was_measured_is_held_to_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    summarise(a_run(measured("accelerator", 8, 0.9), measured("accelerator", 64, 0.1)))
    shown = capsys.readouterr().out
    assert [c for c in (1, 8, 32, 64, 256) if f"accelerator / ideal, {c} connections" in shown] == [8]


def test_a_ratio_over_several_numbers_is_a_promise_over_256_alone() -> None:
    run = a_run(*(measured(name, c, 0.1) for name in ("penstock", "floor") for c in (8, 256)))
    ratios = {t.name: t for t in targets_of(run) if t.values(run)}
    assert ratios["requests/s, penstock / floor, 8 connections"].limit.bound is None
    assert ratios["requests/s, penstock / floor, 256 connections"].limit.bound == 0.5
    assert all("connections" in name for name in ratios)
