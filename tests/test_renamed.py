"""Each public name of the time before the names of the field were taken is still there, or a page has its new one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from public_names import REFERENCE, RENAMED, public_names

EARLIER = Path(__file__).parent / "data" / "earlier" / "public-names.txt"
"""What `public_names.py` has printed of the sources before."""
VALUE = "value: "
KEPT = {"--keep", "Job.attempts", "penstock worker"}
"""Old names that stay for something else: `Job.attempts` is another list, and the others are of other commands."""
PRIVATE = {"penstock.client.AsyncClient(world)", "penstock.client.Client(world)"}
"""Names that only tests used, and that are private now."""
OF_OPTIONS = re.compile(r"(\w*Options|Batch|stage|external|connect|connect_async|JobQueue)\.\w+")
"""A field of options, or an argument with the value of one: the page has it without its class."""


def rows(text: str) -> Iterator[tuple[str, str]]:
    """Each old name of the page with its new one."""
    for line in re.findall(r"^\| (`.*`) \|$", text, re.MULTILINE):
        old, new = line.split(" | ")
        yield from zip(re.findall(r"`([^`]+)`", old), re.findall(r"`([^`]+)`", new), strict=True)


def dotted(name: str) -> str:
    """An argument as a field is written: ``Run.attempts`` for ``Run(attempts)``."""
    return re.sub(r"\((\w+)\)$", r".\1", name)


@cache
def renamed() -> dict[str, set[str]]:
    """New names by the old one; a word of several enumerations has several."""
    found: dict[str, set[str]] = {}
    for old, new in rows(RENAMED.read_text(encoding="utf-8")):
        found.setdefault(dotted(old), set()).add(dotted(new))
    return found


@cache
def names_now() -> frozenset[str]:
    """Names of today, and what is left of each behind each dot."""
    return frozenset(ending for name in public_names() for ending in endings(dotted(name)))


@cache
def written_now() -> frozenset[str]:
    """What stands as code in the documentation, and each word of it."""
    pages = (page for page in REFERENCE.parent.rglob("*.md") if page != RENAMED)
    code = {each for page in pages for each in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))}
    commands = {found[0] for each in code if (found := re.match(r"penstock(?: [a-z][a-z0-9-]*)+", each))}
    return frozenset(code | commands | {word for each in code for word in re.findall(r"[\w-]+", each)})


def endings(name: str) -> list[str]:
    return [name, *(name[found.end() :] for found in re.finditer(r"\.", name))]


def is_told(name: str) -> bool:
    """Whether a name of before is one of today, by itself or by what the page says."""
    if name.startswith(VALUE):
        news = renamed().get(name.removeprefix(VALUE), set())
        return name in names_now() or any(f"{VALUE}{new}" in names_now() for new in news)
    name = dotted(name)
    now = {name, *renamed().get(name, ()), *(name_of_today(name, options=options) for options in (False, True))}
    return bool(now & (names_now() | written_now()))


def name_of_today(name: str, *, options: bool) -> str:
    """A name of Python of before, with each of its parts as it is called now; with `options` those of options too."""
    parts = name.split(".")
    return ".".join(last_of_today(".".join(parts[: end + 1]), options=options) for end in range(len(parts)))


def last_of_today(path: str, *, options: bool) -> str:
    """The last part of a path of before as it is called now."""
    last = path.rpartition(".")[2]
    for ending in endings(path):
        is_whole = "." in ending or ending[:1].isupper() or (options and OF_OPTIONS.search(path))
        if is_whole and ending in renamed():
            return next(iter(renamed()[ending])).rpartition(".")[2]
    return last


def test_every_name_of_before_is_still_there_or_told():
    earlier = EARLIER.read_text(encoding="utf-8").splitlines()
    assert len(earlier) > 2000
    assert [name for name in earlier if name not in PRIVATE and not is_told(name)] == []


def test_every_new_name_of_the_page_is_there():
    known = names_now() | {name.removeprefix(VALUE) for name in names_now()} | written_now()
    assert sorted({new for news in renamed().values() for new in news} - known) == []


def test_no_old_name_is_there_beside_its_new_one():
    """A word alone may be the name of something else, as of a state or of an argument."""
    assert sorted(old for old in renamed().keys() - KEPT if old in names_now() and not re.fullmatch(r"\w+", old)) == []
