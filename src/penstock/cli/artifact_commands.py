"""`penstock model`: save a trained model as an artifact, and look at what was saved.

What changes a model directory is in `model_directory_commands`.

Exit status: 0 well; 1 where the model is refused, the artifact is invalid, or two artifacts answer differently;
2 wrongly called; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cli.model_directory_commands import add_model_directory_commands
from penstock.cli.model_folders import artifact_options, check_numpy
from penstock.cli.options import add_flags
from penstock.config import FORMATS, ArtifactOptions
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.artifact.model_directory import FoundArtifact

Action = Callable[[argparse.Namespace], int]
SERVED_ALONE = ("explain", "verify_rows")
"""Options of an artifact that mean something to those who serve it alone."""
WHAT_IS_LOOKED_AT = "the artifact, or a model directory (its current version)"


def add_model_commands(commands: Any) -> None:
    """The command `model` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "model",
        help="save trained models, inspect and verify them, publish them, and roll back",
        description="Save trained models as artifacts, inspect and verify them, publish them, and roll back.",
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    exporting = own.add_parser(
        "export",
        help="save a trained model as an artifact",
        description="Call a function that returns the arguments of penstock.export.save as a dict, and save the model.",
    )
    exporting.add_argument("function", metavar="module:function", help="or file.py:function; it takes no arguments")
    exporting.add_argument("path", metavar="DIR", help="the artifact to make; it must not exist")
    exporting.add_argument("--json", action="store_true", help="print the report as a JSON object")
    exporting.set_defaults(run=_export)
    inspecting = _add(own, "inspect", _inspect, "show the content of an artifact; no code of it is run")
    inspecting.add_argument("path", metavar="DIR", help=WHAT_IS_LOOKED_AT)
    verifying = _add(own, "verify", _verify, "check every file, and replay the reference rows through each graph")
    verifying.add_argument("path", metavar="DIR", help=WHAT_IS_LOOKED_AT)
    replayed = f"graph to replay: {', '.join(FORMATS)} (default: every graph, which needs the library of each)"
    add_flags(verifying, ArtifactOptions, "artifact", leave_out=SERVED_ALONE, helps={"model_format": replayed})
    differing = _add(own, "diff", _diff, "compare two artifacts, and replay the reference rows of A through B")
    differing.add_argument("before", metavar="A", help=f"{WHAT_IS_LOOKED_AT}; no code of it is run")
    differing.add_argument("path", metavar="B", help="another one")
    add_flags(differing, ArtifactOptions, "artifact B", leave_out=SERVED_ALONE)
    add_model_directory_commands(partial(_add, own))


def _add(own: Any, name: str, action: Action, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = own.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    parser.set_defaults(run=lambda arguments: _look(action, arguments))
    return parser


def _look(action: Action, arguments: argparse.Namespace) -> int:
    check_numpy("to inspect the artifact of a trained model")
    return action(arguments)


def _export(arguments: argparse.Namespace) -> int:
    check_numpy("to save a trained model")
    from penstock.cli.artifact_shown import show_report
    from penstock.cli.find_service import call_function
    from penstock.export.saving import save

    given = call_function(arguments.function)
    if not isinstance(given, Mapping) or "model" not in given:
        raise ConfigError(
            f"{arguments.function}() must return a dict with the arguments of penstock.export.save, as "
            f"{{'model': ..., 'features': ..., 'reference_rows': ...}}, got {type(given).__name__}"
        )
    if "path" in given:
        raise ConfigError(f"{arguments.function}() returns a path, but the command names another: {arguments.path}")
    try:
        report = save(path=arguments.path, **given)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise PenstockError(f"{arguments.path} was not saved: {error.strerror or error}{where}") from error
    show_report(report, as_json=arguments.json)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from penstock.artifact.model_directory import open_found
    from penstock.cli.artifact_shown import show_artifact

    _, artifact = open_found(arguments.path)
    show_artifact(artifact, as_json=arguments.json)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from penstock.artifact.proof import prove
    from penstock.cli.artifact_shown import show_proof
    from penstock.hosting.file_rights import hidden_from

    options = artifact_options(arguments, os.environ)
    found = _found(arguments.path, options.model_digest)
    formats = None if options.model_format is None else (options.model_format,)
    proof = prove(found.path, formats=formats, trust=options.trust_model_code, digest=options.model_digest)
    above = found.path.parent if found.version is None else found.path.parent.parent
    show_proof(found.path, proof, hidden_from=hidden_from(found.path, above), as_json=arguments.json)
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from penstock.artifact.diff import diff
    from penstock.cli.artifact_shown import show_changes

    options = artifact_options(arguments, os.environ)
    before, after = _found(arguments.before, None), _found(arguments.path, options.model_digest)
    changes = diff(
        before.path,
        after.path,
        format=options.model_format,
        trust=options.trust_model_code,
        digest=options.model_digest,
    )
    show_changes(changes, as_json=arguments.json)
    return 0 if changes.same_answers else 1


def _found(path: str, digest: str | None) -> FoundArtifact:
    """The artifact at `path`; of a model directory the current version, which has the digest that `CURRENT` says.

    That digest is checked here, and not handed on to whoever opens a graph: there it would be trust.
    """
    from penstock.artifact.model_directory import find_artifact
    from penstock.artifact.opened_artifact import open_artifact

    found = find_artifact(path, digest)
    if found.version is not None:
        open_artifact(found.path, digest=found.digest, check_files=False)
    return found
