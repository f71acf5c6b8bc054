"""How a service may be named on the command line, and what a name that leads nowhere is told."""

import json
import sys

import pytest
from served import Program, Server, serving
from spoken import spoken

SERVICE = """
import penstock as ps
from beside import ANSWER

class M(ps.Stage):
    examples = [1]

    def predict(self, x: int) -> str:
        return ANSWER + __name__

def make() -> ps.Service:
    return ps.Service(M, name="made")

def needs(x):
    return x

def nothing():
    return None

async def later():
    return None

def ends():
    raise SystemExit("no")

def breaks():
    return 1 // 0

LIMIT = 3
described = ps.stage(M)

class Plain: ...

service = the_same = ps.Service(M)
"""
STAGES = """
from __future__ import annotations
import penstock as ps

class First(ps.Stage): ...

class Second(ps.Stage): ...

def build() -> ps.Service:
    return ps.Service(First, Second)
"""


@pytest.fixture
def folder(tmp_path):
    """`dir/good.py`, which imports its neighbour, and `good.py` in the folder itself."""
    (tmp_path / "dir").mkdir()
    for there in (tmp_path, tmp_path / "dir"):
        (there / "good.py").write_text(SERVICE)
        (there / "beside.py").write_text(f"ANSWER = '{there.name} '\n")
    return tmp_path


def says(output, words):
    assert words in " ".join(output.split()), output
    assert "Traceback" not in output


@pytest.mark.parametrize(("target", "answer"), [("dir/good.py:make", "dir good"), ("good", "{} good")])
def test_a_service_of_a_file_and_one_of_a_module_are_served_by_workers_that_find_them(folder, target, answer):
    server = Server(folder, target, "--port", "0", "--workers", "2")
    try:
        server.ready()
        answers = {server.http.post("/predict", json=1).json() for _ in range(4)}
        assert answers == {answer.format(folder.name)}
        assert len(server.workers()) == 2
        server.hang_up()
        server.stop()
    finally:
        server.hang_up()
        server.destroy()


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("good.py:service", "."),
        ("good.py", "."),
        ("./dir/good.py:service", "dir"),
        ("dir/good.py:make", "dir"),
        ("good:make", "."),
        ("good", "."),
    ],
)
def test_a_file_a_factory_and_a_lone_module_are_found_and_what_is_beside_them(folder, target, place):
    for there in (folder, folder / "dir"):
        (there / "beside.py").write_text("ANSWER = 'here'\nprint('beside is', __file__)\n")
    status, output, _ = spoken(folder, "check", target)
    assert status == 0, output
    assert f"beside is {folder / place / 'beside.py'}\n" in output


