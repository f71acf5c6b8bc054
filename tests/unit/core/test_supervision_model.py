"""Random histories of workers and stages against plain ones, which keep all that happened and count it for each answer.

Every answer is compared.  What the documentation promises is also counted from the history alone, without the plain
ones.  Where something differs, the seed in the message is the history to replay.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from night import histories
from penstock.core.supervision import Backoff, StageHealth, Verdict, WorkerHealth

HISTORIES = histories(200)
STEPS = 250

DELAYS = [0.0, *(0.1 * 2**n for n in range(9)), 30.0]
"""Of restarts, and of recycles: 0, 0.1 s, doubling to 30 s, which stays."""
RESTS = [30.0, 60.0, 120.0, 240.0, 300.0]
PAUSES = [0.0, 0.0, 0.0, 0.0, 0.03125, 0.125, 0.5, 1.0, 4.0, 30.0]
ROUNDING = 1e-6
"""Seconds: a delay is the difference of two moments."""
SERVE, EXAMINE, RECYCLE = Verdict.SERVE, Verdict.EXAMINE, Verdict.RECYCLE


def delay_after(times):
    """The delay before the next try, after so many tries in a row."""
    return DELAYS[min(times, len(DELAYS) - 1)]


# -- one worker -------------------------------------------------------------------------------------------------------


class PlainWorker:
    """What the documentation says of one worker, counted from the list of all that happened to it."""

    def __init__(self, examined, recycle_after):
        self.examined = examined
        self.recycle_after = recycle_after
        self.happened = []
        """What, and when: "good", "bad", "nothing", "death", "ready", "examine", "well", "sick", "recycle"."""

    def note(self, what, now):
        self.happened.append((what, now))

    def since(self, *what):
        """All that happened after the last of these."""
        names = [name for name, _ in self.happened]
        last = max((at for at, name in enumerate(names) if name in what), default=-1)
        return self.happened[last + 1 :]

    @property
    def failing(self):
        """When each of the whole failures in a row was reported."""
        return [now for what, now in self.since("good", "ready", "well", "sick", "recycle") if what == "bad"]

    @property
    def being_ended(self):
        recycles = [what for what, _ in self.since("ready") if what in ("recycle", "sick")]
        return bool(recycles)

    @property
    def under_examination(self):
        names = [what for what, _ in self.since("ready", "well", "sick")]
        return "examine" in names

    @property
    def recycled_from(self):
        """From when on it may be recycled again: a delay after the first READY that follows each recycle."""
        start, times, ended = -math.inf, 0, False
        for what, now in self.happened:
            if what == "good":
                times = 0
            elif what in ("recycle", "sick"):
                ended = True
            elif what == "ready" and ended:
                start, times, ended = now + delay_after(times), times + 1, False
        return start

    def batch_finished(self, what, now, on_trial):
        self.note(what, now)
        failing = self.failing
        if what != "bad" or len(failing) < 5 or self.being_ended:
            return SERVE
        if now < self.recycled_from and not on_trial:
            return SERVE
        if self.examined:
            lately = [then for name, then in self.since("ready") if name == "examine" and now - then < 1.0]
            if self.under_examination or lately:
                return SERVE
            self.note("examine", now)
            return EXAMINE
        if on_trial or now - failing[0] >= self.recycle_after:
            self.note("recycle", now)
            return RECYCLE
        return SERVE

    def examination_finished(self, well, now):
        self.note("well" if well else "sick", now)
        return SERVE if well else RECYCLE

    def restart_delay(self):
        """The delay before it is started again, now that it has died."""
        names = [what for what, _ in self.since("good", "nothing")]
        return delay_after(names.count("death") - 1)


class WorkerHistory:
    """One random history of a worker, played to both."""

    def __init__(self, seed):
        self.seed = seed
        self.random = Random(seed)
        self.examined = self.random.random() < 0.5
        self.recycle_after = self.random.choice((0.0, 0.5, 30.0, math.inf))
        self.health = WorkerHealth(examined=self.examined, recycle_after=self.recycle_after)
        self.plain = PlainWorker(self.examined, self.recycle_after)
        self.now = self.random.choice((0.0, 1000.0))
        self.on_trial = False
        self.answers = []
        """What was asked, when, whether on trial, and the verdict."""
        self.badness = self.random.choice((0.5, 0.9, 0.98))

    def play(self):
        self.become_ready()
        for _ in range(STEPS):
            self.now += self.random.choice(PAUSES)
            if self.random.random() < 0.02:
                self.on_trial = not self.on_trial
            self.step()
        check_worker(self)

    def step(self):
        chance = self.random.random()
        if self.plain.under_examination and chance < 0.2:
            self.finish_examination()
        elif self.plain.being_ended and chance < 0.3:
            self.become_ready()  # it was ended by us: no delay is asked for
        elif chance < 0.22:
            self.die()
        else:
            self.finish_batch()

    def finish_batch(self):
        succeeded, failed = self.random.choice(((True, False), (True, True), (False, False)))
        if self.random.random() < self.badness:
            succeeded, failed = False, True
        what = "good" if succeeded else ("bad" if failed else "nothing")
        verdict = self.health.batch_finished(succeeded=succeeded, failed=failed, now=self.now, on_trial=self.on_trial)
        assert verdict is self.plain.batch_finished(what, self.now, self.on_trial), self
        self.answers.append((what, self.now, self.on_trial, verdict))

    def finish_examination(self):
        well = self.random.random() < 0.6
        verdict = self.health.examination_finished(well=well)
        assert verdict is self.plain.examination_finished(well, self.now), self
        self.answers.append(("well" if well else "sick", self.now, self.on_trial, verdict))

    def die(self):
        self.plain.note("death", self.now)
        delay = self.health.restart.next_delay()
        assert delay == pytest.approx(self.plain.restart_delay()), self
        assert 0.0 <= delay <= 30.0
        self.now += delay
        if self.random.random() < 0.7:  # else it dies again before it is ready
            self.become_ready()

    def become_ready(self):
        self.health.became_ready(self.now)
        self.plain.note("ready", self.now)
        self.answers.append(("ready", self.now, self.on_trial, SERVE))

    def __repr__(self):
        return f"history {self.seed}: examined={self.examined}, unhealthy_after={self.recycle_after}"


def check_worker(history):
    """Count what the documentation promises of a worker, in the order of the answers."""
    failing = []
    examined_at, examining, ended = -math.inf, False, False
    for what, now, on_trial, verdict in history.answers:
        if what == "ready":
            failing, examined_at, examining, ended = [], -math.inf, False, False
            continue
        if what == "bad":
            failing.append(now)
        elif what == "good":
            failing.clear()
        if verdict is RECYCLE:
            assert not ended, (history, "it is ended once in a life")
            ended = True
        if verdict is not SERVE and what not in ("well", "sick"):
            assert what == "bad", (history, "only a whole failure is judged")
            assert len(failing) >= 5, (history, "five in a row are the least")
        if verdict is EXAMINE:
            assert history.examined, (history, "there is no example")
            assert not examining, (history, "two examinations at once")
            assert now - examined_at >= 1.0, (history, "two examinations within a second")
            examined_at, examining = now, True
        elif what in ("well", "sick"):
            assert (verdict is RECYCLE) == (what == "sick"), history
            examining = False
        elif verdict is RECYCLE:
            assert not history.examined, (history, "a client has ended a worker that has an example")
            assert on_trial or now - failing[0] >= history.recycle_after, (history, "it has failed too shortly")
        if verdict is RECYCLE or what == "well":
            failing = []


def test_a_worker_is_judged_as_its_whole_history_says():
    for seed in range(HISTORIES):
        WorkerHistory(seed).play()


# -- a stage ----------------------------------------------------------------------------------------------------------


class PlainStage:
    """What the documentation says of a stage, counted from the list of all that happened to it."""

    def __init__(self, workers):
        self.workers = range(workers)
        self.happened = []
        """What, when, which worker and why: "ready", "failed start", "recycle", "good", "rest"."""

    def note(self, what, now, worker=None, reason=""):
        self.happened.append((what, now, worker, reason))

    def since(self, *what):
        """All that happened after the last of these."""
        names = [name for name, *_ in self.happened]
        last = max((at for at, name in enumerate(names) if name in what), default=-1)
        return self.happened[last + 1 :]

    @property
    def ever_ready(self):
        return any(what == "ready" for what, *_ in self.happened)

    @property
    def resting(self):
        """Whether nobody has become ready since the last rest began."""
        return any(what == "rest" for what, *_ in self.since("ready"))

    @property
    def rest_ends(self):
        """When the last rest ends: each is twice as long as the one before it, if no item ended well between."""
        ends, rests = 0.0, 0
        for what, now, *_ in self.happened:
            if what == "good":
                rests = 0
            elif what == "rest":
                ends = now + RESTS[min(rests, len(RESTS) - 1)]
                rests += 1
        return ends

    @property
    def on_trial(self):
        return not self.resting and any(what == "rest" for what, *_ in self.since("good"))

    @property
    def reason(self):
        """The last error that brought the stage closer to its failure, unless somebody became ready since."""
        reasons = [reason for _, _, _, reason in self.since("ready") if reason]
        return reasons[-1] if reasons else ""

    def failed_starts(self, worker):
        """Its starts in a row that failed."""
        count = 0
        for what, _, index, _ in self.happened:
            if index == worker:
                count = count + 1 if what == "failed start" else 0
        return count

    def may_serve(self, now):
        """Whether who is ready now may serve: during a rest only where the rest began because a start failed."""
        if not self.resting or now >= self.rest_ends:
            return True
        names = [what for what, *_ in self.happened]
        began = len(names) - 1 - names[::-1].index("rest")
        return names[began - 1] == "failed start"

    def failed(self, live):
        return live == 0 and (self.resting or all(self.failed_starts(worker) >= 5 for worker in self.workers))

    def recycled(self, reason, now):
        self.note("recycle", now)
        recycles = [what for what, *_ in self.since("good") if what == "recycle"]
        if self.resting or len(recycles) < 3:
            return False
        self.note("rest", now, reason=reason)
        return True

    def died_before_ready(self, worker, reason, now):
        over = self.resting and now >= self.rest_ends
        self.note("failed start", now, worker, reason)
        if over:
            self.note("rest", now)

    def delay(self, live, now, tries, innocent):
        """How long a dead worker waits that was started so many times in a row without a good batch."""
        if self.resting:
            return max(0.0, self.rest_ends - now)
        if innocent:
            return 0.0
        return 30.0 if self.failed(live) else delay_after(tries)


class Slot:
    """A worker of the history: it waits until `due`, starts, is ready, or ends because it was told to."""

    def __init__(self, index):
        self.index = index
        self.state = "waits"
        self.due = 0.0
        self.backoff = Backoff()
        self.tries = 0
        """How often its own backoff was asked since it was reset."""


class StageHistory:
    """One random history of a stage and its workers, played to both.  The workers do what the driver lets them do."""

    def __init__(self, seed):
        self.seed = seed
        self.random = Random(seed)
        self.slots = [Slot(index) for index in range(self.random.choice((1, 1, 2, 3)))]
        self.health = StageHealth(len(self.slots))
        self.plain = PlainStage(len(self.slots))
        self.now = 0.0
        self.errors = 0
        self.recycles = 0
        """In a row, with no good item between them."""
        self.rested = []
        """The lengths of the rests in a row, with no good item between them."""
        self.luck = self.random.choice((0.02, 0.2, 0.6))
        """How likely an item ends well."""
        self.health_of_starts = self.random.choice((0.1, 0.6, 0.95))

    def play(self):
        for _ in range(STEPS):
            self.now += self.random.choice(PAUSES)
            slot = self.random.choice(self.slots)
            match slot.state:
                case "waits" if slot.due <= self.now:
                    slot.state = "starts"
                case "waits":
                    self.now = self.random.choice((self.now, slot.due))
                case "starts" if self.random.random() < self.health_of_starts:
                    self.become_ready(slot)
                case "starts":
                    self.fail_to_start(slot)
                case "ready":
                    self.serve(slot)
                case "ends":
                    self.wait(slot, innocent=True)
            if self.random.random() < 0.01:  # an answer that was on its way when its worker was ended
                self.random.choice((self.item_succeeded, self.recycle))()
            self.compare()

    @property
    def live(self):
        return sum(slot.state == "ready" for slot in self.slots)

    def error(self):
        self.errors += 1
        return f"error {self.errors}"

    def become_ready(self, slot):
        may_serve = self.plain.may_serve(self.now)
        assert self.health.may_serve(self.now) is may_serve, self
        if may_serve:
            slot.state = "ready"
            self.health.became_ready(slot.index)
            self.plain.note("ready", self.now, slot.index)
        else:
            slot.state = "ends"

    def fail_to_start(self, slot):
        reason = self.error()
        ended = self.health.resting and self.now >= self.health.rest_ends
        self.health.died_before_ready(slot.index, reason, self.now)
        self.plain.died_before_ready(slot.index, reason, self.now)
        if ended:
            self.note_rest()
        self.wait(slot, innocent=False)

    def serve(self, slot):
        chance = self.random.random()
        if chance < self.luck:
            slot.backoff.reset()
            slot.tries = 0
            self.item_succeeded()
        elif chance < self.luck + 0.1:
            self.wait(slot, innocent=False)  # it died
        elif chance < self.luck + 0.5:
            slot.state = "ends"
            self.recycle()

    def item_succeeded(self):
        self.health.item_succeeded()
        self.plain.note("good", self.now)
        self.recycles, self.rested = 0, []

    def recycle(self):
        reason, was_resting = self.error(), self.health.resting
        rests = self.health.recycled(reason, self.now)
        assert rests is self.plain.recycled(reason, self.now), self
        self.recycles += 1
        assert rests is (self.recycles >= 3 and not was_resting), (self, "three in a row, no fewer and no more")
        if rests:
            self.note_rest()
            for slot in self.slots:
                if slot.state == "ready":
                    slot.state = "ends"
            assert self.health.failed(self.live), self

    def note_rest(self):
        self.rested.append(self.health.rest_ends - self.now)
        assert self.rested == pytest.approx((RESTS + [300.0] * len(self.rested))[: len(self.rested)]), self

    def wait(self, slot, *, innocent):
        """A worker has ended: how long it waits."""
        slot.state = "waits"
        expected = self.plain.delay(self.live, self.now, slot.tries, innocent)
        failed, resting = self.health.failed(self.live), self.health.resting
        delay = self.health.delay(slot.backoff, self.live, self.now, innocent=innocent)
        assert delay == pytest.approx(expected), self
        if not innocent and not failed and not resting:
            slot.tries += 1
        assert 0.0 <= delay <= (300.0 if resting else 30.0) + ROUNDING, self
        slot.due = self.now + delay

    def compare(self):
        health, plain = self.health, self.plain
        assert health.ever_ready is plain.ever_ready, self
        assert health.failed_starts == [plain.failed_starts(worker) for worker in plain.workers], self
        assert (health.resting, health.on_trial) == (plain.resting, plain.on_trial), self
        if plain.resting:
            assert health.rest_ends == pytest.approx(plain.rest_ends), self
        assert health.reason == plain.reason, self
        for live in range(len(self.slots) + 1):
            assert health.failed(live) is plain.failed(live), (self, live)
            assert not (live and health.failed(live)), (self, "a stage with a live worker has not failed")

    def __repr__(self):
        return f"history {self.seed} of {len(self.slots)} workers, at {self.now:g}"


def test_a_stage_rests_and_fails_as_its_whole_history_says():
    for seed in range(HISTORIES):
        StageHistory(seed).play()
