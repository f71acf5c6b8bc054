"""What is sent: the bytes of an output, in memory or in a file of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Outgoing:
    """An output on its way.  It can be read as often as it takes."""

    source: bytes | Path
    content_type: str = "application/octet-stream"

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Its bytes, from the first on."""
        if isinstance(self.source, bytes):
            view = memoryview(self.source)
            yield from (view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
            return
        with self.source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
