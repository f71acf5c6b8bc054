"""No test asks how fast the machine is.

A test asks that where it holds the time between two readings of a clock to an upper bound, unless only a hang takes as
long as the bound.  A number of calls, a process id or the order of events mostly proves the same without a clock; a
tight bound stands in a test that only a night runs.
"""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEAST_SECONDS = 20.0
EXCEPTIONS: dict[str, str] = {}
"""Functions that hold a clock to a shorter bound, by file and name, and why each may."""

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time"}
READS_A_CLOCK = re.compile(rf"\b({'|'.join(CLOCKS)})\(")
OWNERS = {"time", "loop", "get_running_loop", "get_event_loop"}
LENIENT = {"night", "soak"}
ANY_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A module's comparisons with a clock.  It knows what names hold, of which the attributes are any object's.

    A moment is known by what was added to a reading of a clock, infinity where that is no number; a span is the
    difference of two moments, or anything that was made of one.
    """

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.constants: dict[str, float] = {}
        self.moments: dict[str, float] = {}
        self.spans: set[str] = set()
        for statement in self.tree.body:
            match statement:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                    if (found := self.number(value)) is not None:
                        self.constants[name] = found

    def refused(self) -> Iterator[tuple[str, int]]:
        """The functions that ask how fast the machine is, each with the line."""
        functions = list(self.functions(self.tree))
        for _ in range(2):  # what a function answers may be called above it
            for _, function in functions:
                self.learn(function)
        for name, function in functions:
            self.learn(function)
            loops = {node.test for node in ast.walk(function) if isinstance(node, ast.While)}
            ends = {part for test in loops for part in ast.walk(test)}  # a loop that ends by the clock fails nothing
            for node in ast.walk(function):
                if isinstance(node, ast.Compare) and node not in ends and self.is_tight(node):
                    yield name, node.lineno

    def functions(self, part: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ANY_FUNCTION]]:
        """The functions of a module or a class, but for those that no day runs."""
        if any(
            isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0]) and is_lenient(node.value)
            for node in part.body
        ):
            return
        for node in part.body:
            if not isinstance(node, ANY_FUNCTION | ast.ClassDef) or any(map(is_lenient, node.decorator_list)):
                continue
            if isinstance(node, ast.ClassDef):
                yield from ((f"{node.name}.{name}", function) for name, function in self.functions(node))
            else:
                yield node.name, node

    def learn(self, function: ANY_FUNCTION) -> None:
        """Take in what its names hold; those of another function are forgotten, but for attributes and answers."""
        self.moments = {name: added for name, added in self.moments.items() if name.startswith(".")}
        self.spans = {name for name in self.spans if name.startswith(".")}
        for _ in range(2):  # what is appended to in an inner function may be read above it
            for node in ast.walk(function):
                match node:
                    case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                        self.hold(target, value)
                    case ast.AugAssign(target, _, value) | ast.NamedExpr(target, value):
                        self.hold(target, value)
                    case ast.For(target, value) | ast.comprehension(target, value):
                        self.hold(target, value)
                    case ast.Call(ast.Attribute(target, "append"), [value]):
                        self.hold(target, value)
                    case ast.FunctionDef() | ast.AsyncFunctionDef():
                        answers = (each.value for each in ast.walk(node) if isinstance(each, ast.Return))
                        if any(answer is not None and self.has_span(answer) for answer in answers):
                            self.spans |= {"." + node.name, node.name}

    def hold(self, target: ast.expr, value: ast.expr) -> None:
        """Take in that `target` holds `value` from now on."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, part in zip(target.elts, value.elts, strict=False):
                self.hold(each, part)
        elif (name := named(target)) and (added := self.moment(value)) is not None:
            self.moments[name] = added
        elif name and self.has_span(value):
            self.spans.add(name)

    def number(self, node: ast.expr) -> float | None:
        """What a number, a constant of the module or an arithmetic of them is; None of anything else."""
        match node:
            case ast.Constant(int() | float() as value):
                return float(value)
            case ast.Name(name):
                return self.constants.get(name)
            case ast.UnaryOp(ast.USub(), operand):
                found = self.number(operand)
                return None if found is None else -found
            case ast.BinOp(left, operator, right):
                a, b = self.number(left), self.number(right)
                if a is None or b is None:
                    return None
                match operator:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.Div():
                        return a / b
        return None

    def moment(self, node: ast.expr) -> float | None:
        """What is added to a clock's reading here; None where this is no moment."""
        match node:
            case ast.Call(ast.Name(name)) if name in CLOCKS - {"time"}:
                return 0.0
            case ast.Call(ast.Attribute(owner, name)) if name in CLOCKS:
                inner = owner.func if isinstance(owner, ast.Call) else owner
                return 0.0 if (named(inner) or "").lstrip(".") in OWNERS else None
            case ast.Name() | ast.Attribute():
                return self.moments.get(named(node) or "")
            case ast.BinOp(left, ast.Add() | ast.Sub() as operator, right):
                if isinstance(operator, ast.Add) and self.moment(left) is None:
                    left, right = right, left
                start, added = self.moment(left), self.number(right)
                if start is None or self.moment(right) is not None:
                    return None
                if added is None:
                    return math.inf
                return start + added if isinstance(operator, ast.Add) else start - added
        return None

    def has_span(self, node: ast.expr) -> bool:
        """Whether anything in it is a span; what a comparison says is none."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            if self.moment(node.left) is not None and self.moment(node.right) is not None:
                return True
        elif isinstance(node, ast.Compare | ast.Lambda):
            return False
        if named(node) in self.spans:
            return True
        return any(self.has_span(part) for part in ast.iter_child_nodes(node))

    def is_tight(self, node: ast.Compare) -> bool:
        """Whether it holds a span to a short bound, or a moment to soon after another."""
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            match operator, right:
                case ast.Eq(), ast.Call(ast.Attribute(_, "approx"), [expected, *_]):
                    small, large = left, expected
                case ((ast.Lt() | ast.LtE()), _):
                    small, large = left, right
                case ((ast.Gt() | ast.GtE()), _):
                    small, large = right, left
                case _:
                    continue
            bound, after, before = self.number(large), self.moment(large), self.moment(small)
            if bound is not None and bound < LEAST_SECONDS and self.has_span(small):
                return True
            if after is not None and before is not None and 0 < after - before < LEAST_SECONDS:
                return True
        return False


def named(node: ast.AST) -> str | None:
    """The name of a variable, or a dot and that of an attribute."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(_, name):
            return "." + name
    return None


