"""No test asks how fast the machine is.

A test asks that where it holds the time between two readings of a clock to an upper bound, unless only a hang takes as
long as the bound.  A number of calls, a process id or the order of events mostly proves the same without a clock; a
tight bound stands in a test that only a night runs.

A bound is seen as a number, as a constant of the module or of another of ours, and as a parameter in a table; a clock
also in the text of a program.  Not seen are a bound that a call or a fixture gives or that a helper takes as an
argument, and a program with places to fill in.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEAST_SECONDS = 20.0
CLOCK = re.compile(r"(\w+\.)*(((monotonic|perf_counter|process_time|thread_time)(_ns)?|(time|loop(\(\))?)\.time)\(\))")
OF_TIMES = {"abs", "max", "mean", "median", "min", "round", "sorted", "sum"}
"""Functions whose answer is a time where an argument is one."""
BY_NIGHT = re.compile(r"(pytest\.|pytestmark = .*)mark\.(night|soak)\b.*", re.DOTALL)
MODULES = {path.stem: path for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py")]}


class Module:
    """A module, and what its names hold in whatever function: `numbers`, and `times`, which are made of readings.

    The number of a time is what was added to a reading.
    """

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.numbers: dict[str, float] = {}
        self.times: set[str] = set()
        for node in self.tree.body:
            match node:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                    self.numbers[name] = self.number(value)
                case ast.ImportFrom(str(module), names):
                    theirs = constants(module)
                    self.numbers |= {each.asname or each.name: theirs.get(each.name, math.inf) for each in names}

    def number(self, node: ast.expr) -> float:
        """What an arithmetic of numbers and names is, where each reading is 0; infinity of anything else."""
        text = re.sub(r"\w+\.(?=[A-Za-z_])", "", CLOCK.sub("0", ast.unparse(node)))
        try:
            return float(eval(text, {"__builtins__": {}, "approx": lambda expected, **_: expected}, self.numbers))
        except Exception:
            return math.inf

    def tight(self) -> Iterator[str]:
        """The comparisons that ask how fast the machine is."""
        for node in [*ast.walk(self.tree)] * 2:  # what a function answers may be called above it
            self.learn(node)
        for node in by_day(self.tree):
            if isinstance(node, ast.Compare) and self.is_tight(node):
                yield ast.unparse(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CLOCK.search(node.value):
                with contextlib.suppress(SyntaxError):
                    yield from Module(textwrap.dedent(node.value)).tight()

    def learn(self, node: ast.AST) -> None:
        """Take in what names hold after it."""
        match node:
            case ast.Call(ast.Name("each") | ast.Attribute(_, "parametrize"), [names, ast.List(rows)]):
                for row in rows:
                    cells = row.args if isinstance(row, ast.Call) else getattr(row, "elts", [row])
                    for name, value in zip(re.findall(r"\w+", ast.unparse(names)), cells, strict=False):
                        self.numbers[name] = min(self.number(value), self.numbers.get(name, math.inf))
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                if any(self.is_time(part.value) for part in ast.walk(node) if isinstance(part, ast.Return)):
                    self.times.add(name)
            case (
                ast.Assign([target], value)
                | ast.AnnAssign(target, _, ast.expr() as value)
                | ast.NamedExpr(target, value)
                | ast.For(target, value)
                | ast.comprehension(target, value)
                | ast.Call(ast.Attribute(target, "append"), [value])
            ) if self.is_time(value):
                held = {name_of(part) for part in getattr(target, "elts", [target])}
                self.times |= held
                self.numbers |= dict.fromkeys(held, self.number(value))

    def is_time(self, node: ast.AST | None) -> bool:
        """Whether anything in it is one; what a comparison says is none, nor what most calls answer."""
        if node is None or isinstance(node, ast.Compare | ast.Lambda):
            return False
        if name_of(node) in self.times:
            return True
        if isinstance(node, ast.Call) and name_of(node) not in OF_TIMES:
            return CLOCK.fullmatch(ast.unparse(node)) is not None
        return any(map(self.is_time, ast.iter_child_nodes(node)))

    def is_tight(self, node: ast.Compare) -> bool:
        """Whether it holds a time to a bound, or to soon after another one."""
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            small, large = (right, left) if isinstance(operator, ast.Gt | ast.GtE) else (left, right)
            bounds = isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq) and self.is_time(small)
            if bounds and 0 < self.number(large) < LEAST_SECONDS:
                return True
        return False


@cache
def constants(module: str) -> dict[str, float]:
    """The numbers of a module of ours, by name."""
    path = MODULES.get(module, ROOT / "src" / f"{module.replace('.', '/')}.py")
    return Module(path.read_text()).numbers if path.exists() else {}


def by_day(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in it but what no day runs, and the test of a loop, which ends by the clock and fails nothing."""
    parts = list(ast.iter_child_nodes(node))
    if not any(BY_NIGHT.match(ast.unparse(part)) for part in parts if isinstance(part, ast.Assign | ast.Attribute)):
        yield node
        for part in parts:
            if not isinstance(node, ast.While) or part is not node.test:
                yield from by_day(part)


