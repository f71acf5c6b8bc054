"""Text streams that stand for standard output and standard error, and hand everything over to a `LineWriter`.

A stream gives away whole lines: what is printed without an end of line waits for one, or for `flush`, as it does in
Python's own streams.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from penstock.hosting.line_writer import LineWriter, joined_bytes
from penstock.hosting.printed_objects import Marks, PrintedObjects


class LineStream(io.TextIOWrapper):
    """Standard output or standard error, which nobody waits for; `original` is the stream it stands for.

    `hurried`: what is flushed is written at once if the reader reads.  The thread of an event loop has no time for it.
    """

    def __init__(self, original: io.TextIOWrapper, writer: LineWriter, *, hurried: bool) -> None:
        self._hurried = hurried
        self.original = original
        self.writer = writer
        self._bytes = _LineBytes(original, writer)
        super().__init__(
            self._bytes, encoding=original.encoding, errors=original.errors, newline="\n", line_buffering=True
        )
        self.mode = original.mode  # type: ignore[misc]  # Python sets it in the same way

    # The lock: Python's own class loses text where one thread writes while another one empties its buffer.

    def write(self, text: str, /) -> int:
        """Hand over what is a whole line by now."""
        with self.writer.lock:
            count = super().write(text)
        self.writer.give_way(count)
        return count

    def flush(self) -> None:
        """Hand over the line that has no end yet."""
        with self.writer.lock:
            super().flush()
        if self._hurried:
            self.writer.hurry()

    def write_line(self, words: str) -> None:
        """Hand over one line; cheaper than `write`, and never within a line that another thread has begun."""
        if self.closed:
            raise ValueError("write to closed file")
        self._bytes.hand_over((words + "\n").encode(self.encoding, self.errors or "strict"))

    def write_objects(self, make: Callable[[str, Marks], str], marks: Callable[[], Marks]) -> None:
        """Make an object of each line that is printed from now on, as `PrintedObjects` does."""
        with self.writer.lock:
            # Each piece of a line goes there at once: its marks are those of now.
            self.reconfigure(write_through=True)
            self._bytes.write_objects(PrintedObjects(make, marks, self.encoding))

    def write_plain(self) -> None:
        """Write lines as they are from now on."""
        with self.writer.lock:
            self._bytes.write_objects(None)

    def write_rest(self) -> None:
        """Hand over the line that has no end, also where it would wait for one to be an object."""
        self.flush()
        with self.writer.lock:
            self._bytes.write_rest()

    def show_below(self, words: str) -> None:
        """Have `words` stand below everything on this stream's terminal from now on; "" takes them away."""
        self.writer.set_foot(words.encode(self.encoding, "replace"), self.fileno())


class _LineBytes(io.BufferedIOBase):
    """The bytes of a `LineStream`: `sys.stdout.buffer`.  To close it does not close the descriptor."""

    def __init__(self, original: io.TextIOWrapper, writer: LineWriter) -> None:
        self._fd = original.fileno()
        self._tty = original.isatty()
        self._writer = writer
        self._joined_bytes = joined_bytes(self._fd)
        self._objects: PrintedObjects | None = None
        self.name = original.name
        self.mode = "wb"

    def write(self, data: Any, /) -> int:
        """Hand over `data` as it is."""
        if self.closed:
            raise ValueError("write to closed file")
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        if self._objects is None:
            self.hand_over(data)
            return len(data)
        with self._writer.lock:
            self.hand_over(self._objects.feed(data))
        return len(data)

    def flush(self) -> None:
        """Hand over the line that has no end where the process ends, or is a fork: nobody may come back for it."""
        super().flush()
        if not self._writer.apart:
            with self._writer.lock:
                self.write_rest()

    def hand_over(self, data: bytes) -> None:
        """Have `data` written, whatever it is."""
        if data:
            self._writer.write(self._fd, data, self._joined_bytes)

    def write_objects(self, objects: PrintedObjects | None) -> None:
        """Make objects of lines from now on, or no more; the writer's lock is held."""
        self.write_rest()
        self._objects = objects

    def write_rest(self) -> None:
        """Hand over the object of the line that has no end; the writer's lock is held."""
        if self._objects is not None:
            self.hand_over(self._objects.rest())

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """The descriptor of the original stream: what a child process inherits."""
        return self._fd

    def isatty(self) -> bool:
        """Whether the original stream is a terminal."""
        return self._tty
