"""What `penstock` says and how it ends, without a program: the command line is called in this process.

A start of the program costs a second of CPU, and most of what it refuses it refuses before it does anything.  So only
the tests of what a process is (its end, its signals, its streams, its children) start one, by `served.run`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from penstock.cli import attached_program, check, findings, rehearsal
from penstock.cli.main import main
from penstock.cli.user_errors import UserCodeFailed
from penstock.errors import PenstockError
from penstock.hosting import handing_over
from penstock.hosting import signals as held_signals

INSTALLED = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}


class Spoken(NamedTuple):
    """How a command ended, and what it wrote to each stream."""

    status: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """What it wrote to standard error; it is a refusal in sentences, and nothing was written beside it."""
        assert self.out == ""
        assert "Traceback" not in self.err
        return self.err


def spoken(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Spoken:
    """Call `penstock` with `arguments` in `folder`; afterwards this process is as it was before."""
    return said_by(lambda: main(list(arguments)), folder, env)


def said_by(command: Callable[[], int], folder: Path, env: dict[str, str] | None = None) -> Spoken:
    """Call `command`, which returns an exit status or raises it, in `folder`.

    What the user's modules do to this process is taken back as far as a refusal, a check and a command of a moment
    need: a command that serves belongs into a process of its own.
    """
    with _in_folder(folder, env or {}), _own_modules(folder), _state_kept(), _written() as written:
        rehearsed = mock.patch.object(check, "CheckProcess", _Rehearsed)
        with rehearsed, mock.patch.object(attached_program, "AttachedSignals"):
            try:
                status = command()
            except SystemExit as end:  # of argparse
                status = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = map(_text_of, written)
    return Spoken(status, out, err)


class _Rehearsed:
    """Stands for the process of a check: the same reports, of a service that is rehearsed in this one."""

    def __init__(self, name: str, _patience: float, artifact: Any) -> None:
        self._name = name
        self._artifact = artifact

    def reports(self) -> Iterator[findings.Report]:
        lines: list[bytes] = []

        def tell(report: findings.Report) -> None:
            lines.append(findings.encode(report))

        try:
            rehearsal.rehearse(self._name, tell, self._artifact)
        except PenstockError as error:
            tell(findings.NothingToCheck(sentence=str(error)))
        except UserCodeFailed as failed:
            tell(findings.NothingToCheck(traceback=failed.traceback))
        yield from map(findings.decode, lines)

    def end(self) -> str:
        return "exit status 0"

    def printed(self) -> str:
        return ""


@contextlib.contextmanager
def _in_folder(folder: Path, env: dict[str, str]) -> Iterator[None]:
    """As the program has it: the folder, and the environment without the variables of Penstock of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with mock.patch.dict(os.environ, {**kept, **env}, clear=True), mock.patch.object(tempfile, "tempdir", None):
            os.chdir(folder)
            try:
                yield
            finally:
                os.fchdir(before)
    finally:
        os.close(before)


@contextlib.contextmanager
def _own_modules(folder: Path) -> Iterator[None]:
    """Modules below `folder` are imported afresh, from there, and forgotten in the end."""
    path, bytecode = sys.path[:], sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # of a source of equal size, written in the same second, it would be taken again
    names = {entry.stem for entry in folder.rglob("*")} - sys.stdlib_module_names - {"penstock"}
    # Other tests of this process have imported their own of these names; what is installed is found first as ever.
    hiding = {
        name: sys.modules.pop(name)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in names and not any(_is_below(module, place) for place in INSTALLED)
    }
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        sys.dont_write_bytecode = bytecode
        for name, module in list(sys.modules.items()):
            if _is_below(module, folder):
                del sys.modules[name]
        sys.modules.update(hiding)
        for place in [place for place in sys.path_importer_cache if Path(place).is_relative_to(folder)]:
            del sys.path_importer_cache[place]


def _is_below(module: object, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).is_relative_to(folder)


@contextlib.contextmanager
def _state_kept() -> Iterator[None]:
    """Signals, loggers and warnings are afterwards as they were."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    everyone: list[Any] = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [each for each in everyone if isinstance(each, logging.Logger)]
    kept = [(each, each.handlers[:], each.level, each.propagate, each.disabled) for each in loggers]
    call_handlers, handle = logging.Logger.callHandlers, logging.Handler.handle
    try:
        with warnings.catch_warnings(), mock.patch.object(warnings, "showwarning"):
            warnings.showwarning = warnings._showwarning_orig
            yield
    finally:
        logging.Logger.callHandlers, logging.Handler.handle = call_handlers, handle
        for logger, its_handlers, level, propagate, disabled in kept:
            logger.handlers[:] = its_handlers
            logger.setLevel(level)
            logger.propagate, logger.disabled = propagate, disabled
        handing_over._Process.now = None
        held_signals._Process.held = None
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _written() -> Iterator[tuple[int, int]]:
    """Put two files in memory in the place of both standard streams, as the descriptors and as Python's objects."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    kept = [os.dup(fd) for fd in (1, 2)]
    files = os.memfd_create("stdout"), os.memfd_create("stderr")
    try:
        for fd, file in zip((1, 2), files, strict=True):
            os.dup2(file, fd)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        yield files
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = streams
        for fd, before in zip((1, 2), kept, strict=True):
            os.dup2(before, fd)
        for fd in (*kept, *files):
            os.close(fd)


def _text_of(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode()
