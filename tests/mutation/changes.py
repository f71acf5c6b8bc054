"""Find every place of a source file where one small change can be made, and make one.

Contract
--------
* A change replaces one segment of the text.  Every line keeps its number, and the rest of the file its bytes.
* These are never changed: docstrings, annotations, imports, `assert`, f-strings, decorators, `__slots__`, `__all__`,
  what is under `if TYPE_CHECKING`, and the text of a message that is raised or logged.
* Two places never give the same program: a condition that is one comparison, for example, is negated at its operator
  and not once more as a whole.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    # How it is written; the limit moved by one; the opposite.
    ast.Lt: ("<", "<=", ">="),
    ast.LtE: ("<=", "<", ">"),
    ast.Gt: (">", ">=", "<="),
    ast.GtE: (">=", ">", "<"),
    # How it is written; the opposite.
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
EXTREMES = {"min": "max", "max": "min"}

TYPING_CALLS = {"TypeVar", "ParamSpec", "NewType"}
LOGGERS = {"log", "logger", "logging"}
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
DECLARATIONS = {"__slots__", "__all__", "__match_args__"}

OPENING_QUOTE = re.compile(rb"[A-Za-z]*(?:\"\"\"|'''|\"|')")


@dataclass(frozen=True, slots=True)
class Reach:
    """Which lines lead to a place: a test that executes none of them cannot notice a change there."""

    first: int
    last: int
    at_import: bool
    """The place is in no function: whoever imports the file executes it, and what it sets is seen by every test."""


@dataclass(frozen=True, slots=True)
class Place:
    """A segment of a file, in bytes, and what may stand there instead."""

    kind: str
    start: int
    end: int
    line: int
    replacements: tuple[bytes, ...]
    reach: Reach


def places(source: bytes) -> list[Place]:
    """Every place of `source`, in order; SyntaxError if it is no Python."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda place: (place.start, place.end, place.kind))


def changed(source: bytes, place: Place, replacement: bytes) -> bytes:
    """The source with `replacement` at `place`."""
    return source[: place.start] + replacement + source[place.end :]


