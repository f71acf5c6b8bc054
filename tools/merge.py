"""Move modules of `src/penstock`, and merge several into one.

    python tools/merge.py TABLE.tsv

Each row has a module and the module that its text becomes a part of.  Rows with the same target are merged: a module
stands before those that import it.  A target that is there already and is named in no row keeps its place in this
order.  `package`, a name and a
docstring make a package.  Importers, dotted names in strings, paths in texts, `setup.py` and `pyproject.toml` follow.  A name that two
merged modules define is an error: rename it first.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
SKIPPED = ("node_modules", "/assets/", "/tools/", "CHANGELOG.md", "package-lock")


def path_of(module: str) -> Path:
    base = SRC / Path(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


class Module:
    """A module in pieces: its docstring, its imports, and the rest of its text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = path_of(name).read_text()
        self.lines = self.text.splitlines(keepends=True)
        tree = ast.parse(self.text)
        self.doc = ""
        self.imports: list[str] = []
        self.typing: list[str] = []
        self.imported: set[str] = set()
        last = 0
        body = tree.body
        if body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant):
            self.doc = self.piece(body[0])
            last = body[0].end_lineno or 0
            body = body[1:]
        self.rest_start = last
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if getattr(node, "module", "") != "__future__":
                    self.imports.append(self.piece(node))
                self.note(node)
            elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                self.typing += [self.piece(part) for part in node.body]
                for part in node.body:
                    self.note(part)
            else:
                break
            self.rest_start = node.end_lineno or 0
        self.rest = "".join(self.lines[self.rest_start :]).strip("\n")
        self.defined = {name for node in tree.body for name in names_of(node)}

    def note(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and node.module:
            self.imported.add(node.module)
            self.imported |= {f"{node.module}.{alias.name}" for alias in node.names}

    def piece(self, node: ast.AST) -> str:
        return "".join(self.lines[node.lineno - 1 : node.end_lineno]).rstrip("\n")  # type: ignore[attr-defined]


def names_of(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def ordered(modules: list[Module]) -> list[Module]:
    """Modules, each after those of them that it imports."""
    done: list[Module] = []
    waiting = list(modules)
    while waiting:
        ready = next((m for m in waiting if not any(o.name in m.imported for o in waiting if o is not m)), None)
        if ready is None:
            raise SystemExit(f"{[m.name for m in waiting]} import each other")
        done.append(ready)
        waiting.remove(ready)
    return done


def merged(target: str, modules: list[Module]) -> str:
    parts = ordered(modules)
    owners: dict[str, str] = {}
    for module in parts:
        for name in module.defined - {"__all__"}:
            if owners.setdefault(name, module.name) != module.name and name not in ("log", "T", "P"):
                raise SystemExit(f"{name} is in {owners[name]} and in {module.name}: rename one")
    seen: set[str] = set()
    inner = {module.name for module in modules}

    def outside(pieces: list[str]) -> list[str]:
        kept = []
        for piece in pieces:
            node = ast.parse(piece.strip()).body[0]
            if isinstance(node, ast.ImportFrom) and node.module in inner:
                if any(alias.asname for alias in node.names):
                    raise SystemExit(f"{piece!r} gives another name to what is merged into {target}")
                continue
            if piece.strip() not in seen:
                seen.add(piece.strip())
                kept.append(piece.strip())
        return kept

    main = next((m for m in modules if m.name == target), parts[-1])
    text = [main.doc, "", "from __future__ import annotations", ""]
    text += [piece for module in parts for piece in outside(module.imports)]
    typing = [piece for module in parts for piece in outside(module.typing)]
    if typing:
        text += ["", "if TYPE_CHECKING:", *("    " + piece.replace("\n", "\n    ") for piece in typing)]
    dropped: set[str] = set()
    for module in parts:
        rest = module.rest
        for other in inner:  # imports inside functions
            rest = re.sub(rf"^ +from {re.escape(other)} import [\w, ]+\n", "", rest, flags=re.MULTILINE)
        for name in ("log", "T", "P"):  # the same in each: the first stays
            if name in module.defined:
                if name in dropped:
                    rest = re.sub(rf"^{name} = .*\n+", "", rest, flags=re.MULTILINE)
                dropped.add(name)
        text += ["", "", rest]
    return "\n".join(text) + "\n"


def main() -> None:
    lines = [row.split("\t") for row in Path(sys.argv[1]).read_text().splitlines() if "\t" in row and row[0] != "#"]
    notes = {line[1]: line[2] for line in lines if line[0] == "package"}
    move([(line[0], line[1]) for line in lines if line[0] != "package"], notes)


def move(rows: list[tuple[str, str]], notes: dict[str, str]) -> None:
    """Move the module of each row into its target; `notes` has the docstrings of packages to make."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for old, new in rows:
        groups[new].append(old)
    moved = dict(rows)
    texts = {}
    paths = {old: path_of(old) for old in moved}  # before there are folders of their names
    for target, olds in groups.items():
        names = list(dict.fromkeys(olds))
        if path_of(target).is_file() and target not in moved and target not in names:
            names.append(target)
        modules = [Module(name) for name in names]
        texts[target] = modules[0].text if len(modules) == 1 else merged(target, modules)
    for target in groups:
        path = SRC / Path(*target.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, *path.parent.parents):
            if folder == SRC:
                break
            front = folder / "__init__.py"
            if not front.exists():
                front.write_text(f'"""{notes.get(".".join(folder.relative_to(SRC).parts), "")}"""\n')
                git("add", str(front))
    for old, new in rows:
        if old not in groups:
            first = groups[new][0] == old and not (SRC / Path(*new.split("."))).with_suffix(".py").is_file()
            if first:
                git("mv", str(paths[old]), str(SRC / Path(*new.split(".")).with_suffix(".py")))
            else:
                git("rm", "-q", "-f", str(paths[old]))
    for target, text in texts.items():
        path = SRC / Path(*target.split(".")).with_suffix(".py")
        path.write_text(text)
        git("add", str(path))
    follow(moved)
    for folder in {path.parent for path in paths.values()}:
        if [child.name for child in folder.iterdir() if child.name != "__pycache__"] == ["__init__.py"]:
            git("rm", "-q", "-f", str(folder / "__init__.py"))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def follow(moved: dict[str, str]) -> None:
    """Write the new dotted name and the new path wherever a text has the old one."""
    table = dict(moved)
    for old, new in moved.items():
        table[old.removeprefix("penstock.").replace(".", "/") + ".py"] = (
            new.removeprefix("penstock.").replace(".", "/") + ".py"
        )
    pattern = re.compile(
        r"(?<![\w.])(?:src/penstock/)?("
        + "|".join(re.escape(o) for o in sorted(table, key=len, reverse=True))
        + r")(?!\w)"
    )
    # `from penstock.core import company`: the module by its last name.
    by_parent: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for old, new in moved.items():
        by_parent[old.rpartition(".")[0]][old.rpartition(".")[2]] = new
    for name in git("ls-files").splitlines():
        path = ROOT / name
        if any(part in f"/{name}" for part in SKIPPED) or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        new_text = pattern.sub(lambda match: match[0].replace(match[1], table[match[1]]), text)
        if path.suffix == ".py":
            new_text = modules_by_name(new_text, by_parent)
        if name in ("setup.py", "pyproject.toml"):
            new_text = once(new_text)
        if new_text != text:
            path.write_text(new_text)


def modules_by_name(text: str, by_parent: dict[str, dict[str, str]]) -> str:
    """`from penstock.core import company` imports the new module under the old name."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or node.module not in by_parent:
            continue
        moved = [alias for alias in node.names if alias.name in by_parent[node.module]]
        if not moved:
            continue
        indent = " " * node.col_offset
        kept = [alias for alias in node.names if alias not in moved]
        new = [f"{indent}from {node.module} import {', '.join(map(ast.unparse, kept))}\n"] if kept else []
        for alias in moved:
            parent, _, last = by_parent[node.module][alias.name].rpartition(".")
            name = alias.asname or alias.name
            new.append(f"{indent}from {parent} import {last}{'' if name == last else f' as {name}'}\n")
        lines[node.lineno - 1 : node.end_lineno] = ["".join(new), *[""] * ((node.end_lineno or 0) - node.lineno)]
    return "".join(lines)


def once(text: str) -> str:
    """Without the second of two equal lines of a list of files."""
    seen: set[str] = set()
    kept = []
    for line in text.splitlines(keepends=True):
        if re.fullmatch(r'\s+"(?:src/penstock/)?[\w/]+\.py",\n', line):
            if line in seen:
                continue
            seen.add(line)
        kept.append(line)
    return "".join(kept)


if __name__ == "__main__":
    main()
