"""The simulator of holding: it loses nobody, it is fair to each policy, and its figures are what arithmetic says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hold_cases import CLOSED, KINDS, draw_case, draw_cases
from hold_loads import Callers
from hold_policies import FIXED, YARDSTICKS, queue_maker
from hold_results import HoldRun, Played, Shown, average, best_fixed, mean_to_best_fixed, mean_to_never, reached_by
from hold_sim import Case, Outcome, Stuck, draw_for, play
from hold_table import summarise
from night import NIGHT, histories


def case(**changes) -> Case:
    plain = Case(
        name="test:1:0",
        kind="callers",
        workers=1,
        max_size=8,
        a=5e-3,
        b=0.1e-3,
        scatter=0.0,
        answer=1e-6,
        requests=4000,
        warm=800,
        callers=(Callers(64, 1e-6),),
        hop=0.0,
    )
    return replace(plain, **changes)


def played(of: Case, policy: str = "0", **options) -> Outcome:
    return play(of, queue_maker(policy), draw_for(of), **options)


def test_a_saturated_stage_answers_what_its_workers_can() -> None:
    for workers in (1, 2, 4):
        full = case(workers=workers, callers=(Callers(32 * workers, 1e-6),))
        assert played(full).throughput == pytest.approx(full.capacity, rel=0.01)


def test_a_lone_caller_waits_for_its_run_and_its_own_way() -> None:
    alone = case(callers=(Callers(1, 0.0),), requests=200, warm=20, hop=50e-6, answer=20e-6)
    found = played(alone)
    assert found.mean == pytest.approx(5.1e-3 + 2 * 50e-6 + 30e-6)
    assert found.throughput == pytest.approx(1 / found.mean)


def test_the_queue_is_told_the_tick_too() -> None:
    # A hold lasts at most 0.4 ms here, and a timer of 1 ms cannot end it in time.
    short = case(a=0.4e-3, b=0.004e-3, callers=(Callers(8, 50e-6),), hop=10e-6)

    def held(tick: float) -> int:
        cuts = play(short, queue_maker("auto", tick), draw_for(short), tick=tick).cuts
        return cuts.get("adaptive", 0) + cuts.get("adaptive_timeout", 0)

    assert held(1e-3) == 0
    assert held(0.1e-3) > 0


def test_callers_are_together_again_after_a_stage_has_become_slower() -> None:
    # They come one by one, and more and more of them, so that batches of each size are fast.
    slower = case(
        a=20e-3,
        callers=tuple(Callers(1, 0.2e-3, start=0.05 * i) for i in range(8)),
        max_size=64,
        scatter=0.05,
        requests=12000,
    )
    fast, until_settled = 1000, 60
    for faster in (0.002, 0.02, 0.1, 0.3) if NIGHT else (0.02,):
        draws = draw_for(slower)
        draws.runs[:fast] = [faster * run for run in draws.runs[:fast]]
        trace = play(slower, queue_maker("auto", 0.1e-3), draws, tick=0.1e-3).trace
        sizes = [size for _, size, _ in trace[fast + until_settled :]]
        assert len(sizes) > 100, faster
        assert sum(sizes) / len(sizes) > 7.5, faster


def test_a_timer_is_rounded_up_to_its_tick() -> None:
    alone = case(callers=(Callers(1, 0.0),), requests=200, warm=20, answer=0.0)
    assert played(alone, "0.25").mean == pytest.approx(5.1e-3 + 2e-3)
    assert played(alone, "0.25", tick=0.4e-3).mean == pytest.approx(5.1e-3 + 1.6e-3)


def test_who_is_answered_together_has_an_answer_at_a_moment_of_its_own() -> None:
    together = case(callers=(), arrivals=[1.0] * 4, requests=4, warm=0, answer=0.1e-3)
    found = played(together, "1")
    assert found.batches == 1
    # Four requests of 50 us, a wait of 5 ms and its tick, the run, and then one answer after the other.
    assert found.p99 - found.mean == pytest.approx(0.15e-3)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_open_request_is_answered_once(workers: int) -> None:
    for policy in ("auto", *YARDSTICKS):
        for drawn in draw_cases(3, workers, histories(10)):
            found = played(drawn, policy)
            assert found.answered == sum(size for _, size, _ in found.trace), (policy, drawn.name)
            assert max(size for _, size, _ in found.trace) <= drawn.max_size, (policy, drawn.name)
            if not drawn.callers:
                assert found.answered == len(drawn.arrivals) == drawn.requests, (policy, drawn.name)


def test_a_worker_is_busy_for_the_sum_of_its_runs() -> None:
    found = played(case(callers=(Callers(5, 2e-3),)))
    runs = sum(5e-3 + 0.1e-3 * size for _, size, _ in found.trace)
    last = found.batches - len(found.trace)
    assert runs <= found.busy <= runs + last * (5e-3 + 8 * 0.1e-3)
    assert found.busy <= found.ended + 2 * (5e-3 + 8 * 0.1e-3)


def test_one_seed_gives_one_result() -> None:
    for index in range(len(KINDS)):
        first, second = (played(draw_case(7, 2, index), "1:0.1") for _ in range(2))
        assert first == second


def test_open_arrivals_are_the_same_for_each_policy_and_in_order() -> None:
    for drawn in draw_cases(5, 1, 20):
        assert list(drawn.arrivals) == sorted(drawn.arrivals)
        assert draw_case(5, 1, int(drawn.name.rpartition(":")[2])).arrivals == drawn.arrivals
        assert bool(drawn.callers) is (drawn.kind in CLOSED) or drawn.kind == "switching"


def test_half_of_the_cases_have_callers_that_wait() -> None:
    assert sum(kind in CLOSED for kind in KINDS) == len(KINDS) / 2


def test_the_plays_of_a_case_differ_in_moments_and_scatters_alone() -> None:
    for index in range(len(KINDS)):
        first, second = (draw_case(5, 2, index, number) for number in (0, 1))
        assert first.words == second.words
        assert first.callers == second.callers
        assert replace(first, number=1, arrivals=(), requests=0, warm=0) == replace(
            second, arrivals=(), requests=0, warm=0
        )
        assert not first.arrivals or first.arrivals != second.arrivals
        assert draw_for(first).runs != draw_for(second).runs


def test_an_open_load_with_few_arrivals_is_played_to_its_end() -> None:
    few = draw_case(1, 1, 18, 0)
    assert len(few.arrivals) < 400
    assert few.requests == len(few.arrivals)
    assert few.warm <= 0.4 * few.requests
    assert played(few).answered == few.requests


def test_where_fewer_are_answered_than_are_not_to_count_all_count() -> None:
    found = played(case(callers=(Callers(4, 1e-3, stop=0.05),), requests=10**6, warm=1000))
    assert 0 < found.answered < 1000
    assert found.mean > 0


def test_an_open_load_is_as_fast_as_it_says() -> None:
    for drawn in draw_cases(5, 1, 60, "Poisson"):
        rate = len(drawn.arrivals) / drawn.arrivals[-1]
        assert rate <= 1.1 * min(drawn.capacity, 1 / (1.5 * drawn.answer))


def test_callers_ask_no_more_once_they_stop() -> None:
    found = played(case(callers=(Callers(4, 1e-3, stop=0.5),), requests=10**6, warm=0))
    assert 0.5 < found.ended < 0.52


class _Mute:
    """A queue that takes everything and gives nothing."""

    def __init__(self) -> None:
        self.items: list[object] = []

    def __len__(self) -> int:
        return len(self.items)

    def offer(self, item: object, _: float) -> None:
        self.items.append(item)

    def take(self, now: float, *, idle: bool, worker: int) -> None:
        pass

    def next_deadline(self) -> None:
        pass


def test_a_queue_that_keeps_its_items_is_found() -> None:
    stuck = case()
    with pytest.raises(Stuck, match="64 items wait"):
        play(stuck, lambda _: _Mute(), draw_for(stuck))


def _run() -> HoldRun:
    def shown(mean: float) -> Shown:
        return Shown(100.0, mean, 2 * mean, 9, {"idle": 9})

    fixed = {name: shown(0.03 + i / 100) for i, name in enumerate(FIXED)}
    cases = [
        Played(f"1:1:{i}", kind, kind in CLOSED, 1, "words", {"x:y": shown(0.01), "0": shown(0.02), **fixed})
        for i, kind in enumerate(KINDS)
    ]
    return HoldRun(datetime.now(UTC), "x:y", {}, cases, {2: 0.95}, {"1:callers": {"Poisson": 0.9}})


def test_ratios_are_better_when_more() -> None:
    first = _run().played[0]
    assert mean_to_never(first, "x:y") == pytest.approx(2.0)
    assert mean_to_best_fixed(first, "x:y") == pytest.approx(2.0)


def test_0_may_be_the_best_fixed_policy() -> None:
    first = _run().played[0]
    assert best_fixed(first) == "0"
    first.by_policy["0"].mean = 0.06
    assert best_fixed(first) == FIXED[0]
    assert mean_to_best_fixed(first, "x:y") == pytest.approx(3.0)


def test_plays_are_averaged_and_their_batches_added_up() -> None:
    both = average([Shown(100.0, 0.01, 0.02, 3, {"idle": 3}), Shown(200.0, 0.03, 0.06, 5, {"idle": 1, "full": 4})])
    assert both == Shown(150.0, 0.02, 0.04, 8, {"idle": 4, "full": 4})


def test_what_99_of_100_reach() -> None:
    assert reached_by([float(i) for i in range(300)], 0.99) == 3.0
    assert reached_by([5.0], 0.99) == 5.0


def test_a_missed_target_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = _run()
    assert not summarise(run)
    assert capsys.readouterr().out.count("MISSED") == 1
    run.changes = {"1:callers": {"Poisson": 0.96}}
    assert summarise(run)