def test_a_file_in_a_package_is_imported_as_a_part_of_it(folder):
    package = folder / "dir"
    (package / "__init__.py").touch()
    (package / "good.py").write_text(SERVICE.replace("from beside", "from .beside"))
    status, output, _ = spoken(folder, "check", "dir/good.py:service")
    assert status == 0, output


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("none.py:service", "there is no file 'none.py' in "),
        ("dir/good:service", "for a file, write dir/good.py:service"),
        ("good:needs", "good:needs is a function that takes arguments, not a service; to serve it write `service = "),
        ("good:needs", "`service = penstock.Service(needs)`, and name good:service (good is "),
        ("good.service", "there is no module 'good.service' in "),
        ("good.service", "; the service is named after a colon: good:service"),
        ("good.py.service", "; the service is named after a colon: good.py:service"),
        ("good.nothing_there", "or on the Python path"),
        ("good:described", "good:described is a stage, not a service: write `service = penstock.Service(described)`"),
        ("good:LIMIT", "good:LIMIT is of the type int, not a penstock.Service, nor a function that makes one"),
        ("good:Plain", "good:Plain is a class, not a service; a stage is a subclass of `penstock.Stage`"),
        ("good:servce", "; it has good:service, good:make (good is "),
        ("stages", "stages has no service: write `service = penstock.Service(First, Second)` in it, or name the "),
        ("stages", "that makes one, stages:build (stages is "),
        ("good:nothing", "good:nothing() returned NoneType, not a penstock.Service: is its `return` missing?"),
        ("good:later", "good:later is async: write `def`"),
        ("good:ends", "good:ends() exits the program with 'no' while it makes the service"),
        ("good:M", "good:M is a stage, not a service: write `service = penstock.Service(M)`"),
        ("beside", "beside has no service: write `service = penstock.Service(...)` in it"),
        ("good:servce", "good has no 'servce'; it has good:service"),
        ("types:service", "types has no 'service' (types is "),
        ("types.py:service", "types.py was named, but Python imports the module 'types' from "),
        ("sys:service", "sys has no 'service' (sys is Python itself)"),
        ("not-a-name.py:service", "'not-a-name' is not a valid module name; rename it"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_name_that_leads_elsewhere_is_told_where(folder, command, target, words):
    (folder / "stages.py").write_text(STAGES)
    for name in ("types", "not-a-name"):
        (folder / f"{name}.py").write_text(SERVICE)
    found = spoken(folder, command, target)
    assert found.status == 1
    says(found.refusal, words)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("types.py:service", "types.py was named, but Python imports the module 'types' from "),
        ("pydantic.py:service", "which shadows the library of that name: rename the file"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_file_with_the_name_of_a_library_is_told_what_it_hides(folder, command, target, words):
    for name in ("types", "pydantic"):
        (folder / f"{name}.py").write_text(SERVICE)
    # As the installed `penstock`: with -m alone Python itself would take `types` from the current folder.
    program = Program(folder, sys.executable, "-P", "-m", "penstock.cli.main", command, target)
    try:
        assert program.wait(40) == 1, program.output
    finally:
        program.destroy()
    says(program.output, words)


def test_the_command_alone_shows_its_help_and_exits_2(folder):
    found = spoken(folder)
    assert found.status == 2
    assert "serve services over HTTP" in found.refusal


def test_two_files_of_one_name_are_not_taken_for_each_other(folder):
    found = spoken(folder, "serve", "good.py:service", "dir/good.py:make", "--port", "0")
    assert found.status == 1
    says(found.refusal, "dir/good.py was named, but Python imports the module 'good' from ")


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("source", "target", "end"),
    [
        ("import nothing_there\n", "broken:service", "ModuleNotFoundError: No module named 'nothing_there'"),
        ("x +* 2\n", "broken.py:service", "SyntaxError: invalid syntax"),
        (SERVICE, "broken:breaks", "ZeroDivisionError: integer division or modulo by zero"),
    ],
    ids=["a missing dependency", "a syntax error", "a factory that fails"],
)
def test_an_error_of_the_module_shows_the_frames_of_the_user_alone(folder, command, source, target, end):
    (folder / "broken.py").write_text(source)
    status, out, error = spoken(folder, command, target)
    assert (status, out) == (1, "")
    frames = [line for line in error.splitlines() if line.startswith('  File "')]
    assert len(frames) == 1
    line = 1 + SERVICE.split("\n").index("    return 1 // 0") if source is SERVICE else 1
    assert frames[0].startswith(f'  File "{folder / "broken.py"}", line {line}')
    assert error.splitlines()[-1] == end


def test_an_error_of_the_module_is_one_object_under_json(folder):
    (folder / "broken.py").write_text("import nothing_there\n")
    status, out, error = spoken(folder, "serve", "broken", "--log-format", "json")
    assert (status, out) == (1, "")
    line = json.loads(error)
    assert line["error"] == "ModuleNotFoundError"
    assert 'broken.py", line 1' in line["traceback"]
    assert "importlib" not in error


@pytest.mark.parametrize(
    ("workers", "status", "words"),
    [
        ("0", 2, "--workers (or PENSTOCK_WORKERS) must be at least 1, got '0'"),
        ("many", 2, "--workers (or PENSTOCK_WORKERS) must be a number, as in 2, or numbers by stage, as in"),
        ("N=2", 1, "workers: unknown stage 'N'; the stages are M"),
    ],
)
@pytest.mark.parametrize("given", ["flag", "variable"])
def test_a_number_of_workers_that_cannot_be_is_a_sentence(folder, given, workers, status, words):
    by_flag = given == "flag"
    arguments = ("--workers", workers) if by_flag else ()
    found = spoken(folder, "serve", "good", *arguments, env={} if by_flag else {"PENSTOCK_WORKERS": workers})
    assert found.status == status
    says(found.refusal, words)


def test_a_variable_sets_the_workers_and_a_flag_wins(tmp_path):
    with serving(tmp_path, "--workers", "Obey=2", services=("service",), env={"PENSTOCK_WORKERS": "3"}) as server:
        assert len(server.workers()) == 2
