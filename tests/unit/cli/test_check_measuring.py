"""A check that measures one stage after the other, whatever becomes of their processes, which are played here."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest

from penstock.cli import check
from penstock.cli.findings import BatchRan, Done, Finding, Memory, NothingToCheck, SetupTook, StageToMeasure, Step
from penstock.config import ArtifactOptions
from terminals import Terminal

RAN = BatchRan(1, 0.5, 3, Memory(0), Memory(2**22))
GAVE_NONE = "not measured: the stage before it gave no results"


class Played:
    """A process that reports what its stage's part says: reports, an exception to raise, or what is done meanwhile."""

    parts = {}
    started = {}
    """The order and the environment of each stage's process."""

    def __init__(self, _name, _patience, _artifact, order, environment):
        self.started[order.stage] = (order, environment)
        self._order = order
        self._exit = "exit status 0"

    def reports(self):
        for each in self.parts.get(self._order.stage, [Done()]):
            if isinstance(each, Exception):
                raise each
            if isinstance(each, str):
                self._exit = each
            elif callable(each):
                each(self._order)
            else:
                yield each

    def end(self):
        return self._exit

    def printed(self):
        return ""


@pytest.fixture
def measure(monkeypatch):
    """Measures stages whose processes play their parts: the findings, what was measured, and what was shown."""
    monkeypatch.setattr(Played, "started", {})
    monkeypatch.setattr(check, "CheckProcess", Played)

    def call(*stages, **parts):
        monkeypatch.setattr(Played, "parts", parts)
        figures, shown = [], []
        findings = check._measure("model:service", 7.0, ArtifactOptions(), stages, figures, shown.append)
        return findings, figures, shown

    return call


def test_stages_that_hang_end_or_cannot_be_imported_are_wrong_and_the_others_are_measured(measure):
    findings, figures, shown = measure(
        *map(StageToMeasure, "abcde"),
        a=[Step("measuring stage a: batch of 1"), TimeoutError()],
        b=["signal SIGKILL"],
        c=[NothingToCheck(traceback="Traceback ...")],
        d=[Step("measuring stage d: batch of 1"), SetupTook(Memory(2**30)), RAN, Done()],
        e=[Done(), "exit status 5"],
    )
    killed = "signal SIGKILL; the kernel also ends a process this way if there is too little memory"
    assert findings == [
        Finding("measuring stage a: batch of 1", "not finished within 7 s; set a longer --timeout"),
        Finding("measuring stage b", f"the check's process ended: {killed}"),
        Finding("measuring stage c", "Traceback ..."),
        Finding("measuring stage e: the end of the process", "the check's process ended: exit status 5"),
    ]
    assert [(each.stage, each.ran, each.finished) for each in figures] == [
        ("a", [], False),
        ("b", [], False),
        ("c", [], False),
        ("d", [RAN], True),
        ("e", [], False),
    ]
    assert shown == ["measuring stage a: batch of 1", "measuring stage d: batch of 1"]


def test_a_stage_gets_what_the_one_before_has_written_down_before_its_end(measure):
    read = []
    findings, _, _ = measure(
        StageToMeasure("a", feeds=True),
        StageToMeasure("b", fed=True),
        a=[lambda order: os.write(order.results, b"items"), "signal SIGSEGV"],
        b=[lambda order: read.append(os.pread(order.inputs, 100, 0)), Done()],
    )
    assert read == [b"items"]
    assert [each.what for each in findings] == ["measuring stage a"]


def test_a_stage_is_skipped_where_the_one_before_has_given_nothing(measure):
    stages = StageToMeasure("a", feeds=True), StageToMeasure("b", fed=True, feeds=True), StageToMeasure("c", fed=True)
    findings, figures, _ = measure(*stages)
    assert findings == [Finding(f"measuring stage {stage}", note=GAVE_NONE, skipped=True) for stage in "bc"]
    assert [each.stage for each in figures] == ["a"]


def test_a_stage_is_measured_where_there_is_no_folder_for_its_results(measure, monkeypatch):
    def refuse():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(check.tempfile, "TemporaryFile", refuse)
    findings, figures, _ = measure(StageToMeasure("a", feeds=True), StageToMeasure("b", fed=True), a=[RAN, Done()])
    words = "cannot store its results for the next stage: [Errno 2] No usable temporary directory found; "
    assert findings == [
        Finding("measuring stage a", note=f"{words}set TMPDIR to a directory with free space", warning=True),
        Finding("measuring stage b", note=GAVE_NONE, skipped=True),
    ]
    assert [each.ran for each in figures] == [[RAN]]


def test_the_process_of_a_stage_has_the_environment_of_its_first_worker(measure, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    measure(StageToMeasure("a", variables=[b"A=b=c", b"B=\xff", b"OPENBLAS_NUM_THREADS=3"], threads=2))
    _, environment = Played.started["a"]
    wanted = {"A": "b=c", "B": "\udcff", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}
    assert {name: environment[name] for name in wanted} == wanted


def test_a_terminal_shows_what_is_measured_once_and_has_nothing_in_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with check._progress_shown() as show:
        for words in ("stage a: batch of 1", "stage a: batch of 1", "stage a: batch of 2, and more"):
            show(words)
    line = "\r\x1b[2K"
    assert terminal.getvalue() == f"{line}stage a: batch of 1{line}stage a: batch o...{line}"


def test_what_is_no_terminal_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with check._progress_shown() as show:
        show("stage a: batch of 1")
    assert file.getvalue() == ""
