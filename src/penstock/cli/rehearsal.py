"""The process of a check: run a service's examples through it, and report what is found.  Not called by people.

An example goes the way of a request: inline workers, the same frames, the same codecs as over HTTP.  Each step is
reported before it begins, and the end is reported last.  So the process that started this one knows at which step the
service's code ended, crashed or stopped it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import logging
import math
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.cli.find_service import load_service
from penstock.cli.findings import Done, Finding, MeasuringOrder, NothingToCheck, Report, Step, encode
from penstock.cli.lifeline import begin_below
from penstock.cli.measuring import Tell, measure, stages_to_measure
from penstock.cli.user_errors import UserCodeFailed
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder, ResultMismatch
from penstock.codec.example import Example, difference, input_of
from penstock.codec.fitting import cannot_fit
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps, loads
from penstock.codec.schema import Signature, type_name
from penstock.config import ArtifactOptions, ServerOptions
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.payload import Payload, join_payload
from penstock.errors import ConfigError, InvalidItem, PenstockError, StageFailed, StartFailed
from penstock.hosting.breakpoints import refuse_breakpoints
from penstock.runtime.gpus import gpus_here
from penstock.runtime.launching import doubts_about_gpus
from penstock.runtime.spec import StageSpec, external_stages
from penstock.runtime.stage_hooks import doubtful_hooks
from penstock.server.serve import check_before_serving
from penstock.service import Service
from penstock.worker.__main__ import restore_python_path
from penstock.worker.loading import pack_setup, reference
from penstock.worker.problems import author_name, describe_error

ORPHAN_GRACE_SECONDS = 5.0
"""How long after its patience this process ends itself: the process that should have ended it must have gone."""
LONGEST_TIMER_SECONDS = 1e6
"""A longer patience counts as this, since the system's timers take no more."""


def main() -> None:
    """Check the service `argv[1]`, report to the descriptor `argv[2]`, and allow each step `argv[3]` seconds.

    `argv[4]` is the descriptor of a lifeline: this process and its group end when the other end is closed.  `argv[5]`
    has the options of an artifact as JSON.  Where there is an `argv[6]`, it is a `MeasuringOrder` as JSON: then one
    stage is measured, and nothing is checked.
    """
    name, fd, patience, lifeline = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    artifact = msgspec.json.decode(sys.argv[5], type=ArtifactOptions)
    os.set_inheritable(fd, False)
    begin_below(lifeline)
    refuse_breakpoints()

    def tell(report: Report) -> None:
        faulthandler.dump_traceback_later(
            min(patience + ORPHAN_GRACE_SECONDS, LONGEST_TIMER_SECONDS), exit=True, file=2
        )
        left = encode(report)
        try:
            while left:
                left = left[os.write(fd, left) :]
        except OSError as error:
            sys.exit(
                f"cannot report the results of the check: {error.strerror}; does the service close "
                "every file descriptor?"
            )

    try:
        if sys.argv[6:]:
            restore_python_path()
            measure(name, tell, artifact, msgspec.json.decode(sys.argv[6], type=MeasuringOrder))
        else:
            rehearse(name, tell, artifact)
    except PenstockError as error:
        tell(NothingToCheck(sentence=str(error)))
    except UserCodeFailed as failed:
        tell(NothingToCheck(traceback=failed.traceback))
    except Exception:  # noqa: BLE001
        # A mistake of ours, for all we know: every frame of it is wanted.
        tell(NothingToCheck(traceback=traceback.format_exc()))


def rehearse(name: str, tell: Tell, artifact: ArtifactOptions) -> None:
    """Check the service `name`; PenstockError, or what the module raised, if there is nothing to check."""
    tell(Step("import"))
    service = load_service(name, artifact)
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # what goes wrong is reported instead
    tell(Step("declarations"))
    well = True
    for finding in _describe(service):
        tell(finding)
        well = well and not finding.problem
    if well:
        try:
            check_before_serving([service], ServerOptions())
        except ConfigError as error:
            tell(Finding(f"service {service.name}", str(error)))
        for stage in stages_to_measure(service):
            tell(stage)
        for part in _runnable(service):
            asyncio.run(_run(part, tell))
    tell(Done())


