"""Tell which known name somebody meant who wrote another one."""

from __future__ import annotations

from collections.abc import Iterable

LEAST_LIKENESS = 0.85
"""What difflib must say of two names for one to be near the other: `preprocessing` and `preprocess` have 0.87."""


def nearest(name: str, known: Iterable[str], likeness: float = LEAST_LIKENESS) -> str | None:
    """The name of `known` that is nearest to `name`, or None where none is near."""
    from difflib import get_close_matches  # every worker imports this module, and few need that one

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def is_slip(name: str, meant: str) -> bool:
    """Whether `name` is `meant` but for `_`, capitals, and one letter.

    That is one too many, too few, another one, or one that has changed places with the next.
    """
    a, b = _plain(name), _plain(meant)
    if len(a) > len(b):
        a, b = b, a
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest, other = a[start:], b[start:]
    if len(rest) < len(other):
        return rest == other[1:]
    return rest[1:] == other[1:] or (rest[:2] == other[1::-1] and rest[2:] == other[2:])


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
