"""Decide which words of a command line name the folder of a trained model, and open it as the options say.

Such a folder is an artifact, or a model directory, which says which of the artifacts in it is meant.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from penstock.artifact.given_folder import ADDRESS
from penstock.cli.options import WronglyCalled, checked
from penstock.config import ArtifactOptions
from penstock.errors import ConfigError
from penstock.option_fields import flag_name
from penstock.service import Service

MOST_NAMED = 5
"""Models that an error names."""
MARKS = ("manifest.json", "CURRENT")
"""The file that makes a folder an artifact, and the one that makes it a model directory.

As in `artifact.manifest` and in `artifact.current_file`, which need numpy: a service without a model may not have it.
"""


def names_folder(text: str) -> bool:
    """Whether `text` names a folder: an artifact, a model directory, or a path that is of no ``.py`` file."""
    if text.partition(":")[0].endswith(".py"):
        return False
    if ADDRESS.match(text):  # it names none, and is told as that
        return True
    folder = os.path.isdir(text)  # noqa: PTH112  # `Path.is_dir` can raise, as of a name that is too long
    if holds_model(text) or (folder and not os.access(text, os.X_OK)):  # what it holds cannot be seen: that is told
        return True
    if folder and models_in(text):
        return True
    return "/" in text and (":" not in text or folder)  # a/good:service forgot the ending of its file


def holds_model(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder looks like an artifact or like a model directory; neither is opened."""
    return any(os.path.isfile(Path(folder, mark)) for mark in MARKS)  # noqa: PTH113  # `Path.is_file` can raise


def models_in(folder: str | os.PathLike[str]) -> list[str]:
    """The names of the folders in it that look like artifacts or model directories; none where it has Python, too."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  # the names alone
    except OSError:
        return []
    if any(name.endswith(".py") for name in names):
        return []
    return [name for name in names if holds_model(Path(folder, name))]


def load_folder(text: str, options: ArtifactOptions) -> Service:
    """The service of the artifact in the folder `text`, or of what is current in that model directory.

    Raises:
        ConfigError: it cannot be opened with these options, or a library is missing.
        ArtifactInvalid: it is neither, or not as it was saved.
    """
    if not holds_model(text) and (inside := models_in(text)):
        raise ConfigError(_several_words(text, inside))
    check_numpy(f"{text}: to serve a trained model")
    from penstock.export.artifact_service import load

    return load(
        text,
        model_format=options.model_format,
        trust_model_code=options.trust_model_code,
        model_digest=options.model_digest,
        verify_rows=options.verify_rows,
        explain=options.explain,
    )


def _several_words(text: str, inside: Sequence[str]) -> str:
    above = Path(text).absolute().parent
    if Path(text).absolute().name == "versions" and holds_model(above):
        return f"{text} has the versions of a model directory: use the directory, {Path(text).parent}"
    named = " ".join(str(Path(text, name)) for name in inside[:MOST_NAMED])
    more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
    return f"{text} is a directory of models, not a model: name the models to serve, of {named}{more}"


def check_numpy(purpose: str) -> None:
    """Raise a ConfigError that says what numpy is needed for, where it is not installed."""
    try:
        import_module("numpy")
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ConfigError(f"{purpose} numpy is needed: pip install 'penstock[onnx]'") from None


def artifact_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> ArtifactOptions:
    """How an artifact is opened, checked; raises WronglyCalled."""
    return checked(arguments, ArtifactOptions, environ)


def options_of_folders(
    arguments: argparse.Namespace, names: Sequence[str], environ: Mapping[str, str]
) -> ArtifactOptions:
    """How the folders among the services `names` are opened, checked; raises WronglyCalled.

    Where none is a folder, variables say nothing of it: others may have set them.
    """
    folders = [name for name in names if names_folder(name)]
    options = artifact_options(arguments, environ if folders else {})
    said = [f.name for f in fields(ArtifactOptions) if getattr(options, f.name) != f.default]
    if said and not folders:
        words = " and ".join(map(flag_name, said))
        raise WronglyCalled(
            ConfigError(f"{words}: only for a service that is named by the directory of an artifact, and no service is")
        )
    if options.model_digest is not None and len(folders) > 1:
        raise WronglyCalled(
            ConfigError(f"--model-digest is for one artifact, but {len(folders)} are named: {', '.join(folders)}")
        )
    return options
