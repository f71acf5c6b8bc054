"""Be the fresh process that opens artifacts as anybody would, and replays rows; `carry_out` starts it.

It answers on a pipe of its own, since a framework may print, and ends when the process that started it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any
from zipfile import ZipFile

import msgspec

from penstock.artifact.changes import find_changes
from penstock.artifact.opened_artifact import Artifact, open_artifact
from penstock.artifact.probes import read_recorded
from penstock.artifact.recorded import MadeRows, Recorded, RefusedRow
from penstock.artifact.replay_messages import (
    CHECK,
    FAR,
    MADE,
    REFUSED_ROWS,
    Begun,
    CheckRows,
    Compared,
    DiffOrder,
    Invalid,
    Message,
    Order,
    ProofOrder,
    Proved,
    Refused,
    WrongOption,
    message_to_line,
    order_from_text,
)
from penstock.artifact.replaying import refuse_outside, replay, replay_ids, replay_made, replay_refused, replay_rows
from penstock.artifact.row_stores import check_rows, mapped_rows
from penstock.artifact.served_model import open_model
from penstock.artifact.trusting import check_trust
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused
from penstock.hosting.tied_process import begin_tied


def main() -> None:
    """Do what the order in the arguments says: descriptors of the answer and of the lifeline, then JSON."""
    answers, lifeline, order = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.set_inheritable(answers, False)
    begin_tied(lifeline)
    with open(answers, "wb") as pipe:

        def tell(line: bytes) -> None:
            pipe.write(line)
            pipe.flush()  # what comes next may end this process

        tell(message_to_line(answer_to(order_from_text(order), tell=tell)))
    sys.stderr.flush()
    os._exit(0)  # a framework that crashes while it is taken down changes nothing about the answers


def answer_to(order: Order, *, tell: Callable[[bytes], object]) -> Message:
    """What came of an order; `tell` gets a line where a graph begins."""
    try:
        match order:
            case ProofOrder():
                return _prove(order, lambda message: tell(message_to_line(message)))
            case DiffOrder():
                return _compare(order, lambda message: tell(message_to_line(message)))
    except ExportRefused as error:
        return Refused(str(error), error.format, error.output, error.row, error.expected, error.got)
    except ArtifactInvalid as error:
        return Invalid(str(error), error.file)
    except ConfigError as error:
        return WrongOption(str(error))


def _open(path: str, order: Order, *, verify_rows: bool) -> Artifact:
    trust = order.trust or order.digest is not None
    return open_artifact(path, digest=order.digest, trust=trust, verify_rows=verify_rows)


def _compare(order: DiffOrder, tell: Callable[[Message], object]) -> Compared:
    before, after = open_artifact(order.before), _open(order.after, order, verify_rows=False)
    name = after.program(order.format)["model"].format
    tell(Begun(name))
    model = open_model(after, name, threads=order.threads)
    changes = find_changes(before, after, model)
    model.close()
    return Compared(changes)


def _prove(order: ProofOrder, tell: Callable[[Message], object]) -> Proved:
    artifact = _open(order.artifact, order, verify_rows=True)
    formats = order.formats or artifact.manifest.formats
    for name in formats:  # all of them before the first is opened
        check_trust(artifact.program(name)["model"].format, trusted=artifact.trusted)
    parts, made = [artifact.probes()], MadeRows(None, ())
    if order.check is not None:
        check, made = _more_rows(artifact, order.check)
        parts += [] if check is None else [check]
    if artifact.manifest.outside:
        check_rows(artifact, contents=True)
        with closing(mapped_rows(artifact)) as rows:
            for part in parts:
                replay_rows(rows, part)
    worst: dict[str, float] = {}
    for name in formats:
        tell(Begun(name))
        for output, difference in _replay_all(artifact, name, parts, made, order).items():
            worst[output] = max(difference, worst.get(output, 0.0))
    return Proved(rows=sum(len(part.rows) for part in parts), worst=worst)


def _more_rows(artifact: Artifact, check: CheckRows) -> tuple[Recorded | None, MadeRows]:
    """The validation rows, and those that were made."""
    manifest = artifact.manifest
    kinds: dict[str, Any] = {
        "inputs": artifact.features.inputs,
        "outputs": manifest.outputs,
        "ids": [(tensor, by_row) for tensor, by_row in manifest.ids if by_row],
        "tables": [table.shape for table in manifest.outside],
    }
    with open(check.descriptor, "rb") as file, ZipFile(file) as archive:  # noqa: PTH123  # a descriptor, no path
        found = [
            read_recorded(archive.read, folder, rows=rows, **kinds) if rows else None
            for folder, rows in ((CHECK, check.rows), (MADE, check.made), (FAR, check.far))
        ]
        refused = msgspec.json.decode(archive.read(REFUSED_ROWS), type=list[RefusedRow])
    return found[0], MadeRows(found[1], refused, found[2])


def _replay_all(
    artifact: Artifact,
    format: str,  # noqa: A002  # the word users know
    parts: list[Recorded],
    made: MadeRows,
    order: ProofOrder,
) -> dict[str, float]:
    model, tolerance = open_model(artifact, format, threads=order.threads), artifact.manifest.tolerance
    worst: dict[str, float] = {}
    first_row = 0
    for part in parts:
        deviations = replay(model, part, tolerance=tolerance, first_row=first_row)
        refuse_outside(deviations, format=format)
        for deviation in deviations:
            worst[deviation.output] = max(deviation.difference, worst.get(deviation.output, 0.0))
        first_row += len(part.rows)
    replay_refused(model, made.refused, parts[0].rows[0])
    if made.answered is not None:
        replay_made(model, made.answered, tolerance=tolerance)
    if made.far is not None and model.lookups is not None:
        replay_ids(model, model.lookups, made.far)
    model.close()
    return worst


if __name__ == "__main__":
    main()
