"""How a service may be named on the command line, and what a name that leads nowhere is told."""

import sys

import pytest
from served import Program, Server, run, serving

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


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("good.py:service", "{} good"),
        ("good.py", "{} good"),
        ("./dir/good.py:service", "dir good"),
        ("dir/good.py:make", "dir good"),
        ("good:make", "{} good"),
        ("good", "{} good"),
    ],
)
def test_a_file_a_factory_and_a_lone_module_are_served_by_workers_that_find_them(folder, target, answer):
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


@pytest.mark.parametrize("target", ["dir/good.py:service", "good:make", "good"])
def test_what_can_be_served_can_be_checked(folder, target):
    status, output = run(folder, "check", target)
    assert status == 0, output


def test_a_file_in_a_package_is_imported_as_a_part_of_it(folder):
    package = folder / "dir"
    (package / "__init__.py").touch()
    (package / "good.py").write_text(SERVICE.replace("from beside", "from .beside"))
    status, output = run(folder, "check", "dir/good.py:service")
    assert status == 0, output


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("none.py:service", "there is no file 'none.py' in "),
        ("dir/good:service", "for a file, write dir/good.py:service"),
        ("good:needs", "good:needs is a function that takes arguments, not a service; to serve it write `service = "),
        ("good:needs", "`service = penstock.Service(needs)`, and name good:service (good is "),
        ("good.service", "there is no module 'good.service' in "),
        ("good.service", "; a colon comes before the service: good:service"),
        ("good.py.service", "; a colon comes before the service: good.py:service"),
        ("good.nothing_there", "or on the Python path"),
        ("good:described", "good:described is a stage, not a service: write `service = penstock.Service(described)`"),
        ("good:LIMIT", "good:LIMIT is of the type int, not a penstock.Service, and no function that makes one"),
        ("good:Plain", "good:Plain is a class, not a service; a stage is a class below `penstock.Stage`"),
        ("good:servce", "; it has good:service, good:make (good is "),
        ("stages", "stages has no service: write `service = penstock.Service(First, Second)` in it, or name the "),
        ("stages", "that makes one, stages:build (stages is "),
        ("good:nothing", "good:nothing() returned NoneType, not a penstock.Service: is its `return` missing?"),
        ("good:later", "good:later is async: write `def`"),
        ("good:ends", "good:ends() ends the program with 'no' while it makes the service"),
        ("good:M", "good:M is a stage, not a service: write `service = penstock.Service(M)`"),
        ("beside", "beside has no service: write `service = penstock.Service(...)` in it"),
        ("good:servce", "good has no 'servce'; it has good:service"),
        ("types:service", "types has no 'service' (types is "),
        ("types.py:service", "types.py was named, but Python finds the module 'types' in "),
        ("sys:service", "sys has no 'service' (sys is Python itself)"),
        ("pydantic.py:service", "which hides the library of that name: rename the file"),
        ("not-a-name.py:service", "'not-a-name' is no name of a module; rename it"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_name_that_leads_elsewhere_is_told_where(folder, command, target, words):
    (folder / "stages.py").write_text(STAGES)
    for name in ("types", "pydantic", "not-a-name"):
        (folder / f"{name}.py").write_text(SERVICE)
    # As the installed `penstock`: with -m alone Python itself would take `types` from the current folder.
    program = Program(folder, sys.executable, "-P", "-m", "penstock.cli.main", command, target)
    try:
        assert program.wait(40) == 1, program.output
    finally:
        program.destroy()
    says(program.output, words)


def test_the_package_itself_is_the_command(folder):
    program = Program(folder, sys.executable, "-m", "penstock", "check", "good:service")
    try:
        assert program.wait(40) == 0, program.output
    finally:
        program.destroy()


def test_the_command_alone_shows_its_help_and_exits_2(folder):
    status, output = run(folder)
    assert status == 2
    assert "serve services over HTTP" in output


def test_two_files_of_one_name_are_not_taken_for_each_other(folder):
    status, output = run(folder, "serve", "good.py:service", "dir/good.py:make", "--port", "0")
    assert status == 1
    says(output, "dir/good.py was named, but Python finds the module 'good' in ")


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
    status, output = run(folder, command, target)
    assert status == 1
    frames = [line for line in output.splitlines() if line.startswith('  File "')]
    assert len(frames) == 1
    assert str(folder / "broken.py") in frames[0]
    assert output.splitlines()[-1] == end


def test_an_error_of_the_module_is_one_object_under_json(folder):
    (folder / "broken.py").write_text("import nothing_there\n")
    status, output = run(folder, "serve", "broken", "--log-format", "json")
    assert status == 1
    (line,) = output.splitlines()
    assert '"error":"ModuleNotFoundError"' in line
    assert "importlib" not in line


@pytest.mark.parametrize(
    ("workers", "status", "words"),
    [
        ("0", 2, "workers must be at least 1, got '0'"),
        ("many", 2, "workers takes a number, as in 2, or numbers by stage, as in embed=4,rank=1; got 'many'"),
        ("N=2", 1, "workers: there is no stage 'N'; there are M"),
    ],
)
@pytest.mark.parametrize("given", ["flag", "variable"])
def test_a_number_of_workers_that_cannot_be_is_a_sentence(folder, given, workers, status, words):
    by_flag = given == "flag"
    arguments = ("--workers", workers) if by_flag else ()
    found, output = run(folder, "serve", "good", *arguments, env={} if by_flag else {"PENSTOCK_WORKERS": workers})
    assert found == status
    says(output, words)


def test_a_variable_sets_the_workers_and_a_flag_wins(tmp_path):
    with serving(tmp_path, "--workers", "Obey=2", services=("service",), env={"PENSTOCK_WORKERS": "3"}) as server:
        assert len(server.workers()) == 2
