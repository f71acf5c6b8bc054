"""Hold the sources to plain words: the first word of a sentence, and every text that a user reads.

    python tests/plain_words.py    # lower the numbers in tests/first_words.json to what the sources have by now

Sentences that begin with a word which only points at something are read twice.  Each file of the package may have as
many as the list says, a file that is not in the list has none, and a number is never raised.

A text that a user reads is a log line, the help of an option or a command, the message of an error, or the description
of a metric.  It has no word of `FORBIDDEN`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from layer_rules import Tree, parsed, read_tree, statements

LIST = Path(__file__).with_name("first_words.json")
AVOIDED = {
    *("what", "who", "whose", "whom", "whoever", "none", "nobody", "one"),
    *("those", "such", "so", "of", "else", "there", "the same"),
}
HEADS = {"Args:", "Attributes:", "Example:", "Examples:", "Note:", "Raises:", "Returns:", "Yields:"}
"""Of the sections of a docstring; the lines below one are indented as code is."""

# An operator reads these twice: the field has a usual word for each (reject, in flight, queue, report, worker lost).
FORBIDDEN = (
    *("door", "doors", "place", "places", "in hand", "go on", "goes on", "went on", "going on"),
    *("tell", "tells", "told", "nobody", "somebody", "anybody", "everybody", "who", "whoever", "whom", "whose"),
    *("lie", "lies", "lay", "come", "comes", "came", "coming", "ask", "asks", "asked", "say", "says", "said"),
    *("look", "looks", "looked", "heard", "owe", "owes", "newcomer", "newcomers", "anew", "at once", "so many"),
    *("so much", "as it may", "as they may", "let in", "let go", "gone", "beside", "another's", "else's", "none:"),
    *("default none", "begun", "wrongly", "misspelt"),
)
ERRORS = "errors.py"
"""The file of the public exceptions: the first line of a docstring is the default message."""
METRICS = ("core/series.py",)
"""Files, besides those whose name ends in ``metrics.py``, in which every text describes a metric."""
LOGGERS = {"log", "_log", "logger", "logging", "warnings"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}
MAKERS = {"option", "refuse", "_refuse", "overloaded", "_overloaded", "Limit", "cut_line", "cut_middle"}
"""Functions that get a text of an option, of a refusal or of a log line."""
ARGPARSE = {"ArgumentParser", "add_argument", "add_argument_group", "add_parser", "add_subparsers"}
ARGPARSE_TEXTS = {"help", "description", "epilog", "title"}
_ANY_FORBIDDEN = re.compile(
    rf"(?<![\w-])(?:{'|'.join(re.escape(word) for word in sorted(FORBIDDEN, key=len, reverse=True))})(?![\w-])",
    re.IGNORECASE,
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a file and the notes behind its assignments, each with the number of its first line."""
    for node in statements(parsed(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, inspect.cleandoc(text)


def prose_of(text: str) -> str:
    """A text with an empty line in place of each head of a section and each line of code.

    Names of arguments are no words either, and become "_".
    """
    lines, in_section = [], False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            in_section = line in HEADS
        is_code = (line.startswith("    ") and not in_section) or line.lstrip().startswith((">>>", "..."))
        lines.append("" if is_code or line in HEADS else re.sub(r"^ {4}\w+(?=: )", "    _", line))
    return "\n".join(lines)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a text, each with how many lines are above it."""
    prose, start = prose_of(text), 0
    for gap in re.finditer(r"(?<=[.!?])\s+|\n\n|\Z", prose):
        said = prose[start : gap.start()]
        begins = gap.start() - len(said.lstrip())
        yield prose.count("\n", 0, begins), " ".join(said.split())
        start = gap.end()


def points(sentence: str) -> bool:
    """Whether the first word of a sentence is one to avoid."""
    first = re.match(r"\W*(the same\b|[A-Za-z]+)", sentence, re.IGNORECASE)
    return first is not None and first[1].lower() in AVOIDED


def pointing(source: str) -> list[str]:
    """The sentences of a file that begin with a word to avoid, each with its line."""
    return [
        f"line {line + above}: {sentence}"
        for line, text in sorted(texts(source))
        for above, sentence in sentences(text)
        if points(sentence)
    ]


def objections(tree: Tree, allowed: Mapping[str, int]) -> list[str]:
    """How the sources differ from the list, in lines of text."""
    said = []
    for file in sorted({*tree, *allowed}):
        found, most = pointing(tree.get(file, "")), allowed.get(file, 0)
        if len(found) > most:
            said += [f"{file}: {len(found)} sentences begin with a word to avoid, {most} may:", *found]
        elif len(found) < most:
            said.append(f"{file}: {len(found)}, no longer {most}: python tests/plain_words.py lowers the list")
    return said


def lowered(tree: Tree, allowed: Mapping[str, int]) -> dict[str, int]:
    """The list with no number higher than before, and none higher than the sources need."""
    needed = {file: min(most, len(pointing(tree.get(file, "")))) for file, most in sorted(allowed.items())}
    return {file: most for file, most in needed.items() if most}


def public_errors(tree: Tree) -> set[str]:
    """The names of the exception classes of `ERRORS`."""
    return {node.name for node in parsed(tree.get(ERRORS, "")).body if isinstance(node, ast.ClassDef)}


def _literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The string literals in `node`, each with its line; an f-string is one, with ``{}`` for each of its values."""
    match node:
        case ast.Constant(str(text)):
            yield node.lineno, text
        case ast.JoinedStr(values):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in values)
            for part in values:
                if isinstance(part, ast.FormattedValue):
                    yield from _literals(part.value)
        case ast.Subscript(value):  # the key of a lookup is no text
            yield from _literals(value)
        case _:
            for inner in ast.iter_child_nodes(node):
                yield from _literals(inner)


def _arguments(call: ast.Call, errors: set[str]) -> list[ast.AST]:
    """The arguments of `call` that have texts for users."""
    match call.func:
        case ast.Attribute(owner, name):
            held = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            is_log = name in LOG_METHODS and held in LOGGERS
        case ast.Name(name):
            is_log = False
        case _:
            return []
    if name in ARGPARSE:
        return [keyword.value for keyword in call.keywords if keyword.arg in ARGPARSE_TEXTS]
    if is_log or name in MAKERS or name in errors or name.endswith("MetricFamily"):
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    return []


def user_texts(file: str, source: str, errors: set[str]) -> set[tuple[int, str]]:
    """The texts of a file that users read, each with its line; `errors` are the names of the public exceptions."""
    module, found = parsed(source), set[tuple[int, str]]()
    for node in ast.walk(module):
        match node:
            case ast.Call():
                for argument in _arguments(node, errors):
                    found.update(_literals(argument))
            case ast.Raise(ast.Call(args=args, keywords=keywords)):
                for argument in (*args, *(keyword.value for keyword in keywords)):
                    found.update(_literals(argument))
            case ast.ClassDef(body=[ast.Expr(ast.Constant(str(text))) as first, *_]) if file == ERRORS:
                found.add((first.lineno, text.strip().partition("\n")[0]))
    if file in METRICS or file.endswith("metrics.py"):
        for statement in module.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                found.update(_literals(statement.value))
    return found


def forbidden_words(tree: Tree) -> list[str]:
    """The forbidden words in texts that users read, each as "file:line: word"."""
    errors = public_errors(tree)
    return [
        f"{file}:{line}: {word}: {text[:100]!r}"
        for file, source in tree.items()
        for line, text in sorted(user_texts(file, source, errors))
        for word in dict.fromkeys(found.lower() for found in _ANY_FORBIDDEN.findall(text))
    ]


def read_list() -> dict[str, int]:
    allowed: dict[str, int] = json.loads(LIST.read_text())
    return allowed


def main() -> str:
    """Lower the list; what it still differs in."""
    tree = read_tree()
    LIST.write_text(json.dumps(lowered(tree, read_list()), indent=2) + "\n")
    left = objections(tree, read_list())
    return "\n".join(left)


if __name__ == "__main__":
    sys.exit(main() or None)
