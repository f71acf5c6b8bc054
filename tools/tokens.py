"""Replace tokens in single files, after rename.py and words.py: locals, and attributes of values without a type.

    python tokens.py TABLE.tokens.tsv...        (run in the root of the repository)

A row has a glob of files, a token, and its new one.  `.name` is an attribute alone, `name=` a keyword alone, `"name"` a
whole string alone (of whatever quotes), `name` any name that is no attribute and no keyword.
A token in backticks is replaced in strings and comments; such rows need a table of their own.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from fnmatch import fnmatch
from pathlib import Path

rows = [
    line.split("\t")
    for path in sys.argv[1:]
    for line in Path(path).read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
for name in subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard", "*.py"], capture_output=True, text=True, check=True
).stdout.split():
    table = {old: new for glob, old, new in rows if fnmatch(name, glob)}
    if not table or not Path(name).is_file():
        continue
    text = Path(name).read_text()
    lines = text.splitlines(keepends=True)
    keywords = {(k.lineno, k.col_offset) for k in ast.walk(ast.parse(text)) if isinstance(k, ast.keyword)}
    whole: list[tuple[int, int, str]] = []
    edits, tokens = [], list(tokenize.generate_tokens(io.StringIO(text).readline))
    for i, token in enumerate(tokens):
        if token.type == tokenize.NAME:
            before = tokens[i - 1].string if i else ""
            ascii_column = len(token.line[: token.start[1]].encode())
            keyword = (token.start[0], ascii_column) in keywords
            key = f".{token.string}" if before == "." else f"{token.string}=" if keyword else token.string
            if key in table:
                edits.append((token.start, token.end, table[key].strip(".=")))
        elif (
            token.type == tokenize.STRING
            and (m := re.fullmatch(r"""(['"])(\w+)\1""", token.string))
            and f'"{m[2]}"' in table
        ):
            edits.append((token.start, token.end, m[1] + table[f'"{m[2]}"'].strip('"') + m[1]))
        ticks = {old: new for old, new in table.items() if old[0] == "`"}
        if ticks and (token.type in (tokenize.STRING, tokenize.COMMENT)):
            start = sum(map(len, lines[: token.start[0] - 1])) + token.start[1]
            for old, new in ticks.items():
                whole += [(start + m.start(), len(old), f"`{new}`") for m in re.finditer(re.escape(old), token.string)]
    if whole:
        for at, length, new in sorted(whole, reverse=True):
            text = text[:at] + new + text[at + length :]
        Path(name).write_text(text)
        print(f"{name}: {len(whole)}")
        assert not edits, "tokens and backticks of one file stand in two tables"
        continue
    for (row, begin), (_, end), new in sorted(edits, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:begin] + new + line[end:]
    if edits:
        Path(name).write_text("".join(lines))
        print(f"{name}: {len(edits)}")
