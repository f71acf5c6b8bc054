"""Replace words in what is no code: comments and strings of Python, and whole files of other kinds.

    python tools/words.py TABLE.tsv...

Each row has a word and its new one.  A row of an option has `option` in the third column: its flag and its variable
follow.  A row with `docs` there leaves Python alone.  A word stands between characters that are of no identifier.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("node_modules", "/assets/", "/tools/", "CHANGELOG.md", "docs/reference/renamed.md", "package-lock")
KINDS = (
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".ts",
    ".js",
    ".mjs",
    ".lua",
    ".sh",
    ".json",
    ".service",
    ".cfg",
    ".html",
    ".svg",
    "",
)
CODE = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}


def read(paths: list[str]) -> tuple[dict[str, str], set[str]]:
    table: dict[str, str] = {}
    docs: set[str] = set()
    for path in paths:
        for line in Path(path).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                old, new, *kind = line.split("\t")
                table[old] = new
                if kind == ["docs"]:
                    docs.add(old)
                if kind == ["option"]:
                    flag_old, flag_new = "--" + old.replace("_", "-"), "--" + new.replace("_", "-")
                    table[flag_old] = flag_new
                    table["--no-" + flag_old[2:]] = "--no-" + flag_new[2:]
                    table["PENSTOCK_" + old.upper()] = "PENSTOCK_" + new.upper()
    return table, docs


def main(paths: list[str]) -> None:
    table, docs = read(paths)
    words = "|".join(re.escape(word) for word in sorted(table, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    changed = 0
    for name in listed.splitlines():
        path = ROOT / name
        if any(part in f"/{name}" for part in SKIPPED) or not path.is_file():
            continue
        if path.suffix != ".py" and path.suffix not in KINDS:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if path.suffix != ".py":
            new = pattern.sub(lambda match: table[match[0]], text)
        else:
            new = in_python(text, pattern, {word: new for word, new in table.items() if word not in docs})
        if new != text:
            path.write_text(new)
            changed += 1
    print(changed, "files changed")


def in_python(text: str, pattern: re.Pattern[str], table: dict[str, str]) -> str:
    if not pattern.search(text):
        return text
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    spots = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in CODE:
            start = starts[token.start[0] - 1] + token.start[1]
            end = starts[token.end[0] - 1] + token.end[1]
            spots += [
                (start + m.start(), start + m.end(), table[m[0]])
                for m in pattern.finditer(text[start:end])
                if m[0] in table
            ]
    for start, end, new in sorted(spots, reverse=True):
        text = text[:start] + new + text[end:]
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
