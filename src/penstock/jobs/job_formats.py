"""Decide in which format a job's input goes to a service, and in which its result comes back.

The same rules hold as for a body over HTTP, with one more: a service whose first stage takes a `pathlib.Path` gets its
input as a file, and so only from an `input_url`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.codec.annotations import takes_file
from penstock.codec.formats import Codec
from penstock.codec.media_types import answer_codec, content_codec, media_names, too_long
from penstock.codec.schema import accepts, offers
from penstock.codec.text import cut_middle
from penstock.errors import FormatNotGiven, FormatNotTaken
from penstock.hosting.servable import Servable

_MOST_PAIRS = 128
"""Most pairs of media types that are remembered; one more empties the table."""
_SHOWN_BYTES = 200
"""Most of a media type that an error repeats."""


class JobFormats(NamedTuple):
    """How an input is decoded, and how a result is encoded."""

    codec_in: Codec
    codec_out: Codec
    media: str
    """The media type of the result."""


class JobTarget:
    """A service, as jobs see it."""

    def __init__(self, service: Servable) -> None:
        self.service = service
        item = service.stages[0].signature().item
        self.takes_file = takes_file(item)
        self._accepts = frozenset((Codec.PICKLE,)) if self.takes_file else accepts(item)
        self._offers = offers(service.stages[-1].signature().result)
        self._known: dict[tuple[str, str], JobFormats] = {}

    @property
    def batch_items(self) -> int:
        """The items of one batch for each worker of the first stage."""
        first = self.service.stages[0]
        return first.workers * (first.batch.max_size if first.batch is not None else 1)

    def check_inline(self) -> None:
        """Do nothing, or raise FormatNotTaken where an input must come from a URL."""
        if self.takes_file:
            raise FormatNotTaken(f"service {self.service.name!r} takes a file: submit the job with an input_url")

    def formats(self, content_type: str, accept: str) -> JobFormats:
        """The formats for an input of `content_type` whose result is to be one of `accept`.

        Raises:
            FormatNotTaken: the service does not take the one.
            FormatNotGiven: it cannot give the other.
        """
        found = self._known.get((content_type, accept))
        if found is None:
            found = self._choose(content_type, accept)
            if len(self._known) >= _MOST_PAIRS:
                self._known.clear()
            self._known[content_type, accept] = found
        return found

    def _choose(self, content_type: str, accept: str) -> JobFormats:
        given, wanted = content_type.encode(), accept.encode()
        codec = None if too_long(given) else content_codec(given)
        if self.takes_file:
            codec = Codec.PICKLE  # of the path, made here; see `Steps`
        if codec is None or codec not in self._accepts:
            shown = cut_middle(content_type, _SHOWN_BYTES)
            raise FormatNotTaken(
                f"service {self.service.name!r} does not take the content type {shown!r}; it takes "
                f"{media_names(self._accepts)}"
            )
        answer = None if too_long(wanted) else answer_codec(wanted, self._preferred(codec))
        if answer is None:
            raise FormatNotGiven(
                f"service {self.service.name!r} gives nothing of {cut_middle(accept, _SHOWN_BYTES)!r}; it gives "
                f"{media_names(self._offers)}"
            )
        return JobFormats(codec, answer[0], answer[1].decode())

    def _preferred(self, codec_in: Codec) -> list[Codec]:
        """What to answer with where the submitter leaves the choice to us, best first, as over HTTP."""
        if self._offers[0] is Codec.RAW:
            return list(self._offers)
        first = codec_in if codec_in in (Codec.JSON, Codec.MSGPACK) else Codec.JSON
        return sorted(self._offers, key=lambda codec: codec is not first)
