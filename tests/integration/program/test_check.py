"""What a service may do to the process that checks it, and `penstock check` still says what is so."""

from __future__ import annotations

import re
import signal
import subprocess
from functools import partial

import pytest
from served import PENSTOCK, START_LIMIT, Program, run
from spoken import spoken

from penstock.cli import rehearsal
from penstock.runtime.gpus import gpus_here

TEMPLATE = """
import ctypes
import os
import subprocess
import sys
import time

import penstock as ps

{at_import}

class Model(ps.Stage):
    examples = [1.0]

    def setup(self) -> None:
        {in_setup}

    def predict(self, x: float) -> float:
        {in_predict}
        return x

    def teardown(self) -> None:
        {in_teardown}

service = ps.Service(Model, name="model")
"""


def source(at_import="", in_setup="pass", in_predict="pass", in_teardown="pass"):
    return TEMPLATE.format(at_import=at_import, in_setup=in_setup, in_predict=in_predict, in_teardown=in_teardown)


def checked(folder, *arguments):
    """What the command says, which has the service in a process of its own."""
    status, output = run(folder, "check", "model:service", *arguments, env={"COLUMNS": "400"})
    assert "Traceback" not in output
    return status, " ".join(output.split())


def found(folder, **variables):
    """What is found of the service, rehearsed in this process; each step is the same."""
    status, output, error = spoken(folder, "check", "model:service", env={"COLUMNS": "1000", **variables})
    assert "Traceback" not in output + error
    return status, " ".join(output.split())


@pytest.mark.parametrize(
    ("what", "step", "how"),
    [
        ({"at_import": "os._exit(0)"}, "import", "exit status 0"),
        pytest.param({"in_setup": "os._exit(0)"}, "setup and warm-up", "exit status 0", marks=pytest.mark.night),
        pytest.param({"in_predict": "os._exit(3)"}, "setup and warm-up", "exit status 3", marks=pytest.mark.night),
        ({"in_predict": "os.kill(os.getpid(), 11)"}, "setup and warm-up", "signal SIGSEGV"),
        ({"in_teardown": "os._exit(0)"}, "teardown", "exit status 0"),
        ({"at_import": "import atexit\natexit.register(os._exit, 4)"}, "the end of the process", "exit status 4"),
    ],
    ids=["import", "setup", "predict", "crash", "teardown", "end"],
)
def test_a_process_that_ends_is_a_finding(module, what, step, how):
    status, output = checked(module(source(**what)))
    assert status == 1
    assert re.search(rf"failed\W+{step}\W+the check's process ended: {how}", output)
    assert "1 failed" in output


def test_an_example_that_ends_the_process_is_named(module):
    counted = source(at_import="calls = []", in_predict="calls.append(x); len(calls) > 1 and os._exit(3)")
    status, output = checked(module(counted))
    assert status == 1
    assert "setup and warm-up │ every stage is ready" in output
    assert re.search(r"failed\W+examples\[0\] as JSON, answered in \w+\W+the check's process ended", output)


@pytest.mark.night
@pytest.mark.parametrize(
    ("what", "step"),
    [
        ({"at_import": "time.sleep(1000)"}, "import"),
        ({"in_setup": "time.sleep(1000)"}, "setup and warm-up"),
        ({"in_teardown": "time.sleep(1000)"}, "teardown"),
        # Holds the interpreter's lock: no thread of that process could tell.
        ({"in_setup": "ctypes.PyDLL(None).sleep(1000)"}, "setup and warm-up"),
    ],
    ids=["import", "setup", "teardown", "lock"],
)
def test_a_step_that_hangs_is_a_finding_and_leaves_nothing_behind(module, what, step):
    status, output = checked(module(source(**what)), "--timeout", "2")
    assert status == 1
    assert re.search(rf"failed\W+{step}\W+it did not finish within 2 s", output)


def test_processes_that_the_service_started_do_not_outlive_the_check(module):
    """`run` looks for survivors."""
    sleeper = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])"
    assert checked(module(source(in_setup=sleeper, in_predict="os._exit(0)")))[0] == 1
    assert checked(module(source(in_setup=f"self.p = {sleeper}; self.p.returncode = 0")))[0] == 0


LIKE_SIGTERM = [pytest.param(number, marks=pytest.mark.night) for number in (signal.SIGHUP, signal.SIGQUIT)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, *LIKE_SIGTERM])
def test_a_check_that_a_signal_ends_leaves_nothing_behind(module, number):
    """Neither its process, which hangs, nor what that has started."""
    hangs = "subprocess.Popen(['sleep', '1000']); print('hangs now', flush=True); time.sleep(1000)"
    program = Program(module(source(in_setup=hangs)), *PENSTOCK, "check", "model:service")
    try:
        program.wait_for("hangs now")
        program.signal(number)
        assert program.wait() == (130 if number == signal.SIGINT else -number)
    finally:
        program.destroy()