def _describe(service: Service) -> Iterator[Finding]:
    """What can be found without running anything."""
    given: Any = Any
    """What the stage before returns."""
    from_outside = True
    for spec in service.stages:
        what = f"stage {spec.name}"
        try:
            if spec.external is None and not service.inline:
                reference(spec.target)
            pack_setup(spec.name, dict(spec.setup))
            types = spec.signature()
            if from_outside:
                spec.accepts()
        except ConfigError as error:
            yield Finding(what, str(error))
            given = Any
        else:
            yield Finding(what, note=f"{type_name(types.item)} -> {type_name(types.result)}")
            if cannot_fit(given, types.item):
                words = (
                    f"it expects `{type_name(types.item)}`, but the stage before returns "
                    f"`{type_name(given)}`: change one of them, or annotate it as `Any`"
                )
                yield Finding(what, note=words, warning=True)
            given = types.result
            if spec.external is not None:
                yield Finding(what, note="not run: its workers are remote", skipped=True)
            else:
                for words in doubtful_hooks(spec.target):
                    yield Finding(what, note=words, warning=True)
                if not service.inline:
                    yield from _gpus(what, spec)
        from_outside = spec.external is not None


def _gpus(what: str, spec: StageSpec) -> Iterator[Finding]:
    """Findings about the GPUs of a stage's workers."""
    try:
        for words in doubts_about_gpus(spec, gpus_here(os.environ)):
            yield Finding(what, note=words, warning=True)
    except ConfigError as error:
        yield Finding(what, str(error))


def _runnable(service: Service) -> list[Service]:
    """Parts of the service that run by themselves: each row of stages without a remote one between."""
    if not external_stages(service.stages):
        return [service]
    rows: list[list[StageSpec]] = [[]]
    for spec in service.stages:
        if spec.external is None:
            rows[-1].append(spec)
        else:
            rows.append([])
    options = dataclasses.replace(service.options, remote_worker_socket=None)
    return [Service(*row, name=service.name, options=options) for row in rows if row]


async def _run(service: Service, tell: Tell) -> None:
    """Start the service inline and give it its examples."""
    # Nobody else is there: whom the service would refuse under load says nothing of its examples.
    rehearsal = service.configured(
        inline=True,
        validate_inputs=True,
        validate_results=True,
        tenants_file=None,
        min_free_memory=0,
        admission="capacity",
    )
    tell(Step("setup and warm-up"))
    warnings = _Warnings()
    problem = ""
    try:
        await rehearsal.start()
    except StartFailed as error:
        problem = str(error)
    finally:
        warnings.end()
    for text in warnings.texts:  # first: they may say why it failed
        tell(Finding("setup and warm-up", note=text, warning=True))
    if problem:
        tell(Finding("setup and warm-up", problem))
        return
    try:
        tell(Finding("setup and warm-up", note="every stage is ready"))
        for stage, spec in zip(rehearsal.engine.stages if rehearsal.engine else (), rehearsal.stages, strict=True):
            most = spec.batch.max_size if spec.batch is not None else 1
            if stage.max_size < most:
                note = f"{stage.max_size} of its examples ran in one batch, but {most} (max_size) ran out of memory"
                tell(Finding(f"memory of stage {stage.name}", note=note, warning=True))
        examples = service.stages[0].examples
        if not examples:
            name = service.stages[0].name
            note = f"stage {name} has no examples, so nothing was run through the service: set `examples = [...]` on it"
            tell(Finding("examples", note=note, skipped=True))
        for index, example in enumerate(examples):
            await _run_example(rehearsal, f"examples[{index}]", input_of(example), tell)
            if type(example) is Example and len(service.stages) == 1:
                await _run_answer(rehearsal, f"examples[{index}] and its answer", example, tell)
    finally:
        tell(Step("teardown"))
        await rehearsal.stop()


