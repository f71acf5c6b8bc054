"""Hold the first word of a sentence in the sources to the thing or an imperative.

    python tests/plain_words.py    # lower the numbers in tests/first_words.json to what the sources have by now

Sentences that begin with a word which only points at something are read twice.  Each file of the package may have as
many as the list says, a file that is not in the list has none, and a number is never raised.
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
