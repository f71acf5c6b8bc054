"""Write lines in a thread of their own, so that nobody else waits for who should read them.

Contract
--------
* `write` and `run` return at once, whatever becomes of what they were given.  `hurry` may take `FLUSH_SECONDS`, once
  until something is written again.
* Everything is written in the order in which it was handed over, as far as `Backlog` takes it.
* What cannot be written, because the disk is full or the reader has gone, is lost, and nothing else.  Its lines are
  counted.  Once something can be written there again, a new line begins, and a notice tells of them.
* No write holds more than one pipe takes as a whole, unless a single piece is longer: lines of several processes that
  share a pipe are not mixed.
* The foot, if there is one, stands below everything on a terminal, and what others write there does not touch it.
* Without its thread (before `start`, after `end`, in a fork) everything is written at once by who hands it over.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

from penstock.core.backlog import NOTICE_BYTES, Backlog

MAX_WAITING_BYTES = 8 * 1024 * 1024
"""Most that waits to be written in one process."""
GATHER_SECONDS = 0.010
"""How long the thread lets lines gather where it has written within that time; a line that comes alone goes at once.

To wake the thread for each line costs more CPU than the line.  What a process that is killed has written last may be
lost with it: that is why this is short.
"""
FLUSH_SECONDS = 0.010
"""How long `hurry` lets the thread have the interpreter.

