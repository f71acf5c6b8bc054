"""Publish an artifact where servers find it, and take it back; a line on stderr tells what was done."""

from __future__ import annotations

import os
import shlex

from penstock.artifact.given_folder import given_folder
from penstock.artifact.publishing import Rollback, publish_artifact, roll_back
from penstock.artifact.staging import Publication
from penstock.codec.text import printable
from penstock.config import checked_keywords
from penstock.export.progress import progress_shown


@checked_keywords("penstock.export.publish")
def publish(artifact: str | os.PathLike[str], model_dir: str | os.PathLike[str]) -> int:
    """Publish the artifact as the next version of a model directory, and return its number.

    The artifact is copied and checked there, and becomes current in one moment.  An artifact that is a version there
    already is not published again: its number is returned, and nothing is changed.

    Args:
        artifact: the folder that `save` made.
        model_dir: the model directory, which is made if it is not there.

    Raises:
        ArtifactInvalid: the artifact is not as it was saved, or something in the model directory is not as it was left.
        ConfigError: an argument is no path, or names a folder that cannot be used so.
        PublishFailed: the model directory cannot be written, or somebody else has been changing it for 30 s.
    """
    saved, folder = str(given_folder("artifact", artifact)), str(given_folder("model_dir", model_dir))
    with progress_shown() as progress:
        progress.step(printable(f"publishing {saved}"))
        publication = publish_artifact(artifact, model_dir)
        progress.note(printable(published_words(publication, saved, folder)))
    return publication.version


@checked_keywords("penstock.export.rollback")
def rollback(model_dir: str | os.PathLike[str], to: int | None = None) -> int:
    """Make an earlier version current again, and return its number.

    Every file of it is checked first.  Called again, it goes one further back.

    Args:
        model_dir: the model directory.
        to: the version; None: what was current before this one.

    Raises:
        ArtifactInvalid: the version is not as it was published, the folder is no model directory, or somebody changed
            what is current meanwhile, and `to` is None.
        ConfigError: there is nothing to go back to, or no such version.
        PublishFailed: the model directory cannot be written, or somebody else has been changing it for 30 s.
    """
    folder = str(given_folder("model_dir", model_dir))
    with progress_shown() as progress:
        done = roll_back(model_dir, to)
        progress.note(printable(rolled_back_words(done, folder)))
    return done.version


def published_words(publication: Publication, artifact: str, model_dir: str) -> str:
    """A sentence on what became of an artifact that was to be published."""
    version, current = publication.version, publication.current
    if not publication.repeated:
        return f"published {artifact} as version {version} of {model_dir}"
    if version == current:
        return f"{artifact} is version {version} of {model_dir} already, and current: nothing was changed"
    return (
        f"{artifact} is version {version} of {model_dir} already, but version {current} is current: "
        f"nothing was changed; to switch to it: penstock model rollback {shlex.quote(model_dir)} "
        f"--to {version}"
    )


def rolled_back_words(done: Rollback, model_dir: str) -> str:
    """A sentence on what became of a rollback."""
    if done.version == done.before:
        return f"version {done.version} of {model_dir} is current already: nothing was changed"
    return f"rolled back {model_dir} from version {done.before} to version {done.version}"