@pytest.mark.parametrize("code", ["0", "'no licence'"])
@pytest.mark.parametrize("command", [("check", "model:service"), ("serve", "model:service", "--port", "0")])
def test_a_module_that_ends_the_program_is_a_sentence_and_exit_1(module, command, code):
    said = spoken(module(source(at_import=f"sys.exit({code})")), *command)
    assert said.status == 1
    assert "penstock: module 'model' exits the program" in said.refusal
    assert code.strip("'") in said.refusal


@pytest.mark.smoke
def test_a_module_that_does_not_import_is_shown_by_the_process_of_the_check(module):
    folder = module("import penstock\nimport nothing_of_that_name\n")
    asked = [*PENSTOCK, "check", "model:service"]
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, timeout=START_LIMIT, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert 'model.py", line 2' in done.stderr
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in done.stderr


@pytest.mark.parametrize(
    "text",
    ["[/red]", "[bold]x", "a \\[b", "[link=x]", "\udcff", "\x1b[2J"],
    ids=["end of a style", "style", "escaped", "link", "surrogate", "control"],
)
def test_what_an_error_says_is_shown_and_does_nothing_to_the_terminal(module, text):
    status, output, _ = spoken(module(source(in_setup=f"raise OSError({text!r})")), "check", "model:service")
    assert status == 1
    shown = text.encode("utf-8", "backslashreplace").decode().replace("\x1b", "\\x1b")
    assert f"OSError: {shown} " in output
    assert "1 failed, 1 ok" in output


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0", "--timeout must be more than 0 seconds, got 0"),
        ("-1", "--timeout must be more than 0 seconds, got -1"),
        ("nan", "--timeout must be more than 0 seconds, got nan"),
        ("soon", "--timeout: expected seconds, got 'soon'"),
    ],
)
def test_a_patience_that_is_none_is_a_sentence_and_exit_2(module, given, words):
    said = spoken(module(source()), "check", "model:service", "--timeout", given)
    assert said.status == 2
    assert f"penstock: {words}" in said.refusal


@pytest.mark.smoke
def test_a_patience_may_be_infinite(module):
    status, output = checked(module(source()), "--timeout", "inf")
    assert status == 0
    assert "0 failed, " in output


def test_findings_that_cannot_be_written_are_a_sentence_and_exit_1(module):
    program = Program(module(source()), "sh", "-c", 'exec "$@" >/dev/full', "sh", *PENSTOCK, "check", "model:service")
    try:
        assert program.wait() == 1
    finally:
        program.destroy()
    assert program.output.startswith("penstock: cannot write the results (0 failed, ")
    assert "Traceback" not in program.output


def test_what_was_skipped_does_not_count_as_well(module):
    status, output = found(module(source().replace("examples = [1.0]", "")))
    assert status == 0
    assert "0 failed, 2 ok, 1 skipped" in output


def test_a_method_whose_name_is_near_to_that_of_a_hook_is_a_warning(module):
    status, output = found(module(source().replace("def teardown", "def preprocessing")))
    assert status == 0
    assert "warning │ stage Model │ 'preprocessing' is not used: if it is meant to be 'preprocess', rename it" in output
    assert ", 1 with a warning" in output


@pytest.mark.parametrize(
    ("arguments", "inherited", "shared"),
    [
        ("gpus=[0, 0]", None, "workers 0, 1 share CUDA_VISIBLE_DEVICES=0: "),
        ("gpus=[1, 1]", "3,5", "workers 0, 1 share CUDA_VISIBLE_DEVICES=5: "),
        ("workers=2", "3", "workers 0, 1 share CUDA_VISIBLE_DEVICES=3: "),
        ("workers=3, env={'CUDA_VISIBLE_DEVICES': '1,2'}", None, "workers 0, 1, 2 share CUDA_VISIBLE_DEVICES=1,2: "),
        ("gpus=[0, 1]", "3,4", None),
        ("workers=2", None, None),
        ("workers=2", "", None),
        ("workers=2, env={'CUDA_VISIBLE_DEVICES': ''}", "3", None),
        ("gpus=[0, 0], max_in_flight_batches=1", None, None),
    ],
)
def test_workers_of_one_stage_that_share_a_gpu_are_a_warning(module, monkeypatch, arguments, inherited, shared):
    text = source().replace("ps.Service(Model,", f"ps.Service(ps.stage(Model, {arguments}),")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    status, output = found(module(text), **({} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}))
    assert status == 0, output
    assert "0 failed" in output
    if shared is None:
        assert "share CUDA_VISIBLE_DEVICES" not in output
    else:
        assert f"warning │ stage Model │ {shared}their batches compete for one device" in output
        assert ", 1 with a warning" in output


