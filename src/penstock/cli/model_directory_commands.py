"""`penstock model publish`, `rollback`, `list` and `prune`: change and show the versions of a model directory.

Exit status: 0 well, also where nothing had to be changed; 1 where it was refused or could not be done, which changes
nothing, or where what was done cannot be written to standard output, which the line on stderr says; 2 wrongly called;
130 interrupted.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

from penstock.cli.options import WronglyCalled
from penstock.errors import ConfigError
from penstock.option_fields import flag_name

Action = Callable[[argparse.Namespace], int]
KEPT: Final = 5
"""How many versions `prune` keeps unless it is told otherwise."""
_NUMBER: Final = re.compile("-?[0-9]{1,18}")
_DIRECTORY = "the model directory; write ./-name if its name begins with -"


def add_model_directory_commands(add: Callable[[str, Action, str], argparse.ArgumentParser]) -> None:
    """Four commands below `penstock model`; `add` makes one of a name, an action and what it does."""
    publishing = add(
        "publish", _publish, "publish an artifact as the next version of a model directory, and make it current"
    )
    publishing.add_argument("artifact", metavar="ARTIFACT", help="the artifact, which is copied")
    publishing.add_argument(
        "model_dir", metavar="MODEL_DIR", help="the model directory; created with the first version"
    )
    going_back = add("rollback", _roll_back, "make an earlier version of a model directory current again")
    _add_directory(going_back)
    going_back.add_argument(
        "--to", metavar="N", help="the version (default: the one that `list` marks with `a rollback goes here`)"
    )
    _add_directory(add("list", _list, "show the versions of a model directory"))
    pruning = add("prune", _prune, "remove old versions, except the current one and the target of a rollback")
    _add_directory(pruning)
    pruning.add_argument(
        "--keep",
        metavar="N",
        default=str(KEPT),
        help="number of newest versions to keep in addition (default %(default)s)",
    )


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", help=_DIRECTORY)


def _publish(arguments: argparse.Namespace) -> int:
    from penstock.artifact.publishing import publish_artifact
    from penstock.cli.model_versions_shown import show_publication

    publication = publish_artifact(arguments.artifact, arguments.model_dir)
    show_publication(arguments.artifact, arguments.model_dir, publication, as_json=arguments.json)
    return 0


def _roll_back(arguments: argparse.Namespace) -> int:
    from penstock.artifact.publishing import roll_back
    from penstock.cli.model_versions_shown import show_rollback

    to = None if arguments.to is None else _number(arguments, "to")
    show_rollback(arguments.model_dir, roll_back(arguments.model_dir, to), as_json=arguments.json)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from penstock.artifact.publishing import list_versions
    from penstock.cli.model_versions_shown import show_versions

    show_versions(arguments.model_dir, list_versions(arguments.model_dir), as_json=arguments.json)
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from penstock.artifact.publishing import prune_versions
    from penstock.cli.model_versions_shown import show_pruned

    removed = prune_versions(arguments.model_dir, _number(arguments, "keep"))
    show_pruned(arguments.model_dir, removed, as_json=arguments.json)
    return 0


def _number(arguments: argparse.Namespace, name: str) -> int:
    """The number that a flag says, from 1 on; raises WronglyCalled."""
    text: str = getattr(arguments, name)
    if not _NUMBER.fullmatch(text):  # `int` takes more, as 1_0, and digits of other scripts
        raise WronglyCalled(ConfigError(f"{flag_name(name)}: expected a number, got {text!r}"))
    value = int(text)
    if value < 1:
        raise WronglyCalled(ConfigError(f"{flag_name(name)} must be at least 1, got {text}"))
    return value
