"""The sampler: what it changes, what it leaves alone, and which tests it takes for those that can notice."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from changes import Place, Reach, changed, is_program, places
from copies import PACKAGE, Copy, Learned
from sample import Change, can_notice, draw, find

ROOT = Path(penstock.__file__).parent
PROGRAM = Path(__file__).with_name("sample.py")


def changes_of(source: str) -> set[str]:
    """Every program that one change makes of `source`."""
    text = source.encode()
    return {changed(text, place, replacement).decode() for place in places(text) for replacement in place.replacements}


def only_place(source: str) -> Place:
    (place,) = places(source.encode())
    return place


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a <= b", {"x = a < b", "x = a > b"}),
        ("x = a > b", {"x = a >= b", "x = a <= b"}),
        ("x = a >= b", {"x = a > b", "x = a < b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a != b", {"x = a == b"}),
        ("x = a is b", {"x = a is not b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a in b", {"x = a not in b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = (a) == (b)", {"x = (a) != (b)"}),
        ("x = a and b and c", {"x = a or b and c", "x = a and b or c"}),
        ("x = a or b", {"x = a and b"}),
        ("x = not a", {"x = a"}),
        ("x = not(a)", {"x = (a)"}),
        ("x = a + b", {"x = a - b"}),
        ("x = a - b * c", {"x = a + b * c", "x = a - b // c"}),
        ("x = a // b", {"x = a * b"}),
        ("x = a & b", {"x = a | b"}),
        ("x += y", {"x -= y"}),
        ("x |= y", {"x &= y"}),
        ("x = 7", {"x = 8", "x = 6"}),
        ("x = 0.5", {"x = 1.5", "x = -0.5"}),
        ("x = True", {"x = False"}),
        ("x = 'é' + 'b'", {"x = 'xé' + 'b'", "x = 'é' + 'xb'"}),
        ("x = rb'''a'''", {"x = rb'''xa'''"}),
        ("x = ''", {"x = 'x'"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = max(a, b)", {"x = min(a, b)"}),
        ("if a: x = b", {"if not (a): x = b"}),
        ("while a: x = b", {"while not (a): x = b"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if not (c)]"}),
        ("def f(): return x", {"def f(): return None"}),
        ("def f(x=1): return", {"def f(x=2): return", "def f(x=0): return"}),
        ("def f(*, x=True): return", {"def f(*, x=False): return"}),
        ("f()", {"pass"}),
        ("async def f(): await g()", {"async def f(): pass"}),
        ("a.b = c", {"pass"}),
        ("a[b] = c", {"pass"}),
        ("a.b: int = c", {"pass"}),
        ("a.b += c", {"pass", "a.b -= c"}),
        ("del a[b]", {"pass"}),
        ("raise x", {"pass"}),
    ],
)
def test_a_place_offers_these_changes(source, expected):
    assert changes_of(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""',
        'class A:\n    """Text."""\n    x: int\n    """Text."""',
        'def f():\n    """Text."""',
        "def f(x: Literal[1] | None, y: 'int') -> Literal['a']: ...",
        "x: Literal[1] = y",
        "x: TypeAlias = a | b",
        "x = a | None",
        "x = cast('A | B', y)",
        "x = TypeVar('x')",
        "if TYPE_CHECKING:\n    x = 1\n    f()",
        "if typing.TYPE_CHECKING:\n    x = 1",
        "import a\nfrom b import c",
        "__slots__ = ('a', 'b')",
        "__all__ = ['a']",
        "@dataclass(slots=True)\nclass A(B, frozen=True): ...",
        "@cache(1)\ndef f(): ...",
        "assert a < 1, 'text'",
        "x = f'text {a + 1}'",
        "x = y = z",
        "def f(): return None",
        "while ...: break",
    ],
)
def test_these_are_left_alone(source):
    assert changes_of(source) == set()


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("raise A('text', b'text')", {"pass"}),
        ("raise A('text', 1) from b", {"pass", "raise A('text', 2) from b", "raise A('text', 0) from b"}),
        ("log.error('text', 'text')", {"pass"}),
        ("self._log.warning('text')", {"pass"}),
        ("x.error('text')", {"pass", "x.error('xtext')"}),
    ],
)
def test_the_text_of_a_message_is_left_alone(source, texts):
    assert changes_of(source) == texts


def test_the_other_branch_of_a_condition_for_type_checkers_is_code():
    assert changes_of("if TYPE_CHECKING:\n    x = 1\nelse:\n    x = True") == {
        "if TYPE_CHECKING:\n    x = 1\nelse:\n    x = False"
    }


def test_what_a_change_takes_away_leaves_empty_lines():
    source = "def f():\n    g(\n        a,\n    )  # why\n    return h(\n        a\n    )\n"
    assert changes_of(source) == {
        "def f():\n    pass\n\n  # why\n    return h(\n        a\n    )\n",
        "def f():\n    g(\n        a,\n    )  # why\n    return None\n\n\n",
    }


def test_an_operator_is_found_behind_parentheses_and_comments():
    assert changes_of("x = ((a  # < b\n) <\n(b))") == {
        "x = ((a  # < b\n) <=\n(b))",
        "x = ((a  # < b\n) >=\n(b))",
    }


def test_columns_are_right_behind_letters_of_several_bytes():
    assert changes_of("é = ü + é < ß") == {"é = ü - é < ß", "é = ü + é <= ß", "é = ü + é >= ß"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("core/*.py")), ids=lambda path: path.name)
def test_changes_of_the_package_are_all_programs_all_different_and_keep_the_lines(path):
    source = path.read_bytes()
    programs = {ast.dump(ast.parse(source))}
    for place in places(source):
        replacement = place.replacements[-1]
        new = changed(source, place, replacement)
        assert new.count(b"\n") == source.count(b"\n")
        assert is_program(new)
        program = ast.dump(ast.parse(new))
        assert program not in programs, (place, replacement)
        programs.add(program)


def test_what_would_only_warn_is_no_program():
    assert is_program(b"x = a == 1")
    assert not is_program(b"x = a is 1")
    assert not is_program(b"x = (")


@pytest.mark.parametrize(
    ("source", "reach"),
    [
        ("def f():\n    x = (\n        a <\n        b\n    )\n", Reach(2, 5, at_import=False)),
        ("def f():\n    if (\n        a\n    ):\n        x = y\n", Reach(2, 4, at_import=False)),
        ("def f():\n    if a < b: x = y\n", Reach(2, 2, at_import=False)),
        ("@a\ndef f(\n    x=True,\n):\n    x = y\n", Reach(1, 4, at_import=True)),
        ("class A:\n    x = True\n", Reach(2, 2, at_import=True)),
        ("def f():\n    def g(x=True): ...\n", Reach(2, 2, at_import=False)),
        ("match a:\n    case b if c < d:\n        x = y\n", Reach(2, 2, at_import=True)),
        ("match a < b:\n    case c:\n        x = y\n", Reach(1, 1, at_import=True)),
    ],
)
def test_a_place_is_reached_through_the_lines_of_its_statement_but_not_of_those_within(source, reach):
    assert only_place(source).reach == reach


LEARNED = Learned({}, {Path("a.py"): {1: {""}, 2: {"one", "two"}, 3: {"two", "three"}, 5: {"", "one"}}})


@pytest.mark.parametrize(
    ("reach", "tests"),
    [
        (Reach(2, 3, at_import=False), {"one", "two", "three"}),
        (Reach(3, 4, at_import=False), {"two", "three"}),
        (Reach(4, 4, at_import=False), set()),
        (Reach(4, 5, at_import=False), None),
        (Reach(1, 1, at_import=True), None),
        (Reach(3, 3, at_import=True), None),
        (Reach(4, 4, at_import=True), set()),
    ],
)
def test_those_can_notice_that_execute_a_line_and_all_what_every_import_executes(reach, tests):
    place = Place("constant", 0, 1, reach.first, (b"1",), reach)
    assert can_notice(Change(Path("a.py"), place, b"1"), LEARNED) == tests
    assert can_notice(Change(Path("b.py"), place, b"1"), LEARNED) == set()


@pytest.fixture
def package(tmp_path):
    """Two files with forty places in a folder."""
    (tmp_path / "sub").mkdir()
    for name in ("a.py", "sub/b.py"):
        (tmp_path / name).write_text("x = True\n" * 20)
    return tmp_path


def test_a_place_is_drawn_once_and_the_same_for_a_seed(package):
    found = find(package, ["*.py", "**/*.py"])
    assert len(found) == 40
    assert draw(package, found, count=10, seed=1) == draw(package, found, count=10, seed=1)
    assert draw(package, found, count=10, seed=1) != draw(package, found, count=10, seed=2)
    everything = draw(package, found, count=100, seed=1)
    assert sorted((c.file, c.place.start) for c in everything) == [(file, place.start) for file, place in found]


def test_each_place_is_as_likely_as_any_other(package):
    found = find(package, ["**/*.py"])
    times = dict.fromkeys(((file, place.start) for file, place in found), 0)
    for seed in range(400):
        for change in draw(package, found, count=4, seed=seed):
            times[change.file, change.place.start] += 1
    assert min(times.values()) >= 20  # 40 expected, with a standard deviation of 6
    assert max(times.values()) <= 60


def test_a_changed_file_is_as_before_afterwards_and_its_bytecode_is_forgotten(tmp_path):
    path = tmp_path / PACKAGE / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    os.utime(path, ns=(10**18, 10**18))
    subprocess.run([sys.executable, "-m", "compileall", "-q", path.parent], check=True)
    with Copy(tmp_path).changed(Path("a.py"), b"x = 2\n"):
        assert path.read_text() == "x = 2\n"
        assert not list(path.parent.rglob("*.pyc"))
    assert path.read_text() == "x = 1\n"
    assert path.stat().st_mtime_ns == 10**18


TOY = """\
import os

