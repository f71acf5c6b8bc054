"""Serve, and serve anew when a file changes: `penstock serve --reload`.

This process keeps the sockets and never accepts.  A child serves, on the sockets that it inherits.  So while no child
serves, connections wait in the kernel, and the next child answers them.  What is done when is decided in
`reloading.py`; here it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from penstock.cli.python_files import Found
from penstock.cli.reloading import END_SECONDS, TRIAL_SECONDS, Do, Phase, Reloading
from penstock.cli.saying import Say
from penstock.cli.watched import need_watchfiles, watch
from penstock.codec.text import printable
from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.hosting.given_sockets import sockets_given
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.notifying import RunObserver, notifier_of
from penstock.hosting.signals import Action, Terminal, action_of, hold_signals, taking_signals
from penstock.hosting.unix_sockets import remove_unix
from penstock.option_fields import environment_name
from penstock.runtime.process import describe_exit
from penstock.server.http1.binding import bind_sockets, tls_context

SERVE = "serve"
TRY = "try"
"""What a child is to do: serve, or import what has changed."""
TRIED_WELL = 97
"""The exit status of a trial that found nothing wrong; 0 is what a module that ends the process gives."""
MOST_NAMES = 3
"""Most files that a line names."""
MOST_OUTPUT = 64 * 1024
"""Most bytes that are kept of what a trial writes: its end says what is wrong."""
NOBODY_SERVES = "waiting for a change; requests are queued until then"
PASSED_ON = {signal.SIGHUP, signal.SIGUSR1}
"""Signals that the child gets from us at any time.  It is born with them blocked, until it takes them."""


def serve_reloading(words: Sequence[str], options: ServerOptions, say: Say) -> int:
    """Run the command line `words` in children until told to stop; the exit status of the last one.

    Raises:
        ConfigError: watchfiles is not installed, or an option cannot be as it is.
        StartFailed: the port cannot be opened.
    """
    need_watchfiles()
    try:
        root = Path.cwd()
    except OSError as error:
        raise ConfigError(f"cannot use the current directory: {error.strerror}; change to another one") from None
    tls_context(options)  # a certificate that cannot be used does not become better by an edit
    given = sockets_given()
    sockets, file = (given, None) if given else bind_sockets(options)
    hold_signals()
    try:
        # asyncio's own loop may sleep on after a signal that came just before it slept; uvloop wakes for each.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            observer = notifier_of(_told_words, lambda: "", LoopClock())
            return runner.run(_Run(words, sockets, root, say, observer).run())
    finally:
        for sock in sockets:
            sock.close()
        if options.uds is not None and file is not None:
            remove_unix(options.uds, file)


def _told_words(stopping: bool) -> str:  # see `Notifier`
    """What systemd is told of this process: it listens, and what comes waits until a child serves."""
    return "stopping" if stopping else "listening; restarts when a file changes"


class _Run:
    """One run of the command, over all the children it has."""

    def __init__(
        self, words: Sequence[str], sockets: Sequence[socket.socket], root: Path, say: Say, observer: RunObserver
    ) -> None:
        self._observer = observer
        self._words = words
        self._sockets = sockets
        self._root = root
        self._say = say
        self._core = Reloading()
        self._service: _Child | None = None
        self._trial: _Child | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told_to_end = signal.SIGTERM
        self._status = 0
        self._ended_at = 0.0
        """When the last service ended, by the clock that dates files: it may have written some itself."""
        self._untold: set[Path] = set()
        """Files that have changed since the last service or trial was started."""
        self._begun = False
        self._over = asyncio.Event()
        self._failure: Exception | None = None
        self._terminal = Terminal()

    async def run(self) -> int:
        """Watch, start, and go on until the core has stopped."""
        loop = asyncio.get_running_loop()

        def tell(found: Found) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed, found)

        def fail(error: Exception) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._cannot_watch, error)

        with taking_signals(self._signalled):
            stop_watching = watch(self._root, tell, fail)
            self._observer.ready()
            try:
                await self._over.wait()
            finally:
                self._observer.ended()
                stop_watching()
                if self._timer is not None:
                    self._timer.cancel()
        if self._failure is not None:
            raise ConfigError(f"--reload cannot watch {printable(str(self._root))}: {self._failure}")
        return self._status

    # -- events

    def _changed(self, found: Found) -> None:
        if not self._begun:
            self._begun = True
            self._say(f"--reload watches the .py files under {printable(str(self._root))}")
            self._do(self._core.begin() if self._core.phase is Phase.WAITING else [])
        files = found.changed
        if self._core.phase is Phase.WAITING:
            # Who saves a file as it is wants to try again: what was wrong may have been mended elsewhere.
            files = files or [file for file in found.rewritten if _written_since(file, self._ended_at)]
        if files:
            self._untold.update(files)
            self._do(self._core.changed(self._now()))

    def _cannot_watch(self, error: Exception) -> None:
        self._failure = error
        self._do(self._core.stop(self._now()))

    def _signalled(self, number: int) -> None:
        stopping = self._core.phase is Phase.STOPPING
        match action_of(number, draining=stopping, terminal_closed=self._terminal.closed):
            case Action.DRAIN:
                # A closed terminal begins with SIGHUP, which a child that starts just then would take for another.
                self._told_to_end = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
                self._observer.stopping(END_SECONDS)
                self._do(self._core.stop(self._now()))
            case Action.END:
                self._pass_on(number)
                self._core.hurry(self._now())
                self._set_timer()
            case Action.RENEW | Action.REPORT | Action.NOTHING:
                self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._service is not None:
            self._service.send(number)

    def _service_ended(self, status: int) -> None:
        self._service = None
        self._ended_at = time.time()
        phase = self._core.phase
        if phase is Phase.STOPPING:
            self._status = status if status >= 0 else 128 - status
        elif phase is not Phase.ENDING:
            # Beside a trial there is a change already.
            then = NOBODY_SERVES if phase is Phase.RUNNING else "restarting it"
            self._say(f"the service exited: {describe_exit(status)}; {then}", logging.ERROR)
        self._do(self._core.ended())

    def _trial_ended(self, status: int) -> None:
        trial, self._trial = self._trial, None
        assert trial is not None
        well = status == TRIED_WELL
        if not well:
            trial.show(self._say)
            if status != 1:
                self._say(f"the process exited during import: {describe_exit(status)}", logging.WARNING)
            self._say("keeping the previous version", logging.WARNING)
        self._do(self._core.tried(self._now(), well=well))

    def _due(self) -> None:
        self._timer = None
        self._do(self._core.at(self._now()))

    # -- what is done

    def _do(self, orders: list[Do]) -> None:
        for order in orders:
            match order:
                case Do.START:
                    self._start()
                case Do.END:
                    self._end()
                case Do.KILL:
                    if self._service is not None:
                        self._say("the service did not exit in time: killing it", logging.WARNING)
                        self._service.kill()
                case Do.TRY:
                    self._try()
                case Do.GIVE_UP_TRIAL:
                    if self._trial is not None:
                        self._trial.give_up()
                        self._trial = None
                case Do.TELL_IT_HANGS:
                    words = f"the import did not finish within {TRIAL_SECONDS:g} s; keeping the previous version"
                    self._say(words, logging.WARNING)
        self._set_timer()
        if self._core.phase is Phase.STOPPED:
            self._over.set()

    def _tell_changes(self) -> None:
        """Name what has changed, in one line for all that is looked at together."""
        names = [printable(str(file.relative_to(self._root))) for file in sorted(self._untold)]
        self._untold.clear()
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            self._say(f"changed: {', '.join(names[:MOST_NAMES])}{more}")

    def _start(self) -> None:
        self._tell_changes()
        try:
            self._service = _Child(SERVE, self._words, self._root, self._sockets, self._service_ended, output=None)
        except OSError as error:
            self._say(f"cannot start the service: {error.strerror}; {NOBODY_SERVES}", logging.ERROR)
            self._do(self._core.ended())

    def _end(self) -> None:
        assert self._service is not None
        stopping = self._core.phase is Phase.STOPPING
        self._service.send(self._told_to_end if stopping else signal.SIGTERM)

    def _try(self) -> None:
        self._tell_changes()
        try:
            self._trial = _Child(TRY, self._words, self._root, (), self._trial_ended, output=bytearray())
        except OSError as error:
            self._say(f"cannot load the change: {error.strerror}", logging.WARNING)
            self._do(self._core.tried(self._now(), well=False))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._due)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _written_since(file: Path, moment: float) -> bool:
    try:
        return file.stat().st_mtime > moment
    except OSError:  # it has gone again, which will be told
        return False


class _Child:
    """A child, leader of a group of its own; `on_end` is called with its status, negative for a signal.

    A terminal sends its signals to our group alone, so the child gets each of them once, from us.  With `output` what
    it writes is kept there, otherwise it is written where ours is.
    """

    def __init__(
        self,
        what: str,
        words: Sequence[str],
        folder: Path,
        sockets: Sequence[socket.socket],
        on_end: Callable[[int], None],
        *,
        output: bytearray | None,
    ) -> None:
        self._on_end = on_end
        self._output = output
        self._pipe: int | None = None
        descriptors = [sock.fileno() for sock in sockets]
        theirs, self._lifeline = os.pipe()
        pipe: int | None = None
        if output is not None:
            self._pipe, pipe = os.pipe()
            os.set_blocking(self._pipe, False)
        command = [sys.executable, "-P", "-m", "penstock.cli.reload_child", what, str(theirs)]
        command += [",".join(map(str, descriptors)), *words]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            # Our own interpreter and module; the words are arguments of their own, never read by a shell.
            self._popen = subprocess.Popen(  # noqa: S603
                command,
                cwd=folder,  # ours may be a folder that was removed, with another one in its place
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                pass_fds=(theirs, *descriptors),
                process_group=0,
                env=child_environment(os.environ),
            )
        except OSError:
            os.close(self._lifeline)
            if self._pipe is not None:
                os.close(self._pipe)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(theirs)
            if pipe is not None:
                os.close(pipe)
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._ended)
        if self._pipe is not None:
            self._loop.add_reader(self._pipe, self._read)

    def send(self, number: int) -> None:
        """Send the child a signal."""
        # Not by `Popen`, which would take the status where the child has ended: then others may get its id.
        os.kill(self._popen.pid, number)

    def kill(self) -> None:
        """Kill the child and its group; `on_end` is called."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def give_up(self) -> None:
        """Kill the child; nobody is told."""
        self._on_end = lambda _status: None
        self.kill()

    def show(self, say: Say) -> None:
        """Say what the child has written."""
        text = bytes(self._output or b"").decode(errors="replace").rstrip()
        if text:
            say(f"cannot load the change:\n{text.removeprefix('penstock: ')}", logging.WARNING)

    def _read(self) -> None:
        assert self._pipe is not None
        assert self._output is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                piece = os.read(self._pipe, 1 << 16)
                self._output += piece
                del self._output[:-MOST_OUTPUT]
                if not piece:
                    self._loop.remove_reader(self._pipe)
                    return

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._pipe is not None:
            self._read()
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
        # Before the wait: until then no other group can have its id.
        self.kill()
        status = self._popen.wait()
        os.close(self._pidfd)
        os.close(self._lifeline)
        self._on_end(status)


def child_environment(environ: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """The environment of a child: no bytecode is written, and the child does not reload in its turn.

    Python takes bytecode for that of a source with the same size and the same second of its last change.  An edit of
    equal size within a second would not be seen.
    """
    return {**environ, "PYTHONDONTWRITEBYTECODE": "1", environment_name("reload"): ""}
