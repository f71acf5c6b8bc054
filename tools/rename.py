"""Rename symbols of this repository, all of a table in one pass.

    python tools/rename.py --dry TABLE.tsv...    list rows that do not fit the sources
    python tools/rename.py TABLE.tsv...          rename, and list what was not decided

A table has two columns, separated by a tab: a symbol with its dots, and its new last name.

    penstock.core.company.Company                 AdaptiveBatchDelay   a class, function or constant of a module
    penstock.core.company.Company.still_to_come   expected_remaining   a member: overrides and protocols follow
    penstock.runtime.spec.stage(max_batches)      max_in_flight        a parameter, with the keywords of its callers
    penstock.core.company                         wait_policy          a module: the file moves within its folder

mypy says which symbol an expression means.  Attributes of values without a type follow only where each member of that
name has the same new name.  It needs mypy under Python 3.12 or later, for positions inside f-strings.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from merge import move
from mypy import build, modulefinder, nodes, options, subtypes, types

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("node_modules", "/assets/", "__pycache__", "/build/", "/dist/")
SEMANTIC = frozenset(
    (
        "node",
        "info",
        "type",
        "unanalyzed_type",
        "names",
        "def_var",
        "definition",
        "related",
        "original_def",
        "metaclass",
        "type_guard",
        "type_is",
        "alias_deps",
        "plugin_deps",
        "imports",
        "module_refs",
        "method_type",
        "variables",
    )
)


def python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [ROOT / line for line in listed.stdout.splitlines()]
    return [
        p
        for p in found
        if p.suffix == ".py" and p.is_file() and not any(s in f"/{p.relative_to(ROOT)}" for s in SKIPPED)
    ]


class Table:
    def __init__(self, paths: list[Path]) -> None:
        self.symbols: dict[str, str] = {}
        self.parameters: dict[tuple[str, str], str] = {}
        for path in paths:
            for line in path.read_text().splitlines():
                if not line.strip() or line.startswith("#"):
                    continue
                old, new = line.split("\t")[:2]
                match = re.fullmatch(r"([\w.]+)\((\w+)\)", old)
                if match:
                    self.parameters[match[1], match[2]] = new
                else:
                    self.symbols[old] = new


class Project:
    """What mypy knows of the sources."""

    def __init__(self) -> None:
        chosen = options.Options()
        chosen.python_version = (3, 13)
        chosen.python_executable = os.environ.get("RENAME_PYTHON", str(ROOT / ".venv/bin/python"))
        chosen.check_untyped_defs = True
        chosen.export_types = True
        chosen.preserve_asts = True
        chosen.incremental = False
        chosen.cache_dir = os.devnull
        chosen.mypy_path = [str(ROOT / "src"), str(ROOT)]
        chosen.explicit_package_bases = True
        chosen.namespace_packages = True
        chosen.ignore_missing_imports = True
        chosen.follow_imports = "silent"
        chosen.ignore_errors = True
        chosen.show_traceback = True
        self.paths = python_files()
        seen: set[str] = set()
        sources = []
        self.modules: dict[Path, str] = {}
        for path in self.paths:
            relative = path.relative_to(ROOT)
            parts = list(relative.with_suffix("").parts)
            if parts[0] == "src":
                parts = parts[1:]
            if parts[-1] == "__init__":
                parts.pop()
            name = ".".join(parts)
            if not all(part.isidentifier() for part in parts) or name in seen:
                name = "loose." + re.sub(r"\W", "_", str(relative))
            seen.add(name)
            self.modules[path] = name
            sources.append(modulefinder.BuildSource(str(path), name, None))
        self.result = build.build(sources, chosen)
        self.types = self.result.types
        self.trees = {name: state.tree for name, state in self.result.graph.items() if state.tree is not None}
        self.classes: dict[str, nodes.TypeInfo] = {}
        for name in self.modules.values():
            if name in self.trees:
                for node in self.nodes_of(name):
                    if isinstance(node, nodes.ClassDef) and isinstance(node.info, nodes.TypeInfo):
                        self.classes[node.info.fullname] = node.info

    def nodes_of(self, module: str) -> Iterator[Any]:
        """Each node of a module's tree, by a walk over its attributes: mypy's own visitors cannot be subclassed."""
        tree = self.trees[module]
        stack: list[Any] = list(tree.defs)
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if isinstance(node, (list, tuple)):
                stack.extend(node)
                continue
            if isinstance(node, dict):
                stack.extend(node.values())
                continue
            if (
                not isinstance(node, (nodes.Node,))
                or isinstance(node, (nodes.TypeInfo, nodes.MypyFile))
                or id(node) in seen
            ):
                continue
            seen.add(id(node))
            yield node
            for cls in type(node).__mro__:
                for name in getattr(cls, "__mypyc_attrs__", ()) or ():
                    if name not in SEMANTIC:
                        stack.append(getattr(node, name, None))


class Renamer:
    def __init__(self, table: Table, project: Project, trusting: bool) -> None:
        self.table = table
        self.project = project
        self.trusting = trusting
        self.members: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.problems: list[str] = []
        self.undecided: list[str] = []
        self._sort()
        by_name: defaultdict[str, set[str | None]] = defaultdict(set)
        for info in project.classes.values():
            for name in info.names:
                by_name[name].add(self.members.get(f"{info.fullname}.{name}"))
        self.loose = {name: next(iter(new)) for name, new in by_name.items() if len(new) == 1 and None not in new}
        self.touched_names = {symbol.rpartition(".")[2] for symbol in (*self.members, *self.globals)}

    def _sort(self) -> None:
        for old, new in self.table.symbols.items():
            if old in self.project.trees:
                self.moved[old] = f"{old.rpartition('.')[0]}.{new}" if "." not in new else new
                continue
            owner, _, name = old.rpartition(".")
            info = self.project.classes.get(owner)
            if info is not None:
                if name not in info.names:
                    self.problems.append(f"{old}: the class has no such member")
                    continue
                self._member(info, name, new)
            elif owner in self.project.trees:
                entry = self.project.trees[owner].names.get(name)
                if entry is None:
                    self.problems.append(f"{old}: the module has no such name")
                elif entry.node is None or entry.node.fullname != old:
                    self.problems.append(f"{old}: defined in {entry.node and entry.node.fullname}")
                else:
                    if new in self.project.trees[owner].names:
                        self.problems.append(f"{old}: {new} is in the module already")
                    self.globals[old] = new
            else:
                self.problems.append(f"{old}: not found")

        functions = {
            (node.fullname, argument.variable.name)
            for module in self.project.modules.values()
            if module in self.project.trees
            for node in self.project.nodes_of(module)
            if isinstance(node, nodes.FuncDef)
            for argument in node.arguments
        }
        self.problems += [f"{f}({p}): no such parameter" for f, p in self.table.parameters if (f, p) not in functions]

    def _member(self, info: nodes.TypeInfo, name: str, new: str) -> None:
        """Rename a member in its family: bases, subclasses, protocols and their implementations."""
        waiting = [info]
        while waiting:
            one = waiting.pop()
            symbol = f"{one.fullname}.{name}"
            if symbol in self.members:
                if self.members[symbol] != new:
                    self.problems.append(f"{symbol}: {self.members[symbol]} or {new}?")
                continue
            if new in one.names and f"{one.fullname}.{new}" not in self.table.symbols:
                self.problems.append(f"{symbol}: {new} is in the class already")
            self.members[symbol] = new
            for other in self.project.classes.values():
                if other is one or name not in other.names:
                    continue
                related = one in other.mro or other in one.mro
                if not related and one.is_protocol != other.is_protocol:
                    protocol, made = (one, other) if one.is_protocol else (other, one)
                    related = self._implements(made, protocol)
                if related:
                    waiting.append(other)
            for base in one.mro[1:]:
                if (
                    name in base.names
                    and base.fullname not in self.project.classes
                    and base.fullname != "builtins.object"
                ):
                    self.problems.append(f"{symbol}: {base.fullname} has it, and is not ours")

    def _implements(self, made: nodes.TypeInfo, protocol: nodes.TypeInfo) -> bool:
        if made.is_protocol:
            return False
        wanted = set(protocol.protocol_members)
        if len(wanted) == 1:  # too little to go by: the types must agree
            try:
                return subtypes.is_subtype(
                    types.Instance(made, [types.AnyType(types.TypeOfAny.special_form)] * len(made.type_vars)),
                    types.Instance(protocol, [types.AnyType(types.TypeOfAny.special_form)] * len(protocol.type_vars)),
                )
            except Exception:
                return False
        return all(made.get(name) for name in wanted)

    # What an expression means.

    def infos(self, kind: types.Type | None) -> list[nodes.TypeInfo]:
        if kind is None:
            return []
        kind = types.get_proper_type(kind)
        if isinstance(kind, types.Instance):
            return [kind.type]
        if isinstance(kind, types.UnionType):
            return [info for item in kind.items for info in self.infos(item)]
        if isinstance(kind, (types.TypeVarType, types.ParamSpecType)):
            return self.infos(kind.upper_bound)
        if isinstance(kind, types.TupleType):
            return self.infos(kind.partial_fallback)
        if isinstance(kind, types.LiteralType):
            return self.infos(kind.fallback)
        if isinstance(kind, types.TypeType):
            return self.infos(kind.item)
        if isinstance(kind, types.TypedDictType):
            return self.infos(kind.fallback)
        if isinstance(kind, types.CallableType) and kind.is_type_obj():
            return self.infos(kind.ret_type)
        if isinstance(kind, types.Overloaded) and kind.is_type_obj():
            return self.infos(kind.items[0].ret_type)
        return []

    def member(self, info: nodes.TypeInfo, name: str) -> str | None:
        for base in info.mro:
            if name in base.names:
                return self.members.get(f"{base.fullname}.{name}")
        return None

    def attribute(self, kind: types.Type | None, name: str) -> tuple[bool, str | None]:
        """(decided, new name)"""
        infos = [info for info in self.infos(kind) if info.get(name) is not None]
        if not infos:
            return False, None
        new = {self.member(info, name) for info in infos}
        if len(new) == 1:
            return True, next(iter(new))
        return False, None

    def of_module(self, module: str, name: str) -> str | None:
        """The new name of what `module.name` is, wherever it is defined."""
        tree = self.project.trees.get(module)
        entry = tree.names.get(name) if tree else None
        if entry is None or entry.node is None:
            return None
        full = entry.node.fullname
        return self.globals.get(full) if full.rpartition(".")[2] == name else None

    def rename_file(self, path: Path) -> bool:
        module = self.project.modules[path]
        if module not in self.project.trees:
            self.problems.append(f"{path}: mypy did not read it")
            return False
        source = path.read_bytes()
        edits = Edits(source)
        tree = ast.parse(source)
        names: dict[tuple[int, int], nodes.NameExpr] = {}
        values: dict[tuple[int, int, int | None, int | None], Any] = {}
        members: dict[tuple[int, int, int | None, int | None], nodes.MemberExpr] = {}
        calls: dict[tuple[int, int, int | None, int | None], nodes.CallExpr] = {}
        for node in self.project.nodes_of(module):
            key = (node.line, node.column, node.end_line, node.end_column)
            if isinstance(node, nodes.NameExpr):
                names[node.line, node.column] = node
            if isinstance(node, nodes.MemberExpr):
                members[key] = node
            if isinstance(node, nodes.CallExpr):
                calls[key] = node
            if isinstance(node, nodes.Expression) and node in self.project.types:
                values.setdefault(key, self.project.types[node])
        FileRenamer(self, path, module, tree, edits, names, values, members, calls).visit(tree)
        changed = edits.apply()
        if changed != source:
            path.write_bytes(changed)
            return True
        return False


class Edits:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.changes: dict[tuple[int, int], bytes] = {}

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def replace(self, offset: int, old: str, new: str) -> bool:
        if self.source[offset : offset + len(old)] != old.encode():
            return False
        self.changes[offset, offset + len(old)] = new.encode()
        return True

    def find(self, start: int, old: str) -> int:
        match = re.compile(rb"(?<![\w.])" + re.escape(old.encode()) + rb"\b").search(self.source, start)
        return match.start() if match else -1

    def apply(self) -> bytes:
        result, last = [], 0
        for (start, end), text in sorted(self.changes.items()):
            assert start >= last
            result += [self.source[last:start], text]
            last = end
        return b"".join([*result, self.source[last:]])


class FileRenamer(ast.NodeVisitor):
    def __init__(
        self,
        renamer: Renamer,
        path: Path,
        module: str,
        tree: ast.Module,
        edits: Edits,
        names: Any,
        values: Any,
        members: Any,
        calls: Any,
    ) -> None:
        self.r = renamer
        self.path = path
        self.module = module
        self.edits = edits
        self.names = names
        self.values = values
        self.members = members
        self.calls = calls
        self.scopes: list[tuple[str, Any]] = []
        self.parameter_vars: dict[int, str] = {}
        self.infos: dict[tuple[str, int], nodes.TypeInfo] = {}
        for node in renamer.project.nodes_of(module):
            if isinstance(node, nodes.ClassDef) and node.info:
                self.infos[node.name, node.line] = node.info
            if isinstance(node, nodes.FuncDef):
                for argument in node.arguments:
                    new = renamer.table.parameters.get((node.fullname, argument.variable.name))
                    if new:
                        self.parameter_vars[id(argument.variable)] = new

    def where(self, node: Any) -> str:
        return f"{self.path.relative_to(ROOT)}:{node.lineno}"

    def key(self, node: Any) -> tuple[int, int, int | None, int | None]:
        return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset

    def put(self, node: Any, line: int, column: int, old: str, new: str | None) -> None:
        if new is not None and not self.edits.replace(self.edits.at(line, column), old, new):
            self.r.undecided.append(f"{self.where(node)}: {old} is not at its position")

    # Scopes: what a name means where mypy keeps no expression for it, as in annotations.

    def bound(self, node: ast.AST) -> dict[str, tuple[str, str] | None]:
        found: dict[str, tuple[str, str] | None] = {}
        stack = list(ast.iter_child_nodes(node))
        while stack:
            one = stack.pop()
            if isinstance(one, ast.arg):
                found.setdefault(one.arg, None)
            elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                found.setdefault(one.id, None)
            elif isinstance(one, ast.ImportFrom):
                for alias in one.names:
                    found[alias.asname or alias.name] = (one.module or "", alias.name)
            elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.setdefault(one.name, None)
                continue
            elif isinstance(one, ast.Lambda):
                continue
            stack.extend(ast.iter_child_nodes(one))
        return found

    def resolve(self, name: str) -> str | None:
        for kind, scope in reversed(self.scopes):
            if kind == "function" and name in scope:
                imported = scope[name]
                if imported is None:
                    return None
                return self.r.of_module(*imported) if imported[1] == name else None
        return self.r.of_module(self.module, name)

    def in_class(self) -> nodes.TypeInfo | None:
        return self.scopes[-1][1] if self.scopes and self.scopes[-1][0] == "class" else None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        info = self.infos.get((node.name, node.lineno))
        if not self.scopes:
            self.put(node, *self.name_after(node, "class"), node.name, self.r.globals.get(f"{self.module}.{node.name}"))
        if info is not None:
            self.argument_notes(node, info.fullname)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self.scopes.append(("class", info))
        for part in node.body:
            self.visit(part)
        self.scopes.pop()

    def name_after(self, node: Any, word: str) -> tuple[int, int]:
        start = self.edits.at(node.lineno, node.col_offset)
        match = re.compile(rb"(?:async\s+)?" + word.encode() + rb"\s+").match(self.edits.source, start)
        assert match, self.where(node)
        return node.lineno, node.col_offset + match.end() - start

    def visit_FunctionDef(self, node: Any) -> None:
        info = self.in_class()
        new = None
        if info is not None:
            new = self.r.member(info, node.name)
        elif not self.scopes:
            new = self.r.globals.get(f"{self.module}.{node.name}")
        self.put(node, *self.name_after(node, "def"), node.name, new)
        for part in node.decorator_list:
            self.visit(part)
        full = f"{info.fullname}.{node.name}" if info is not None else f"{self.module}.{node.name}"
        arguments = node.args
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if argument is not None:
                self.put(
                    argument,
                    argument.lineno,
                    argument.col_offset,
                    argument.arg,
                    self.r.table.parameters.get((full, argument.arg)),
                )
                if argument.annotation:
                    self.visit(argument.annotation)
        self.argument_notes(node, full)
        for part in (*arguments.defaults, *arguments.kw_defaults, node.returns, *getattr(node, "type_params", ())):
            if part is not None:
                self.visit(part)
        self.scopes.append(("function", self.bound(node)))
        for part in node.body:
            self.visit(part)
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def argument_notes(self, node: Any, full: str) -> None:
        """Rename parameters in the docstring's list of arguments; a class has those of its `__init__`."""
        first = node.body[0]
        owners = {full, f"{full}.__init__"}
        if not (
            isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        ):
            return
        start = self.edits.at(first.lineno, first.col_offset)
        end = self.edits.at(first.end_lineno or 0, first.end_col_offset or 0)
        for (function, old), new in self.r.table.parameters.items():
            if function in owners:
                for match in re.compile(rb"\n +(" + old.encode() + rb"): |`" + old.encode() + rb"`").finditer(
                    self.edits.source, start, end
                ):
                    at = match.start(1) if match[1] else match.start() + 1
                    self.edits.replace(at, old, new)

    def visit_Name(self, node: ast.Name) -> None:
        known = self.names.get((node.lineno, node.col_offset))
        info = self.in_class()
        new: str | None
        if info is not None and isinstance(node.ctx, ast.Store) and node.id in info.names:
            new = self.r.member(info, node.id)
        elif known is not None and known.name == node.id and known.node is not None:
            new = self.parameter_vars.get(id(known.node))
            full = known.fullname or ""
            if new is None and full.rpartition(".")[2] == node.id:
                new = self.r.globals.get(full) or self.r.members.get(full)
                if new is None and full in self.r.moved:
                    new = self.r.moved[full].rpartition(".")[2]
        else:
            new = self.resolve(node.id)
        self.put(node, node.lineno, node.col_offset, node.id, new)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        known = self.members.get(self.key(node))
        new: str | None = None
        decided = False
        if known is not None and known.fullname and known.fullname.rpartition(".")[2] == node.attr:
            full = known.fullname
            new = self.r.globals.get(full) or self.r.members.get(full)
            if new is None and full in self.r.moved:
                new = self.r.moved[full].rpartition(".")[2]
            decided = new is not None or full.rpartition(".")[0] in self.r.project.trees
        if not decided:
            decided, new = self.r.attribute(self.values.get(self.key(node.value)), node.attr)
        if not decided:
            dotted = ast.unparse(node)
            head, _, rest = dotted.partition(".")
            entry = self.r.project.trees[self.module].names.get(head)
            if entry is not None and isinstance(entry.node, nodes.MypyFile) and rest == node.attr:
                decided, new = True, self.r.of_module(entry.node.fullname, node.attr)
            elif (
                entry is not None
                and isinstance(entry.node, nodes.TypeInfo)
                and rest == node.attr
                and entry.node.get(rest)
            ):
                decided, new = True, self.r.member(entry.node, rest)
        if not decided and node.attr in self.r.touched_names:
            if self.r.trusting and node.attr in self.r.loose:
                new = self.r.loose[node.attr]
            else:
                self.r.undecided.append(f"{self.where(node)}: .{node.attr}")
        if new is not None:
            end = self.edits.at(node.end_lineno, node.end_col_offset)
            if not self.edits.replace(end - len(node.attr.encode()), node.attr, new):
                self.r.undecided.append(f"{self.where(node)}: .{node.attr} is not at its position")

    def callee(self, node: ast.Call) -> tuple[str | None, list[nodes.TypeInfo], list[str]]:
        call = self.calls.get(self.key(node))
        if call is None:
            return None, [], []
        full = getattr(call.callee, "fullname", None) or None
        kind = types.get_proper_type(self.r.project.types.get(call.callee))
        infos: list[nodes.TypeInfo] = []
        functions = [full] if full else []
        for item in kind.items if isinstance(kind, (types.Overloaded, types.UnionType)) else [kind]:
            item = types.get_proper_type(item)
            if isinstance(item, types.CallableType):
                if item.is_type_obj():
                    infos += self.r.infos(item.ret_type)
                elif item.definition is not None:
                    functions.append(getattr(item.definition, "fullname", ""))
            elif isinstance(item, types.TypeType):
                infos += self.r.infos(item.item)
            elif isinstance(item, types.Instance) and item.type.get("__call__"):
                functions += [f"{base.fullname}.__call__" for base in item.type.mro if "__call__" in base.names]
        return full, infos, functions

    def visit_Call(self, node: ast.Call) -> None:
        _full, infos, functions = self.callee(node)
        name = (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else node.func.id
            if isinstance(node.func, ast.Name)
            else ""
        )
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            new, decided = None, False
            if name == "replace" and node.args:
                decided, new = self.r.attribute(self.values.get(self.key(node.args[0])), keyword.arg)
            for info in infos:
                entry = info.get("__init__")
                explicit = entry is not None and isinstance(entry.node, nodes.FuncDef) and not entry.plugin_generated
                if explicit and entry.node.fullname.startswith("builtins."):
                    explicit = False
                if explicit:
                    decided = True
                    new = self.r.table.parameters.get((entry.node.fullname, keyword.arg)) or new
                elif info.get(keyword.arg) is not None:
                    decided = True
                    new = self.r.member(info, keyword.arg) or new
            for function in functions:
                decided = True
                new = self.r.table.parameters.get((function, keyword.arg)) or new
            if new is not None:
                self.put(keyword, keyword.lineno, keyword.col_offset, keyword.arg, new)
            elif not decided and (
                keyword.arg in self.r.touched_names or keyword.arg in {p for _, p in self.r.table.parameters}
            ):
                self.r.undecided.append(f"{self.where(keyword)}: {keyword.arg}=")
        if name in ("getattr", "hasattr", "setattr", "delattr", "delitem", "attrgetter") and len(node.args) > 1:
            self.attribute_string(node.args[0], node.args[1])
        if (
            name == "cast"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            self.quoted(node.args[0])
        self.generic_visit(node)

    def attribute_string(self, value: ast.expr, name: ast.expr) -> None:
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            return
        decided, new = self.r.attribute(self.values.get(self.key(value)), name.value)
        known = (
            self.names.get((value.lineno, value.col_offset))
            if isinstance(value, ast.Name)
            else self.members.get(self.key(value))
        )
        if not decided and known is not None and isinstance(known.node, nodes.MypyFile):
            decided, new = True, self.r.of_module(known.node.fullname, name.value)
        if new is not None:
            self.string(name, name.value, new)

    def string(self, node: ast.Constant, old: str, new: str) -> None:
        start = self.edits.at(node.lineno, node.col_offset)
        end = self.edits.at(node.end_lineno or 0, node.end_col_offset or 0)
        at = self.edits.source.find(old.encode(), start, end)
        if at < 0 or not self.edits.replace(at, old, new):
            self.r.undecided.append(f"{self.where(node)}: {node.value!r}")

    def quoted(self, node: ast.Constant) -> None:
        start = self.edits.at(node.lineno, node.col_offset)
        end = self.edits.at(node.end_lineno or 0, node.end_col_offset or 0)
        for match in re.compile(rb"(?<![\w.])[A-Za-z_]\w*").finditer(self.edits.source, start, end):
            new = self.resolve(match[0].decode())
            if new is not None:
                self.edits.replace(match.start(), match[0].decode(), new)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        text = node.value
        match = re.fullmatch(r"(penstock(?:\.\w+)+)([.:])(\w+)(?:\.(\w+))?", text)
        if match:
            owner, mark, name, member = match[1], match[2], match[3], match[4]
            if owner in self.r.project.trees:
                new = self.r.of_module(owner, name) or name
                if member:
                    info = self.r.project.classes.get(f"{owner}.{name}")
                    new += "." + ((info and self.r.member(info, member)) or member)
                old = name + (f".{member}" if member else "")
                if new != old:
                    self.string(node, f"{owner}{mark}{old}", f"{owner}{mark}{new}")
        elif text in self.r.touched_names:
            self.r.undecided.append(f"{self.where(node)}: {text!r}")

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if (
                isinstance(key, ast.Constant)
                and isinstance(key.value, str)
                and isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and value.value in self.r.project.trees
            ):
                new = self.r.of_module(value.value, key.value)
                if new:
                    self.string(key, key.value, new)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
        info = self.in_class()
        for part in ast.walk(node.value):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                new = None
                if "__all__" in targets:
                    new = self.r.of_module(self.module, part.value)
                elif targets in (["__slots__"], ["__match_args__"]) and info is not None:
                    new = self.r.member(info, part.value)
                if new:
                    self.string(part, part.value, new)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            new = self.r.of_module(self.module, name)
            if new:
                at = self.edits.find(self.edits.at(node.lineno, node.col_offset), name)
                self.edits.replace(at, name, new)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            new = self.r.of_module(module, alias.name)
            if new is None and f"{module}.{alias.name}" in self.r.moved:
                new = self.r.moved[f"{module}.{alias.name}"].rpartition(".")[2]
            self.put(alias, alias.lineno, alias.col_offset, alias.name, new)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        infos: list[nodes.TypeInfo] = []
        known = self.names.get((node.cls.lineno, node.cls.col_offset))
        target = known.node if known is not None else None
        if isinstance(node.cls, ast.Attribute):
            found = self.members.get(self.key(node.cls))
            target = found.node if found is not None else None
        if isinstance(target, nodes.TypeInfo):
            infos = [target]
        for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            new = self.r.member(infos[0], name) if infos else None
            if not infos and name in self.r.touched_names:
                self.r.undecided.append(f"{self.where(node)}: {name}= in a pattern")
            if new:
                end = self.edits.at(pattern.lineno, pattern.col_offset)
                at = self.edits.source.rfind(name.encode(), 0, end)
                self.edits.replace(at, name, new)
        self.generic_visit(node)


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument(
        "--loose", action="store_true", help="follow attributes of untyped values where the name is unique"
    )
    parser.add_argument("--dry", action="store_true", help="only say what is wrong with the table")
    arguments = parser.parse_args()
    table = Table(arguments.tables)
    project = Project()
    renamer = Renamer(table, project, arguments.loose)
    for problem in renamer.problems:
        print("table:", problem)
    if arguments.dry:
        return bool(renamer.problems)
    changed = sum(renamer.rename_file(path) for path in project.paths if path.parent.name != "tools")
    for line in renamer.undecided:
        print("undecided:", line)
    if renamer.moved:
        move(list(renamer.moved.items()), {})
    print(
        f"{len(renamer.members)} members, {len(renamer.globals)} names, {len(renamer.moved)} modules; {changed} files changed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
