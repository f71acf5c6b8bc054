"""The lines between a check and the process that does it."""

from __future__ import annotations

import pytest

from penstock.cli.findings import (
    BatchRan,
    Done,
    Finding,
    Memory,
    NothingToCheck,
    StageToMeasure,
    Step,
    decode,
    encode,
)


@pytest.mark.parametrize(
    "report",
    [
        Step("setup and warm-up"),
        Finding("a\nb", problem="[red]\x1b\n\n\u2028é"),
        Finding("examples", note="none", skipped=True),
        NothingToCheck(sentence="there is no module"),
        NothingToCheck(traceback="Traceback\n  File"),
        StageToMeasure("é", max_size=4, batched=True, variables=[b"A=\xff\n"], cores=[1]),
        BatchRan(4, None, 0, Memory(1), Memory(2**40, on_device=True)),
        Done(),
    ],
    ids=repr,
)
def test_a_report_is_one_line_and_comes_back_as_it_was(report):
    line = encode(report)
    assert line.index(b"\n") == len(line) - 1
    assert decode(line[:-1]) == report


def test_what_utf_8_cannot_carry_is_escaped():
    assert decode(encode(Finding("x", problem="\udcff"))) == Finding("x", problem="\\udcff")