def test_gpus_that_workers_will_not_see_are_a_warning_or_wrong(module, monkeypatch, tmp_path):
    folder = module(source().replace("ps.Service(Model,", "ps.Service(ps.stage(Model, gpus=[0, 1]),"))
    (tmp_path / "gpus" / "0000:3b:00.0").mkdir(parents=True)
    monkeypatch.setattr(rehearsal, "gpus_here", partial(gpus_here, folder=tmp_path / "gpus"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    status, output = found(folder)
    wanted = "warning │ stage Model │ gpus= names GPU 1 (counted from 0), but"
    assert (status, wanted in output) == (0, True), output
    status, output = found(folder, CUDA_VISIBLE_DEVICES="-1")
    wanted = "warning │ stage Model │ gpus= is set, but this process was started with CUDA_VISIBLE_DEVICES='-1'"
    assert (status, wanted in output) == (0, True), output
    status, output = found(folder, CUDA_VISIBLE_DEVICES="3")
    wanted = "failed │ stage Model │ stage 'Model': gpus= names GPU 1 (counted from 0), but this process sees 1"
    assert (status, wanted in output) == (1, True), output


def test_threads_of_one_process_share_its_gpus_without_a_warning(module):
    text = source().replace("ps.Service(Model,", "ps.Service(ps.stage(Model, gpus=[0, 0]), inline=True,")
    status, output = found(module(text))
    assert (status, "share CUDA_VISIBLE_DEVICES" in output) == (0, False)


PAIR = """
import penstock as ps

class Words(ps.Stage):
    examples = ["a b"]

    def predict(self, text: str) -> {given}:
        return {value}

class Count(ps.Stage):
    examples = [{example}]

    def predict(self, words: list[str]) -> int:
        return len(words)

service = ps.Service(Words, Count, name="{name}")
"""


def pair(given="list[str]", value="text.split()", example='["a"]', name="model"):
    return PAIR.format(given=given, value=value, example=example, name=name)


def test_two_stages_that_fit_are_well(module):
    status, output = found(module(pair()))
    assert status == 0
    assert "with a warning" not in output


def test_a_stage_that_cannot_take_what_the_one_before_returns_is_a_warning(module):
    output = found(module(pair(given="str")))[1]
    assert "warning │ stage Count │ it expects `list[str]`, but the stage before returns `str`: " in output


def test_an_example_that_does_not_fit_is_told_also_where_the_stage_then_fails(module):
    words = "warning │ setup and warm-up │ stage 'Count': examples[0] does not fit `list[str]`: expected `array`, got "
    status, output = found(module(pair(example='"ab"')))
    assert status == 0
    assert f"{words}`str`" in output
    status, output, _ = spoken(module(pair(example="3")), "check", "model:service", env={"COLUMNS": "400"})
    assert status == 1
    assert f"{words}`int`" in " ".join(output.split())
    assert "object of type 'int' has no len()" in output


def test_a_fault_in_a_check_of_the_items_type_is_a_finding(module):
    checks = "import pydantic\nclass P(pydantic.BaseModel):\n    x: int\n    def model_post_init(self, _): {}[self.x]\n"
    text = source(at_import=checks, in_predict="x = 1.0").replace("[1.0]", '[{"x": 1}]').replace("x: float)", "x: P)")
    status, output, _ = spoken(module(text), "check", "model:service", env={"COLUMNS": "1000"})
    assert status == 1
    output = " ".join(output.split())
    words = r"examples\[0\] as JSON │ a check of its type raised builtins.KeyError at \S+model.py:\d+: 1 "
    assert re.search(words, output)


ANSWERED = """
import itertools
import penstock as ps

numbers = itertools.count()

class Next(ps.Stage):
    examples = [ps.Example(5, {first})]

    def predict(self, x: int) -> int:
        return next(numbers)

service = ps.Service(Next, name="next")
"""


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (
            1,
            "failed │ setup and warm-up │ worker 0 of stage 'Next' failed on its examples: examples[0]: expected 1, ",
        ),
        (0, "failed │ examples[0] and its answer │ expected 0, got "),
    ],
    ids=["at once", "later"],
)
def test_an_answer_that_is_not_the_one_of_its_example_is_a_finding(module, first, words):
    status, output = found(module(ANSWERED.format(first=first)))
    assert status == 1
    assert words in output


