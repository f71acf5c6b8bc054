"""Tell in a fresh process what differs between two artifacts, whatever the graph of the second does to it."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.artifact.changes import Changes
from penstock.artifact.fresh_process import carry_out
from penstock.artifact.replay_messages import Compared, DiffOrder


def diff(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  # the word users know
    trust: bool = False,
    digest: str | None = None,
) -> Changes:
    """Compare two artifacts, and the answers of the second to the reference rows of the first.

    Args:
        before: an artifact; nothing of it is run.
        after: another one.
        format: the graph of `after` that answers; None: its first.
        trust: lets it be opened though it can run code.
        digest: the digest that is expected of `after`, which is trust too.

    Raises:
        ExportRefused: the graph cannot answer the reference rows at all, or the process did not end as it should.
        ArtifactInvalid: a folder is no artifact, or not as it was saved.
        ConfigError: the graph can run code and is not trusted, its library is not installed, or an option is wrong.
    """
    order = DiffOrder(
        before=os.fspath(Path(before).absolute()),
        after=os.fspath(Path(after).absolute()),
        format=format,
        trust=trust,
        digest=digest,
        threads=len(os.sched_getaffinity(0)),
    )
    result = carry_out(order)
    assert isinstance(result, Compared)
    return result.changes
