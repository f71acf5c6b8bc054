"""How long a check waits for its process, which is played by a shell here, and what it leaves behind."""

import select
import shlex
import sys
from types import SimpleNamespace

import pytest

from penstock.cli import check, check_process
from penstock.cli.findings import Done, Finding, StageToMeasure, Step, encode
from penstock.config import ArtifactOptions


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Have the process of a check be a script for a shell, in which `tell` writes what it reports."""

    def play(script):
        program = tmp_path / "python"
        # Its arguments are -P -m MODULE NAME DESCRIPTOR PATIENCE LIFELINE ARTIFACT.
        program.write_text(f'#!/bin/sh\ntell() {{ printf "%s\\n" "$1" >/proc/self/fd/"$fd"; }}\nfd=$5\n{script}\n')
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return play


def told(*reports):
    return "\n".join(f"tell {shlex.quote(encode(report).decode().rstrip())}" for report in reports)


def told_at_once(*reports):
    """All in one write, and so in one read."""
    lines = b"".join(map(encode, reports)).decode().rstrip()
    return f"tell {shlex.quote(lines)}"


def rehearsed(patience):
    return check._rehearse("model:service", patience, ArtifactOptions(), [])


def test_a_process_that_says_nothing_in_time_is_a_finding(process):
    process("sleep 1000")
    assert rehearsed(0.3) == [Finding("import", "not finished within 0.3 s; set a longer --timeout")]


def test_a_step_that_takes_too_long_is_the_one_that_was_told_last_and_its_processes_are_ended(process, monkeypatch):
    """A process that were left would fail it: `no_child_left_behind` looks."""

    class Poll:
        """Waits for what is told, and not for what is not."""

        def __init__(self):
            self._poll, self._left = select.poll(), 1
            self.register = self._poll.register

        def poll(self, _limit):
            self._left -= 1
            return self._poll.poll(20_000) if self._left >= 0 else []

    monkeypatch.setattr(check_process, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    reports = told_at_once(Step("import"), Finding("a", note="b"), Step("setup and warm-up"))
    process(f"sleep 1000 &\n{reports}\nwait")
    problem = "not finished within 7 s; set a longer --timeout"
    assert rehearsed(7.0) == [Finding("a", note="b"), Finding("setup and warm-up", problem)]


@pytest.mark.parametrize(("patience", "milliseconds"), [(20.0, 20_000), (float("inf"), 2**31 - 1)])
def test_each_report_may_take_the_whole_patience(process, monkeypatch, patience, milliseconds):
    polled = []
    poll = select.poll

    class Poll:
        def __init__(self):
            self._poll = poll()
            self.register, self.unregister = self._poll.register, self._poll.unregister

        def poll(self, limit):
            polled.append(limit)
            return self._poll.poll(limit)

    monkeypatch.setattr(check_process, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    monkeypatch.setattr(check_process, "time", SimpleNamespace(monotonic=lambda: 1.0))
    process(told(Step("import"), Finding("a", note="b"), Done()))
    assert rehearsed(patience) == [Finding("a", note="b")]
    assert set(polled) == {milliseconds}


@pytest.mark.parametrize(("end", "how"), [("exit 0", "exit status 0"), ("kill -11 $$", "signal SIGSEGV")])
def test_a_process_that_ends_within_a_step_is_a_finding_of_that_step(process, end, how):
    process(told(Step("import"), Finding("a", note="b"), Step("teardown")) + f"\n{end}")
    assert rehearsed(20.0) == [Finding("a", note="b"), Finding("teardown", f"the check's process ended: {how}")]


def measured(*stages, patience):
    return check._measure("model:service", patience, ArtifactOptions(), stages, [], lambda _: None)


def test_what_a_measured_stage_prints_is_shown_where_its_process_ends_and_only_the_end_of_it(process, capfd):
    many = "for line in $(seq 20000); do echo line $line >&2; done"
    process(f"echo out; {many}\n{told(Step('setup'))}\nexit 3")
    (finding,) = measured(StageToMeasure("a"), patience=20.0)
    lines = "\n".join(f"line {number}" for number in range(19991, 20001))
    assert finding == Finding("setup", f"the check's process ended: exit status 3\n\nIts last output:\n{lines}")
    assert capfd.readouterr() == ("", "")


def test_a_measured_stage_that_prints_without_end_does_not_get_more_time_by_it(process):
    process("while :; do echo y >&2; done")
    (finding,) = measured(StageToMeasure("a"), patience=0.3)
    slow = "not finished within 0.3 s; set a longer --timeout"
    assert finding.problem.startswith(f"{slow}\n\nIts last output:\ny\n")


def test_an_end_after_everything_was_looked_at_is_that_of_the_process(process):
    process(told(Step("import"), Done()) + "\nexit 4")
    assert rehearsed(20.0) == [Finding("the end of the process", "the check's process ended: exit status 4")]