What is flushed must not be lost where C code then keeps the interpreter, or ends the process: those lines say where.
It is written within a tenth of a millisecond, unless the pipe is full.
"""
FILE_WRITE_BYTES = 64 * 1024
"""Most bytes that are joined for one write to a file: the kernel keeps each write whole."""
BEHIND_BYTES = 1024 * 1024
GIVE_WAY_EVERY_BYTES = 64 * 1024
GIVE_WAY_SECONDS = 0.0001
"""A thread that prints without a pause keeps the interpreter from the thread that writes, and lines would be dropped
although they are read.  So beyond `BEHIND_BYTES` it sleeps that long for each 64 KiB it prints.  That is time for
twenty writes.  It does not wait for the reader: where there is no room it does not sleep."""

ERASE_LINE = b"\r\x1b[K"
"""Goes to the first column, and clears the line."""

_JOB = -1


class _Run:
    """What is written at once: bytes for one descriptor, or one job."""

    __slots__ = ("data", "fd", "job", "nbytes", "told")

    def __init__(
        self, fd: int, data: bytes, nbytes: int, job: Callable[[], object] | None = None, told: int = 0
    ) -> None:
        self.fd = fd
        self.data = bytearray(data)
        self.nbytes = nbytes
        self.job = job
        self.told = told
        """How many dropped lines its first line tells of."""


class _Lost:
    """What could not be written to a descriptor since something was."""

    __slots__ = ("lines", "within_line")

    def __init__(self) -> None:
        self.lines = 0
        """Lines of which no notice was written."""
        self.within_line = False
        """Whether the last line that was written is a part of one."""


class LineWriter:
    """Writes to the standard streams of a process, and runs what may block in writing.

    Args:
        notice: makes the line that tells how many lines were dropped.
        notice_fd: where that line goes; None: nowhere.
        gather: seconds for which lines gather, see `GATHER_SECONDS`.
        erases: whether another process has a foot on the terminal, which a line must erase before it is written.
    """

    def __init__(
        self,
        notice: Callable[[int], str],
        *,
        notice_fd: int | None = 2,
        max_bytes: int = MAX_WAITING_BYTES,
        gather: float = GATHER_SECONDS,
        erases: bool = False,
    ) -> None:
        # Reentrant: a signal handler or a finalizer may print in the middle of a print.
        self.lock = threading.RLock()
        self.backlog = Backlog(max_bytes)
        self._notice = notice
        self._notice_fd = notice_fd
        self._gather = gather
        self._runs: deque[_Run] = deque()
        self._thread: threading.Thread | None = None
        self._bell = threading.Lock()
        """Locked while there is nothing to do.  The thread sleeps on it."""
        self._asleep = False
        self._ending = False
        self._job: Callable[[], object] | None = None
        self._way_due = 0
        self._done = 0
        """How many runs were written."""
        self._stood_still_at = -1
        """What `_done` was when `hurry` waited in vain."""
        self._erases = erases
        self._foot = b""
        """What is to stand below everything on the terminal."""
        self._foot_fd = -1
        self._foot_due = False
        """Whether a job that draws it waits."""
        self._foot_drawn = b""
        self._line_begun = False
        """Whether the last write to a terminal ended within a line, while there was a foot, here or elsewhere."""
        self._lost: dict[int, _Lost] = {}
        """The descriptors to which the last write failed; only the thread that writes looks here."""

    @property
    def apart(self) -> bool:
        """Whether a thread writes.  Otherwise whoever hands over does."""
        return self._thread is not None

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that writes."""
        return self._thread

    @property
    def stuck_job(self) -> Callable[[], object] | None:
        """The job that runs now."""
        return self._job

    def start(self) -> None:
        """Write in a thread from now on."""
        self._asleep = True
        self._ending = False
        self._bell = threading.Lock()
        self._bell.acquire()
        # A daemon: at the exit of the interpreter nobody waits for a write that nobody reads.
        self._thread = threading.Thread(target=self._work, name="penstock-line-writer", daemon=True)
        self._thread.start()

    def write(self, fd: int, data: bytes, joined_bytes: int = 0) -> None:
        """Have `data` written to `fd`, in one write with what lies before it if that is at most `joined_bytes`."""
        nbytes = len(data)
        with self.lock:
            if self._thread is not None:
                backlog, runs = self.backlog, self._runs
                if not backlog.offer(nbytes):
                    backlog.drop(data.count(b"\n") or 1)
                    return
                if backlog.untold:
                    self._tell()
                if runs and (last := runs[-1]).fd == fd and last.nbytes + nbytes <= joined_bytes:
                    last.data += data
                    last.nbytes += nbytes
                else:
                    runs.append(_Run(fd, data, nbytes))
                if self._asleep:
                    self._asleep = False
                    self._bell.release()
                return
        write_all(fd, data)

    def run(self, job: Callable[[], object], nbytes: int = 0) -> None:
        """Have `job` run in its turn; it holds `nbytes`.  What it raises is dropped."""
        with self.lock:
            if self._thread is not None:
                if not self.backlog.offer(nbytes):
                    self.backlog.drop(1)
                    return
                if self.backlog.untold:
                    self._tell()
                self._append(_Run(_JOB, b"", nbytes, job))
                return
        with contextlib.suppress(Exception):
            job()

    def set_foot(self, foot: bytes, fd: int = -1) -> None:
        """Have `foot`, a part of a line, stand below everything on the terminal `fd` from now on; b"" takes it away.

        Nothing happens without the thread.  What is set while nobody reads is drawn once, when somebody reads again.
        """
        with self.lock:
            if self._thread is None:
                return
            self._foot = foot
            if foot:
                self._foot_fd = fd
            if not self._foot_due:
                self._foot_due = True
                self._append(_Run(_JOB, b"", 0, self._redraw_foot))

    def give_way(self, nbytes: int) -> None:
        """Let the thread get at the interpreter, after `nbytes` more were printed; `lock` must not be held."""
        self._way_due += nbytes
        if self._way_due >= GIVE_WAY_EVERY_BYTES:
            self._way_due = 0
            if self.apart and BEHIND_BYTES < self.backlog.waiting < self.backlog.max_bytes - GIVE_WAY_EVERY_BYTES:
                time.sleep(GIVE_WAY_SECONDS)

    def hurry(self) -> None:
        """Let the thread write what waits, unless that is much, or nothing has been written since this was in vain."""
        if self.apart and self.backlog.waiting <= select.PIPE_BUF and self._done != self._stood_still_at:
            done = self._done
            if not self.flush(FLUSH_SECONDS):
                self._stood_still_at = done if self._done == done else -1

    def flush(self, within: float) -> bool:
        """Wait until everything handed over before is written, at most `within` seconds; whether it is."""
        done = threading.Event()
        with self.lock:
            if self._thread is None or self._thread is threading.current_thread():
                return True
            self._append(_Run(_JOB, b"", 0, done.set))
        return done.wait(within)

    def end(self, within: float) -> bool:
        """Write all and end the thread, within so many seconds; otherwise change nothing.  Whether it has ended."""
        with self.lock:
            thread = self._thread
            if thread is None:
                return True
            self._ending = True
            self._ring()
        thread.join(within)
        with self.lock:
            self._ending = False
            return self._thread is None

    def forked(self) -> None:
        """Go on without the thread: there is none in this process, a fork of the one that started it."""
        self.lock = threading.RLock()
        self._runs.clear()
        self._foot = self._foot_drawn = b""
        self._foot_due = False
        self._thread = None

    # -- under the lock ---------------------------------------------------------------------------------------------

    def _append(self, run: _Run) -> None:
        self._runs.append(run)
        self._ring()

    def _ring(self) -> None:
        if self._asleep:
            self._asleep = False
            self._bell.release()

    def _tell(self) -> None:
        count = self.backlog.tell()
        if self._notice_fd is None:
            self.backlog.written(NOTICE_BYTES)
        else:
            self._runs.append(_Run(self._notice_fd, self._notice_line(count), NOTICE_BYTES, told=count))

    def _notice_line(self, count: int) -> bytes:
        return f"{self._notice(count)}\n".encode(errors="backslashreplace")

    # -- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        written = 0.0
        while True:
            self._bell.acquire()
            if time.monotonic() < written + self._gather and not self._ending:
                time.sleep(self._gather)
            while (run := self._next()) is not None:
                self._do(run)
                with self.lock:
                    self.backlog.written(run.nbytes)
                    self._done += 1
            written = time.monotonic()
            if self._thread is None:
                return

    def _next(self) -> _Run | None:
        with self.lock:
            if not self._runs and self.backlog.untold:
                self._tell()
            if self._runs:
                return self._runs.popleft()
            if self._ending:
                self._thread = None
            self._asleep = True
            return None

    def _do(self, run: _Run) -> None:
        if run.job is None:
            if not (self._foot or self._foot_drawn or self._erases) or not os.isatty(run.fd):
                self._write(run)
                return
            if self._erases and not self._line_begun:
                run.data[:0] = ERASE_LINE  # in the same write: the other process may draw at any time
            self._erase_foot()
            self._write(run)
            self._line_begun = not run.data.endswith(b"\n")
            self._draw_foot()
            return
        self._job = run.job
        with contextlib.suppress(Exception):
            run.job()
        self._job = None

    def _redraw_foot(self) -> None:
        with self.lock:
            self._foot_due = False
        if self._foot != self._foot_drawn:
            self._erase_foot()
            self._draw_foot()

    def _erase_foot(self) -> None:
        if self._foot_drawn:
            write_all(self._foot_fd, ERASE_LINE)
            self._foot_drawn = b""

    def _draw_foot(self) -> None:
        if self._foot and not self._line_begun:  # else it would stand behind the text, and be taken away with it
            self._foot_drawn = self._foot
            write_all(self._foot_fd, self._foot_drawn)

    def _write(self, run: _Run) -> None:
        lost = self._lost.get(run.fd)
        head = b"" if lost is None else self._head(run.fd, lost)
        data = head + run.data if head else run.data
        written = write_all(run.fd, data)
        if written == len(data):
            if lost is not None:
                del self._lost[run.fd]
                if run.fd != self._notice_fd:
                    with self.lock:
                        self.backlog.owe(lost.lines)
            return
        if lost is None:
            lost = self._lost[run.fd] = _Lost()
        elif written >= len(head) and run.fd == self._notice_fd:
            lost.lines = 0  # their notice was written
        if written:
            lost.within_line = data[written - 1 : written] != b"\n"
        cut = max(0, written - len(head))
        lines = run.data.count(b"\n", cut) or 1
        if run.told and b"\n" not in run.data[:cut]:
            lost.lines += run.told
            lines -= 1
        lost.lines += lines
        with self.lock:
            self.backlog.lose(lines)

    def _head(self, fd: int, lost: _Lost) -> bytes:
        """What comes before the next line to `fd`."""
        head = b"\n" if lost.within_line else b""
        return head + self._notice_line(lost.lines) if fd == self._notice_fd else head


def write_all(fd: int, data: bytes | bytearray) -> int:
    """Write `data` however long it takes; how many bytes of it could be written."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # whoever made this stream has made it so
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
        except OSError:
            break
    return len(data) - len(left)


def joined_bytes(fd: int) -> int:
    """How many bytes of several lines may be joined for one write to `fd`."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return FILE_WRITE_BYTES
    return select.PIPE_BUF