def is_lenient(node: ast.expr) -> bool:
    """Whether a mark says that no day runs what has it."""
    return any(isinstance(part, ast.Attribute) and part.attr in LENIENT for part in ast.walk(node))


def test_no_test_holds_a_clock_to_a_bound_that_a_busy_machine_breaks():
    found: dict[str, int] = {}
    for path in sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/test_*.py")]):
        source = path.read_text()
        if READS_A_CLOCK.search(source):  # a fraction of all files, and what is looked at costs
            found |= {f"{path.relative_to(ROOT)}::{name}": line for name, line in Module(source).refused()}
    assert {name: line for name, line in found.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() - found.keys() == set(), "exceptions that nothing needs any longer"


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 1.5",
        "began = loop.time()\ntook = loop.time() - began\nassert 0.3 <= took / 2 <= MOST",
        "until = time.monotonic() + 2\nassert time.monotonic() < until",
        "a = time.perf_counter()\ntimes.append(time.perf_counter() - a)\nassert 2 * 4 > max(times)",
        "began = time.monotonic()\nassert abs(time.monotonic() - began - 3) < 0.1",
        "began = time.monotonic()\nassert time.monotonic() - began == pytest.approx(0.3, abs=0.1)",
        "async def ask():\n    a = time.time()\n    self.slowest = time.time() - a\nassert self.slowest < MOST",
        "def took():\n    a = time.time()\n    return time.time() - a\nassert min(took(), took()) < 1",
    ],
)
def test_a_short_bound_is_found(body):
    assert [name for name, _ in Module(in_test(body)).refused()] == ["test_it"]


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 20\nassert time.monotonic() - began >= 0.3",
        "began = time.monotonic()\nassert time.monotonic() - began < tight(1.0)",
        "end = time.monotonic() + 2\nwhile time.monotonic() < end:\n    pass",
        "first = time.monotonic()\nsecond = time.monotonic()\nassert first < second",
        "clock = Clock()\nbegan = clock.now()\nassert clock.now() - began < 1",
    ],
)
def test_what_no_machine_breaks_is_left_alone(body):
    assert list(Module(in_test(body)).refused()) == []


@pytest.mark.parametrize("mark", ["@pytest.mark.night\n", "pytestmark = [pytest.mark.soak]\n\n"])
def test_what_no_day_runs_may_have_a_short_bound(mark):
    body = "began = time.monotonic()\nassert time.monotonic() - began < 1.5"
    assert list(Module(in_test(body, mark)).refused()) == []


def in_test(body: str, before: str = "") -> str:
    """A module with a test of this `body`, and with something before it."""
    return f"MOST = 2 * 3\n{before}def test_it():\n{textwrap.indent(body, '    ')}\n"
