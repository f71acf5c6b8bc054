"""The arguments of a bench that has scenes and rounds."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def scene_arguments(description: str, scenes: Collection[str], *, rounds: str, plain: str = "") -> argparse.Namespace:
    """What was chosen: `rounds`, `only` as a list of scenes, and `plain`; the texts say what the flags are for.

    A bench without a text for it has no `plain`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help=f"{rounds} (default: 5)")
    parser.add_argument("--only", default=",".join(scenes), help=f"of: {', '.join(scenes)}")
    if plain:
        parser.add_argument("--plain", action="store_true", help=plain)
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",")
    unknown = [name for name in chosen.only if name not in scenes]
    if unknown or chosen.rounds < 1:
        parser.error(f"no scene {unknown[0]!r}" if unknown else "--rounds must be above 0")
    return chosen
