"""Run a service's examples through it in this process, and say in seconds what is wrong.

The real path is used: inline workers, the same frames, the same codecs as over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder, ResultMismatch
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps
from penstock.codec.schema import Signature, accepts, offers, signature, type_name
from penstock.core.outcome import Failure, Outcome
from penstock.errors import ConfigError, InvalidItem, PenstockError, StageFailed, StartFailed
from penstock.service import Service
from penstock.worker.loading import pack_setup, reference


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `problem` is "" if it is well."""

    what: str
    problem: str = ""
    note: str = ""
    skipped: bool = False
    """Nothing was looked at, and `note` says why."""

    @property
    def mark(self) -> str:
        """The word in the table's first column."""
        if self.problem:
            return "[red]wrong[/red]"
        return "[yellow]skipped[/yellow]" if self.skipped else "[green]ok[/green]"


def check(service: Service, console: Console) -> int:
    """Check `service` and print a table of what was found; 0 if all is well, else 1."""
    started = time.monotonic()
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # what goes wrong is in the table
    findings = list(_describe(service))
    if not any(finding.problem for finding in findings):
        findings += asyncio.run(_run(service))
    table = Table(title=f"penstock check: {service.name}", title_justify="left")
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.mark, _plain(finding.what), _plain(finding.problem or finding.note))
    console.print(table)
    wrong = sum(bool(finding.problem) for finding in findings)
    seconds = time.monotonic() - started
    console.print(f"{wrong} wrong, {len(findings) - wrong} well, in {seconds:.1f} s", highlight=False)
    return 1 if wrong else 0


def _plain(text: str) -> str:
    return text.rstrip().replace("[", "\\[")


def _describe(service: Service) -> Iterator[Finding]:
    """What can be said without running anything."""
    for spec in service.stages:
        what = f"stage {spec.name}"
        try:
            if not service.inline:
                reference(spec.target)
            pack_setup(spec.name, dict(spec.setup))
            types = signature(spec.target, batched=spec.batch is not None)
        except ConfigError as error:
            yield Finding(what, str(error))
        else:
            yield Finding(what, note=f"{type_name(types.item)} -> {type_name(types.result)}")


async def _run(service: Service) -> list[Finding]:
    """Start the service inline and give it its examples."""
    rehearsal = service.configured(inline=True, validate=True, validate_results=True)
    try:
        await rehearsal.start()
    except StartFailed as error:
        return [Finding("setup and warm-up", str(error))]
    try:
        findings = [Finding("setup and warm-up", note="every stage is ready")]
        examples = service.stages[0].examples
        if not examples:
            name = service.stages[0].name
            note = f"stage {name} has none, so nothing was run through the service: set `examples = [...]` on it"
            findings.append(Finding("examples", note=note, skipped=True))
        for index, example in enumerate(examples):
            findings += await _run_example(rehearsal, f"examples[{index}]", example)
        return findings
    finally:
        await rehearsal.stop()


async def _run_example(service: Service, what: str, example: object) -> list[Finding]:
    first, last = service.stages[0], service.stages[-1]
    item = signature(first.target, batched=first.batch is not None)
    result = signature(last.target, batched=last.batch is not None)
    findings = []
    formats = sorted(accepts(item.item) - {Codec.MSGPACK}) or [Codec.JSON]
    for codec_in in formats:
        try:
            payload = _as_sent(codec_in, example, item)
        except InvalidItem as error:
            findings.append(Finding(f"{what} as {codec_in.name}", f"does not fit {type_name(item.item)}: {error}"))
            continue
        except (EncodeFailed, ResultMismatch) as error:
            findings.append(Finding(f"{what} as {codec_in.name}", f"cannot be sent: {error}"))
            continue
        for codec_out in offers(result.result):
            outcome = await _submit(service, payload, codec_in, codec_out)
            findings.append(_finding(f"{what} as {codec_in.name}, answered in {codec_out.name}", outcome))
    findings.append(_finding(f"{what} in process", await _submit(service, dumps(example), Codec.PICKLE, Codec.PICKLE)))
    return findings


def _as_sent(codec: Codec, example: object, types: Signature) -> bytes:
    """The example as a client would send it, after seeing that it decodes."""
    encoded = ItemEncoder(types.item).encode(codec, example)
    payload = b"".join(encoded) if isinstance(encoded, list) else bytes(encoded)
    ItemDecoder(types.item).decode(codec, payload)
    return payload


async def _submit(service: Service, payload: object, codec_in: Codec, codec_out: Codec) -> Outcome:
    engine = service.engine
    assert engine is not None
    future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    engine.submit([payload], codec_in, codec_out, math.inf, future.set_result)
    return (await future)[0]


def _finding(what: str, outcome: Outcome) -> Finding:
    if not isinstance(outcome, Failure):
        return Finding(what, note="answered")
    error: PenstockError = outcome.error
    if isinstance(error, StageFailed) and error.type_name.startswith("penstock."):
        return Finding(what, f"stage {error.stage}: {error.message}")
    return Finding(what, str(error))
