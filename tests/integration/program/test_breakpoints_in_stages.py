"""`breakpoint()` in a stage: an error that says what to do, and no debugger without anybody to type."""

from __future__ import annotations

import pytest
from served import run, write_module

STOPPING = """
import penstock as ps

class Model(ps.Stage):
    examples = [1.0]

    def predict(self, x: float) -> float:
        if x == CHOSEN:
            breakpoint()
        return x

service = ps.Service(Model)
"""
WORDS = "breakpoint() is not supported here"


def source(chosen):
    return STOPPING.replace("CHOSEN", chosen)


@pytest.mark.parametrize("options", [(), ("--reload",)], ids=["worker", "inline below --reload"])
def test_a_breakpoint_fails_its_item_with_words_that_help(serve, options):
    text = source("2.0")
    server = serve(*options, source=text.replace("(Model)", "(Model, inline=True)") if options else text)
    assert server.wire().post("/predict", 2.0).answer().status == 500
    server.wait_for("RuntimeError: breakpoint.. is not supported here")
    assert "(Pdb)" not in server.output
    assert server.wire().post("/predict", 3.0).answer().json() == 3.0


def test_a_breakpoint_can_be_switched_off_as_python_has_it(serve):
    server = serve(source=source("2.0"), env={"PYTHONBREAKPOINT": "0"})
    assert server.wire().post("/predict", 2.0).answer().json() == 2.0


def test_a_check_says_so_too(tmp_path):
    write_module(tmp_path, source("1.0"))
    status, output = run(tmp_path, "check", "model:service", env={"COLUMNS": "400"})
    assert status == 1
    assert WORDS in output
    assert "(Pdb)" not in output