async def _run_example(service: Service, what: str, example: object, tell: Tell) -> None:
    item = service.stages[0].signature()
    formats = sorted(service.stages[0].accepts())
    for codec_in in formats:
        sent = f"{what} as {codec_in.name}"
        tell(Step(sent))
        try:
            payload = _as_sent(codec_in, example, item)
        except InvalidItem as error:
            tell(Finding(sent, f"does not fit {type_name(item.item)}: {error}"))
            continue
        except (EncodeFailed, ResultMismatch) as error:
            tell(Finding(sent, f"cannot be sent: {error}"))
            continue
        except Exception as error:  # noqa: BLE001  # the checks of a type are the user's code
            found = describe_error(error)
            tell(Finding(sent, f"a check of its type raised {found.type_name} at {found.raised_at}: {found.message}"))
            continue
        outcomes: dict[str, Outcome] = {}
        for codec_out in service.stages[-1].offers():
            answered = f"{sent}, answered in {codec_out.name}"
            tell(Step(answered))
            outcomes[answered] = await _submit(service, payload, codec_in, codec_out)
        for finding in _findings(outcomes):
            tell(finding)
    in_process = f"{what} in process"
    tell(Step(in_process))
    try:
        pickled = dumps(example)
    except ValueError as error:
        tell(Finding(in_process, f"cannot be sent: {error}"))
    else:
        tell(_finding(in_process, await _submit(service, pickled, Codec.PICKLE, Codec.PICKLE)))


async def _run_answer(service: Service, what: str, example: Example, tell: Tell) -> None:
    tell(Step(what))
    try:
        pickled = dumps(example.input)
    except ValueError:
        return  # it was told of the example
    outcome = await _submit(service, pickled, Codec.PICKLE, Codec.PICKLE)
    if not isinstance(outcome, Result):
        return  # it was told as an error of the example
    try:
        came = loads(join_payload(outcome.payload))
    except ValueError as error:
        tell(Finding(what, f"the response {error}"))
        return
    try:
        words = difference(example.output, came, example.tolerance)
    except Exception as error:  # noqa: BLE001  # to compare objects is the user's code
        found = describe_error(error)
        words = f"cannot compare the response: {found.type_name} at {found.raised_at}: {found.message}"
    tell(Finding(what, words, note="" if words else "as expected"))


def _as_sent(codec: Codec, example: object, types: Signature) -> bytes:
    """The example as a client would send it; raises if it cannot be written so, or not be read again."""
    encoded = ItemEncoder(types.item).encode(codec, example)
    payload = bytes(join_payload(encoded))
    ItemDecoder(types.item).decode(codec, payload)
    return payload


async def _submit(service: Service, payload: Payload, codec_in: Codec, codec_out: Codec) -> Outcome:
    engine = service.engine
    assert engine is not None
    future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    engine.submit([payload], codec_in, codec_out, math.inf, future.set_result)
    return (await future)[0]


class _Warnings(logging.Handler):
    """Keeps what the workers warn of while the service starts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self._logger = logging.getLogger("penstock.worker")
        self._logger.setLevel(logging.WARNING)
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one of them."""
        self.texts.append(record.getMessage())

    def end(self) -> None:
        """Keep no more."""
        self._logger.removeHandler(self)
        self._logger.propagate = True
        self._logger.setLevel(logging.NOTSET)


def _findings(outcomes: dict[str, Outcome]) -> list[Finding]:
    """What is found of one example that was asked for in several formats.

    A format that cannot carry its result, where another one does, is no more than a warning.
    """
    carried = any(not isinstance(outcome, Failure) for outcome in outcomes.values())
    findings = []
    for what, outcome in outcomes.items():
        finding = _finding(what, outcome)
        if carried and isinstance(outcome, Failure) and _is_format_trouble(outcome.error):
            finding = Finding(what, note=finding.problem, warning=True)
        findings.append(finding)
    return findings


def _is_format_trouble(error: PenstockError) -> bool:
    """Whether a result could not be written in one format; a result of another type than declared is worse."""
    return isinstance(error, StageFailed) and error.type_name == author_name(EncodeFailed)


def _finding(what: str, outcome: Outcome) -> Finding:
    if not isinstance(outcome, Failure):
        return Finding(what, note="answered")
    error: PenstockError = outcome.error
    if isinstance(error, StageFailed) and error.type_name.startswith("penstock."):
        return Finding(what, f"stage {error.stage}: {error.message}")
    return Finding(what, str(error))


if __name__ == "__main__":
    main()