def is_program(source: bytes) -> bool:
    """Whether Python compiles it without a word: the tests turn warnings into errors, which would tell nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(source, "<changed>", "exec", dont_inherit=True)
        except (SyntaxError, SyntaxWarning, ValueError):
            return False
    return True


class _Finder(ast.NodeVisitor):
    """Walks the tree and notes the places."""

    def __init__(self, source: bytes) -> None:
        self.found: list[Place] = []
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._offsets = [0, *accumulate(map(len, self._lines))]
        self._tokens = list(self._read_tokens())
        self._functions = 0
        self._reach = Reach(1, 1, at_import=True)
        self._message = False

    # -- where things stand -------------------------------------------------------------------------------------

    def _read_tokens(self) -> Iterator[tuple[int, int, str]]:
        """Operators and words, with where each begins and ends."""
        for token in tokenize.tokenize(io.BytesIO(self._source).readline):
            if token.type in {tokenize.OP, tokenize.NAME}:
                # Columns of tokens are characters, those of nodes are bytes.
                row = token.start[0] - 1
                start = self._offsets[row] + len(token.line[: token.start[1]].encode())
                yield start, start + len(token.string.encode()), token.string

    def _segment(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offsets[node.lineno - 1] + node.col_offset
        return start, self._offsets[node.end_lineno - 1] + node.end_col_offset

    def _words(self, start: int, end: int, text: str) -> tuple[int, int] | None:
        """Where the words of `text` stand between two offsets, parentheses and comments left out of account."""
        words = text.split()
        first = bisect_left(self._tokens, (start,))
        last = bisect_left(self._tokens, (end,))
        for index in range(first, last - len(words) + 1):
            run = self._tokens[index : index + len(words)]
            if [token[2] for token in run] == words:
                return run[0][0], run[-1][1]
        return None

    def _note(self, kind: str, segment: tuple[int, int] | None, *replacements: str | bytes) -> None:
        """A place at `segment`; lines that the replacement lacks are left empty, so that numbers stay."""
        if segment is None:
            return
        start, end = segment
        height = self._source.count(b"\n", start, end)
        texts = [text.encode() if isinstance(text, str) else text for text in replacements]
        padded = tuple(text + b"\n" * (height - text.count(b"\n")) for text in texts)
        line = self._source.count(b"\n", 0, start) + 1
        self.found.append(Place(kind, start, end, line, padded, self._reach))

    # -- statements ---------------------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        """Visit a node; a place in it is reached through the lines of the innermost statement."""
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            super().visit(node)
            return
        before = self._reach
        first, last = _header(node)
        self._reach = Reach(first, last, at_import=not self._functions)
        super().visit(node)
        self._reach = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._functions += 1
        for statement in node.body:
            self.visit(statement)
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if not _is_typing(node.test, {"TYPE_CHECKING"}):
            self._condition(node.test)
            self.generic_visit(node)
            return
        for statement in node.orelse:
            self.visit(statement)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # a docstring, of an attribute too, or an ellipsis
            return
        if isinstance(node.value, ast.Call | ast.Await):
            self._note("statement", self._segment(node), "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(map(_is_declaration, node.targets)):
            return
        self._stored(node, node.targets)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None or _is_typing(node.annotation, {"TypeAlias"}) or _is_declaration(node.target):
            return
        self._stored(node, [node.target])
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._stored(node, [node.target])
        if type(node.op) in ARITHMETIC and not _is_sequence(node.value):
            old, new = ARITHMETIC[type(node.op)]
            gap = self._segment(node.target)[1], self._segment(node.value)[0]
            self._note("operator", self._words(*gap, old + "="), new + "=")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._stored(node, node.targets)
        self.generic_visit(node)

    def _stored(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        """A statement that changes an object can be left out; without one that sets a variable nothing would run."""
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._note("statement", self._segment(node), "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self._note("statement", self._segment(node), "pass")
        with self._in_message():
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if not (isinstance(node.value, ast.Constant) and node.value.value in {None, True, False}):
            self._note("return", self._segment(node.value), "None")
        self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave it: it is for our own mistakes, and most are there for the type checker."""

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Leave it."""

    visit_ImportFrom = visit_Import

    # -- expressions --------------------------------------------------------------------------------------------

    def visit_arg(self, node: ast.arg) -> None:
        """Leave it: it is a name and an annotation."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave it: nearly all are messages, and Python 3.11 does not say where things in it stand."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not _is_typing(node.value, {"Literal"}):
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        """Negate a condition, unless a place within it does the same."""
        if isinstance(test, ast.Constant) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            return
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return
        start, end = self._segment(test)
        self._note("condition", (start, end), b"not (" + self._source[start:end] + b")")

    def visit_Call(self, node: ast.Call) -> None:
        if _is_typing(node.func, TYPING_CALLS):
            return
        if isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
            self._note("min/max", self._segment(node.func), EXTREMES[node.func.id])
        if _is_log_call(node.func):
            with self._in_message():
                self.generic_visit(node)
            return
        is_cast = _is_typing(node.func, {"cast"})
        self.visit(node.func)
        for argument in node.args[1:] if is_cast else node.args:
            self.visit(argument)
        for keyword in node.keywords:
            self.visit(keyword)

    def visit_Compare(self, node: ast.Compare) -> None:
        for operator, (left, right) in zip(node.ops, pairwise((node.left, *node.comparators)), strict=True):
            gap = self._segment(left)[1], self._segment(right)[0]
            old, *news = COMPARISONS[type(operator)]
            self._note("comparison", self._words(*gap, old), *news)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            self._note("and/or", self._words(self._segment(left)[1], self._segment(right)[0], old), new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self._segment(node)
            text = self._source[start:end].removeprefix(b"not")
            self._note("not", (start, end), text.lstrip(b" "))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not _is_sequence(node) and not _is_union(node):
            old, new = ARITHMETIC[type(node.op)]
            gap = self._segment(node.left)[1], self._segment(node.right)[0]
            self._note("operator", self._words(*gap, old), new)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        match node.value:
            case bool():
                self._note("constant", self._segment(node), str(not node.value))
            case int() | float() if node.value + 1 != node.value:
                self._note("constant", self._segment(node), repr(node.value + 1), repr(node.value - 1))
            case str() | bytes() if not self._message:
                start, end = self._segment(node)
                text = self._source[start:end]
                opening = OPENING_QUOTE.match(text)
                assert opening is not None
                self._note("text", (start, end), opening[0] + b"x" + text[opening.end() :])

    @contextmanager
    def _in_message(self) -> Iterator[None]:
        """Within this, texts are what people read."""
        before, self._message = self._message, True
        yield
        self._message = before


def _header(node: ast.stmt | ast.excepthandler | ast.match_case) -> tuple[int, int]:
    """First and last line of a statement, without those of the statements in it."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, max(node.pattern.lineno, _first_line(node.body[0]) - 1)
    first = _first_line(node)
    if isinstance(node, ast.Match):
        return first, max(first, node.cases[0].pattern.lineno - 1)
    body = getattr(node, "body", None)
    if body:
        return first, max(node.lineno, _first_line(body[0]) - 1)
    assert node.end_lineno is not None
    return first, node.end_lineno


def _first_line(node: ast.stmt | ast.excepthandler) -> int:
    """Of a decorated function, the line of its first decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_typing(node: ast.expr, names: set[str]) -> bool:
    """Whether `node` is one of these `names` of the module `typing`, imported by itself or not."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "typing" and node.attr in names
    return isinstance(node, ast.Name) and node.id in names


def _is_declaration(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id in DECLARATIONS


def _is_log_call(function: ast.expr) -> bool:
    if not (isinstance(function, ast.Attribute) and function.attr in LOG_CALLS):
        return False
    logger = function.value
    name = logger.attr if isinstance(logger, ast.Attribute) else getattr(logger, "id", "")
    return name.lstrip("_") in LOGGERS


def _is_sequence(node: ast.expr) -> bool:
    """Whether this is plainly text or a list, to which other arithmetic does not apply: any run would notice."""
    if isinstance(node, ast.BinOp):
        return _is_sequence(node.left) or (isinstance(node.op, ast.Add) and _is_sequence(node.right))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _is_union(node: ast.BinOp) -> bool:
    """Whether this is `X | None`, a type."""
    return any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))
