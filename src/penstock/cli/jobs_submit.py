"""`penstock jobs submit`: one input from the command line or a file, or many from the lines of one.

Contract
--------
* Lines are submitted in batches, so that a file of any length takes little memory.  A batch is kept whole or not at
  all.
* A line that is no input ends the command.  It says which line and why, and how many jobs were submitted before.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from penstock.cli.jobs_shown import show_jobs, write_lines
from penstock.cli.options import WronglyCalled
from penstock.errors import ConfigError, InputTooLarge, InvalidItem, PenstockError
from penstock.hosting.stdio import is_terminal, write_stderr_line
from penstock.jobs.inputs import encode_input
from penstock.jobs.submitting import JobQueue
from penstock.option_fields import flag_name

JSON: Final = "application/json"
LINES_IN_BATCH: Final = 500
STANDARD_INPUT: Final = "-"
_TYPES_OF_FILES: Final = {".json": JSON, ".msgpack": "application/msgpack", ".npy": "application/x-npy"}
_BYTES: Final = "application/octet-stream"
_OF_ONE_JOB: Final = ("id", "key", "content_type", "input_url")
"""The options that many jobs cannot have in common."""
_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "priority": int,
    "delay": float,
    "deadline": float,
    "key": str,
    "id": str,
    "service": str,
    "input_url": str,
    "output_url": str,
    "content_type": str,
    "accept": str,
}
"""The options of a job that are flags, and what reads each."""


def submit_from(queue: JobQueue, arguments: argparse.Namespace) -> int:
    """Submit what `arguments` name, and write the ids of the jobs; the exit status.

    Raises:
        WronglyCalled: there is no input, or more than one, or an option has a value that it cannot have.
        PenstockError: a file cannot be read, a line is no input, or the store refuses.
    """
    given = [name for name in ("input", "file", "jsonl", "input_url") if getattr(arguments, name) is not None]
    if len(given) != 1:
        raise WronglyCalled(ConfigError("no input; write one: JSON, --file PATH, --jsonl PATH, or --input-url URL"))
    options = job_options(arguments)
    if arguments.jsonl is not None:
        return _submit_lines(
            queue, arguments.jsonl, options, as_json=arguments.json, max_inline=arguments.max_inline_bytes
        )
    if arguments.input is not None:
        options.setdefault("content_type", JSON)
        job = _submit_text(queue, arguments.input, options)
    elif arguments.file is not None:
        options.setdefault("content_type", _TYPES_OF_FILES.get(Path(arguments.file).suffix.lower(), _BYTES))
        job = _checked(queue.submit, _read_input(arguments.file, arguments.max_inline_bytes), **options)
    else:
        job = _checked(queue.submit, **options)
    try:
        show_jobs([job], as_json=True) if arguments.json else write_lines([job.id])
    except PenstockError as error:
        raise PenstockError(f"job {job.id} was submitted, but {error}") from None
    return 0


def job_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of a job that `arguments` set; raises WronglyCalled for one that cannot be read."""
    found = {}
    for name, read in _OPTIONS.items():
        text = getattr(arguments, name)
        if text is not None:
            try:
                found[name] = read(text)
            except ValueError:
                expected = "an integer" if read is int else "a number"
                words = f"{flag_name(name)}: expected {expected}, got {text!r}"
                raise WronglyCalled(ConfigError(words)) from None
    return found


def _submit_text(queue: JobQueue, text: str, options: dict[str, Any]) -> Any:
    try:
        return _checked(queue.submit, text.encode("utf-8", "surrogateescape"), **options)
    except WronglyCalled as wrong:
        if options["content_type"] == JSON and isinstance(wrong.error.__cause__, InvalidItem):
            hint = f"{wrong.error}; a string needs quotes: '\"{text[:20]}\"'"
            raise WronglyCalled(ConfigError(hint)) from None
        raise


def _checked(submit: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What `submit` returns; what is wrong with its arguments is a wrong call of the command."""
    try:
        return submit(*args, **options)
    except (ConfigError, InvalidItem, InputTooLarge) as error:
        wrong = ConfigError(str(error))
        wrong.__cause__ = error
        raise WronglyCalled(wrong) from None


def _read_input(file: str, max_inline: int) -> bytes:
    """The bytes of a file, of one that is too large only the first ones too many."""
    with _opened(file) as stream:
        return stream.read(max_inline + 1)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    try:
        if file == STANDARD_INPUT:
            if sys.stdin is None:  # it was closed when Python started
                raise PenstockError("standard input is closed: there is no input to read")
            yield sys.stdin.buffer
        else:
            with Path(file).open("rb") as stream:
                yield stream
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror or error}") from None


# -- many -------------------------------------------------------------------------------------------------------------


class _Lines:
    """The inputs in the lines of a file; blank lines are none, nor is the byte order mark that some editors write."""

    def __init__(self, file: str, stream: IO[bytes], max_inline: int) -> None:
        self._file = file
        self._stream = stream
        self._max_inline = max_inline
        self._number = 0
        self.read_bytes = 0

    def batch(self) -> list[bytes]:
        """The next inputs; none at the end of the file.

        Raises:
            PenstockError: a line is no input.
        """
        found: list[bytes] = []
        # A longer line is not read to its end: a file without line ends would take all memory.
        most = self._max_inline + len(codecs.BOM_UTF8) + len(b"\r\n") + 1
        while len(found) < LINES_IN_BATCH and (line := self._stream.readline(most)):
            self._number += 1
            self.read_bytes += len(line)
            if self._number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                found.append(self._input(line.strip()))
        return found

    def _input(self, line: bytes) -> bytes:
        where = f"{'standard input' if self._file == STANDARD_INPUT else self._file}, line {self._number}"
        if len(line) > self._max_inline:
            raise PenstockError(f"{where}: the input is larger than {self._max_inline} bytes (--max-inline-bytes)")
        try:
            return encode_input(line, JSON).body
        except InvalidItem as error:
            raise PenstockError(f"{where}: {error}") from None


def _submit_lines(queue: JobQueue, file: str, options: dict[str, Any], *, as_json: bool, max_inline: int) -> int:
    for name in _OF_ONE_JOB:
        if name in options:
            raise WronglyCalled(ConfigError(f"{flag_name(name)} is for a single job, but --jsonl submits several"))
    submitted = 0
    try:
        with _opened(file) as stream, _progress(file) as advance:
            lines = _Lines(file, stream, max_inline)
            while batch := lines.batch():
                entries = [{**options, "input": line, "content_type": JSON} for line in batch]
                jobs = _checked(queue.submit_many, entries)
                submitted += len(jobs)
                advance(lines.read_bytes)
                if as_json:
                    show_jobs(jobs, as_json=True)
                elif not is_terminal(sys.stdout):
                    write_lines([job.id for job in jobs])
    except KeyboardInterrupt:
        write_stderr_line(f"interrupted; {submitted} jobs were submitted")
        return 128 + signal.SIGINT
    except PenstockError as error:
        raise PenstockError(f"{error}; {submitted} jobs were submitted before this line, and none after it") from None
    write_stderr_line(f"{submitted} jobs submitted")
    return 0


@contextlib.contextmanager
def _progress(file: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, which is told how many bytes were read; elsewhere nothing."""
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console  # `penstock serve` needs none of it
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    size = None if file == STANDARD_INPUT else Path(file).stat().st_size or None
    columns = (TextColumn("submitting"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda read: bar.update(task, completed=read)