LIMIT = 3
seen = []

def small(number):
    return number < LIMIT

def never_called(number):
    return not number

def never_looked_at(number):
    seen.append(number)

def end(now):
    if now:
        os._exit(0)
"""
TOY_TESTS = """\
import os

import penstock

def test_what_a_test_leaves_need_not_be_copied(tmp_path):
    os.mkfifo(tmp_path / "pipe")

def test_small():
    assert penstock.small(2)
    assert not penstock.small(3)

def test_calls():
    penstock.never_looked_at(1)
    penstock.end(False)
"""


@pytest.fixture
def toy(tmp_path):
    """A tree whose unit tests leave some changes unnoticed."""
    tree = tmp_path / "tree"
    for name, text in {
        "src/penstock/__init__.py": TOY,
        "tests/unit/test_toy.py": TOY_TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "setup.py": "",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


def take_sample(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "--tree", tree, *arguments, "__init__.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_sample_tells_what_the_tests_do_not_notice_and_leaves_the_tree_alone(toy, tmp_path):
    before = {path: path.read_bytes() for path in toy.rglob("*.*")}
    done = take_sample(toy, "--jobs", "2", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_bytes())
    assert found["finished"]
    small = "tests/unit/test_toy.py::test_small"
    seen = {(result["line"], result["kind"]): (result["noticed_by"], result["tests"]) for result in found["results"]}
    assert seen == {
        (3, "constant"): (small, seen[3, "constant"][1]),  # all tests, in the order of what they took
        (7, "return"): (small, 1),
        (7, "comparison"): (small, 1),
        (10, "return"): (None, 0),
        (10, "not"): (None, 0),
        (13, "statement"): (None, 1),
        (16, "condition"): ("the process ends with status 0", 0),
        (17, "statement"): (None, 0),
        (17, "constant"): (None, 0),
    }
    assert "unnoticed: __init__.py:10  return not number  ->  return number" in done.stdout
    assert {path: path.read_bytes() for path in toy.rglob("*.*")} == before


def test_a_tree_whose_tests_fail_is_an_error(toy):
    (toy / "tests/unit/test_toy.py").write_text("def test_fails():\n    assert False\n")
    done = take_sample(toy)
    assert done.returncode == 1
    assert "the unchanged tree fails: tests/unit/test_toy.py::test_fails" in done.stdout