def name_of(node: ast.AST) -> str | None:
    """The last name of a variable, of an attribute, of what is called, or of what something is taken from."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name) | ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name
        case ast.Subscript(inner):
            return name_of(inner)
    return None


def test_no_test_holds_a_clock_to_a_bound_that_a_busy_machine_breaks():
    found = []
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/test_*.py")]:
        source = path.read_text()
        if CLOCK.search(source) and path != Path(__file__):
            found += [f"{path.relative_to(ROOT)}: {text}" for text in Module(source).tight()]
    assert not found, "\n".join(["offenders:", *found])


AGO = "began = time.monotonic(); assert time.monotonic() - began < "


@pytest.mark.parametrize(
    "body",
    [
        AGO + "1.5",
        AGO + "MOST + 1",
        f"from night import HANG_SECONDS\n{AGO}HANG_SECONDS - 1",
        "began = loop.time()\ntook = loop.time() - began\nassert 0.3 <= took / 2 <= MOST",
        "until = time.monotonic() + 2\nassert time.monotonic() < until",
        "a = time.perf_counter()\ntimes.append(time.perf_counter() - a)\nassert 2 * 4 > max(times)",
        "began = time.monotonic()\nassert abs(time.monotonic() - began - 3) < 0.1",
        "began = time.monotonic()\nassert time.monotonic() - began == pytest.approx(0.3, abs=0.1)",
        "async def ask():\n    a = time.time()\n    self.slowest = time.time() - a\nassert self.slowest < MOST",
        "def took():\n    a = time.time()\n    return time.time() - a\nassert min(took(), took()) < 1",
        f'@pytest.mark.parametrize("most", [60, pytest.param(3, id="fast")])\ndef test(most):\n    {AGO}most',
        f'@each(("a", "most"), [(1, 60), (2, 3)])\ndef test(a, most):\n    {AGO}most',
        f"run('''\n    {AGO}2\n''')",
    ],
)
def test_a_short_bound_is_found(body):
    assert len(list(in_module(body).tight())) == 1


@pytest.mark.parametrize(
    "body",
    [
        f"{AGO}20\nassert time.monotonic() - began >= 0.3",
        AGO + "tight(1.0)",
        "end = time.monotonic() + 2\nwhile time.monotonic() < end:\n    pass",
        "first = time.monotonic()\nsecond = time.monotonic()\nassert first < second",
        "clock = Clock()\nbegan = clock.now()\nassert clock.now() - began < 1",
        f"@pytest.mark.night\ndef test():\n    {AGO}1",
        f"class Test:\n    pytestmark = [pytest.mark.soak]\n    {AGO}1",
    ],
)
def test_what_no_machine_breaks_or_no_day_runs_is_left_alone(body):
    assert list(in_module(body).tight()) == []


def in_module(body):
    return Module(f"MOST = 2 * 3\n{body}")
