"""Hold a commit that only renames or moves to it: every definition has the same syntax tree before and after.

    python tools/same_trees.py COMMIT TABLE.tsv...

Names that the tables pair are taken as one.  Imports, docstrings, `__all__` and the order of definitions are left
aside, and so is the file that a definition stands in.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import words


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def first_column(table: str) -> str:
    rows = [row for row in Path(table).read_text().splitlines() if row.strip() and not row.startswith("#")]
    return rows[0].split("\t")[0] if rows else ""


class Names:
    """Old and new names as classes of names that are one."""

    def __init__(self, tables: list[str]) -> None:
        self.parent: dict[str, str] = {}
        self.words, _ = words.read([table for table in tables if "." not in first_column(table)])
        ordered = "|".join(re.escape(word) for word in sorted(self.words, key=len, reverse=True))
        self.pattern = re.compile(rf"(?<![\w-])(?:{ordered})(?![\w-])") if ordered else None
        for table in tables:
            for line in Path(table).read_text().splitlines():
                if not line.strip() or line.startswith("#"):
                    continue
                old, new = line.split("\t")[:2]
                match = re.search(r"\((\w+)\)$", old)
                self.join(match[1] if match else old.rpartition(".")[2], new.rpartition(".")[2])

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(a)] = self.find(b)

    def find(self, name: str) -> str:
        while self.parent.get(name, name) != name:
            name = self.parent[name]
        return name

    def text(self, text: str) -> str:
        if self.pattern is not None:  # what is new already is no word of the table
            text = self.pattern.sub(lambda match: self.words[match[0]], text)
        plain = re.sub(r"\w+", lambda match: self.find(match[0]), text)
        return " ".join(plain.split())


class Plain(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self.names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "attr", "arg", "name", "rest"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, self.names.find(value))
        for field in ("names", "kwd_attrs"):
            value = getattr(node, field, None)
            if isinstance(value, list) and value and isinstance(value[0], str):
                setattr(node, field, [self.names.find(name) for name in value])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = self.names.text(node.value)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [part for part in body if not is_note(part)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        return super().generic_visit(node)


def is_note(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("__all__", "pytestmark")


def definitions(commit: str, names: Names) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        if path.endswith(".py") and path.startswith(("src/", "tests/", "bench/", "examples/")):
            tree = Plain(names).visit(ast.parse(git("show", f"{commit}:{path}")))
            found.update(ast.unparse(part) for part in tree.body if not isinstance(part, ast.Pass))
    return found


def main() -> int:
    commit, *tables = sys.argv[1:]
    names = Names(tables)
    before, after = definitions(f"{commit}^", names), definitions(commit, names)
    for sign, only in (("-", before - after), ("+", after - before)):
        for text in only:
            print(sign, text[:2000])
    print(f"{sum((before & after).values())} definitions are the same, {sum((before - after).values())} are not")
    return before != after


if __name__ == "__main__":
    sys.exit(main())
