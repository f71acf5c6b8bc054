"""Decide which words of a command line name the folder of a trained model, and open it as the options say."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from penstock.cli.options import WronglyCalled, chosen, flag_name
from penstock.config import ArtifactOptions, environment_name
from penstock.errors import ConfigError
from penstock.service import Service

MANIFEST = "manifest.json"  # as in `artifact.manifest`, which needs numpy: a service without a model may not have it


def names_folder(text: str) -> bool:
    """Whether `text` names a folder: one with a manifest, or a path that is of no ``.py`` file."""
    where = text.partition(":")[0]
    if where.endswith(".py"):
        return False
    if Path(text, MANIFEST).is_file():
        return True
    return "/" in text and (":" not in text or Path(text).is_dir())  # a/good:service forgot the ending of its file


def load_folder(text: str, options: ArtifactOptions) -> Service:
    """The service of the artifact in the folder `text`.

    Raises:
        ConfigError: it cannot be opened with these options, or a library is missing.
        ArtifactInvalid: it is no artifact, or not as it was saved.
    """
    check_numpy(f"{text}: to serve a trained model")
    from penstock.export.artifact_service import load

    return load(text, format=options.format, trust=options.trust, digest=options.digest)


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
    try:
        return ArtifactOptions(**chosen(arguments, ArtifactOptions, environ))
    except ConfigError as error:
        raise WronglyCalled(error) from None


def options_of_folders(
    arguments: argparse.Namespace, names: Sequence[str], environ: Mapping[str, str]
) -> ArtifactOptions:
    """How the folders among the services `names` are opened, checked; raises WronglyCalled."""
    options = artifact_options(arguments, environ)
    folders = [name for name in names if names_folder(name)]
    said = [f.name for f in fields(ArtifactOptions) if getattr(options, f.name) != f.default]
    if said and not folders:
        words = " and ".join(f"{flag_name(name)} ({environment_name(name)})" for name in said)
        raise WronglyCalled(
            ConfigError(f"{words}: only for a service that is named by the folder of an artifact, and none is")
        )
    if options.digest is not None and len(folders) > 1:
        raise WronglyCalled(
            ConfigError(f"--digest is that of one artifact, and {len(folders)} are named: {', '.join(folders)}")
        )
    return options
