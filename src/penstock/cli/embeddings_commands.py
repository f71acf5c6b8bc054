"""`penstock embeddings`: look at the tables that lie outside of a saved model's graph, and at single rows.

Exit status: 0 well; 1 where there can be no such table or row, or the artifact is invalid; 2 wrongly called;
130 interrupted.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.model_folders import check_numpy
from penstock.cli.options import WronglyCalled
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.artifact.opened_artifact import Artifact

Action = Callable[[argparse.Namespace], int]
_ID: Final = re.compile("-?[0-9]{1,19}")


def add_embeddings_command(commands: Any) -> None:
    """The command `embeddings` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "embeddings",
        help="show the tables outside of a saved model's graph, and their rows",
        description="Show the tables outside of a saved model's graph, and their rows.",
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(own, "stats", _stats, "show the tables, their files and sizes")
    getting = _add(own, "get", _get, "show rows by id, and whether they are stored")
    getting.add_argument("table", metavar="TABLE", help="name of a table, as in `stats`")
    getting.add_argument("ids", metavar="ID", nargs="+", help="a whole number; it may be negative")


def _add(own: Any, name: str, action: Action, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = own.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("path", metavar="DIR", help="the artifact, or a model directory (its current version)")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    parser.set_defaults(run=action)
    return parser


def _stats(arguments: argparse.Namespace) -> int:
    from penstock.cli.artifact_shown import show_tables

    show_tables(_opened(arguments.path), as_json=arguments.json)
    return 0


def _get(arguments: argparse.Namespace) -> int:
    ids = [_id(text) for text in arguments.ids]
    artifact = _opened(arguments.path)
    from penstock.artifact.row_stores import rows_of_table
    from penstock.cli.artifact_shown import show_rows

    table, fetched = rows_of_table(artifact, arguments.table, ids)
    show_rows(artifact, table, ids, fetched, as_json=arguments.json)
    return 0


def _opened(path: str) -> Artifact:
    check_numpy("to inspect the artifact of a trained model")
    from penstock.artifact.model_directory import open_found

    return open_found(path)[1]


def _id(text: str) -> int:
    if not _ID.fullmatch(text):
        raise WronglyCalled(ConfigError(f"an id must be a whole number of at most 19 digits, got {text!r}"))
    return int(text)