def test_an_answer_that_is_the_one_of_its_example_is_well(module):
    right = ANSWERED.format(first=10).replace("next(numbers)", "2 * x")
    status, output = found(module(right))
    assert status == 0
    assert "ok │ examples[0] and its answer │ as expected" in output


UNSENT = """
import threading
import penstock as ps

class Half:
    def __init__(self):
        self.whole = True

    def __eq__(self, other):
        return self.whole == other.whole

    def __getstate__(self):
        return {"half": True}

class Locked(ps.Stage):
    examples = [ps.Example(threading.Lock(), 1)]

    def predict(self, lock) -> int:
        return 1

class Lost(ps.Stage):
    examples = [ps.Example(1, Half())]

    def predict(self, x: int):
        return Half()

locked, lost = ps.Service(Locked, name="locked"), ps.Service(Lost, name="lost")
"""


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ("locked", "failed │ examples[0] in process │ cannot be sent: `lock` cannot be pickled: cannot pickle"),
        ("lost", "failed │ examples[0] and its answer │ cannot compare the response: builtins.AttributeError at "),
    ],
)
def test_an_example_whose_objects_cannot_be_pickled_or_compared_is_a_finding(module, service, words):
    status, output, _ = spoken(module(UNSENT), "check", f"model:{service}", env={"COLUMNS": "400"})
    assert status == 1
    assert words in " ".join(output.split())


def test_a_name_that_cannot_be_served_is_a_finding(module):
    status, output = found(module(pair(name="docs")))
    assert status == 1
    assert "failed │ service docs │ a service cannot be named 'docs': the server itself uses the path /docs" in output


LIMITED = """
import penstock as ps

class Model(ps.Stage):
    examples = [1.0, 2.0, 3.0]

    def predict(self, x: float) -> float:
        return x

service = ps.Service(Model, name="model", tenants_file="tenants.toml", min_free_memory=10**15, admission="deadline")
"""


def test_a_service_that_would_refuse_its_examples_under_load_is_well(module):
    folder = module(LIMITED)
    (folder / "tenants.toml").write_text('[tenants."*"]\nrate = 0.01\nmax_queued = 1')
    status, output = found(folder)
    assert status == 0, output
    assert "examples[2] as JSON" in output


def test_a_wrong_file_of_tenants_is_a_finding(module):
    folder = module(LIMITED)
    (folder / "tenants.toml").write_text("[tenants.gold]\nrate = 0")
    status, output = found(folder)
    assert status == 1
    assert "failed │ service model │ tenants_file 'tenants.toml': tenants.gold.rate must be a number" in output


BETWEEN = """
import penstock as ps

class First(ps.Stage):
    examples = [1.0]

    def predict(self, x: float) -> float:
        return x

class Last(ps.Stage):
    examples = [2.0]

    def predict(self, x: {last}) -> float:
        return {returned}

square = ps.remote("square", item=float, result=float, examples=[3.0])
service = ps.Service(First, square, Last, name="mixed")
"""


def test_a_stage_whose_workers_attach_from_outside_is_named_and_the_others_are_run(module):
    status, output = found(module(BETWEEN.format(last="float", returned="x")))
    assert status == 0, output
    assert "skipped │ stage square │ not run: its workers are remote" in output
    assert output.count("every stage is ready") == 2
    assert output.count("ok │ examples[0] in process │ answered") == 2
    assert "0 failed" in output
    assert "1 skipped" in output


@pytest.mark.parametrize(
    ("last", "returned", "words"),
    [
        ("float", "str(x)", "expected `float`, got `str`"),
        ("complex", "x.real", "failed │ stage Last │ `complex` cannot be the input type of a service"),
        ("str", "1.0", "warning │ stage Last │ it expects `str`, but the stage before returns `float`"),
    ],
)
def test_what_is_wrong_behind_an_external_stage_is_a_finding(module, last, returned, words):
    status, output = found(module(BETWEEN.format(last=last, returned=returned)))
    assert status == 1
    assert words in output


def test_a_service_of_external_stages_alone_is_well_and_was_not_run(module):
    text = "import penstock as ps\nservice = ps.Service(ps.remote('square', examples=[1]), name='square')"
    status, output = found(module(text))
    assert status == 0, output
    assert "skipped │ stage square │ not run: its workers are remote" in output
    assert "0 failed, 1 ok, 1 skipped" in output
