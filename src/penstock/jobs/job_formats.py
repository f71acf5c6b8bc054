"""Decide in which format a job's input goes to a service, and in which its result comes back.

The same rules hold as for a body over HTTP, with two more.  A service whose first stage takes a `pathlib.Path` gets its
input as a file, and so only from an `input_url`.  An input for workers from outside may be in any format that its
type can be read from, whichever they read, and likewise their results: `JobCrossing` converts them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.codec.annotations import takes_file
from penstock.codec.formats import Codec
from penstock.codec.media_types import answer_codec, content_codec, media_names, too_long
from penstock.codec.text import cut_middle
from penstock.errors import NotAcceptable, UnsupportedMediaType
from penstock.hosting.servable import Servable
from penstock.jobs.job_crossing import JobCrossing

_MOST_PAIRS = 128
"""Most pairs of media types that are remembered; one more empties the table."""
_SHOWN_BYTES = 200
"""Most of a media type that an error repeats."""


class JobFormats(NamedTuple):
    """The format of an input, and that of a result."""

    codec_in: Codec
    codec_out: Codec
    media: str
    """The media type of the result."""


class JobTarget:
    """A service, as jobs see it."""

    def __init__(self, service: Servable) -> None:
        self.service = service
        first, last = service.stages[0], service.stages[-1]
        self.crossing = crossing = JobCrossing(service)
        self.takes_file = takes_file(first.signature().item)
        self._accepts = frozenset((Codec.PICKLE,)) if self.takes_file else first.accepts()
        self._accepts |= crossing.converted_in
        self._offers = last.offers()
        self._known: dict[tuple[str, str], JobFormats] = {}

    @property
    def batch_items(self) -> int:
        """The items of one batch for each worker of the first stage; of those from outside, for each that is there.

        While none of these is there, it is one batch.  Workers of a waiting stage count with each batch that they may
        have in progress, up to the most that the stage may have.
        """
        first, engine = self.service.stages[0], self.service.engine
        workers = first.workers
        if self.crossing.outside_first:
            there = engine.stages[0].workers if engine is not None else ()
            workers = max(1, sum([worker.state.up for worker in there]))
        elif first.concurrency:
            workers *= first.concurrency
            if first.options.max_in_flight_batches is not None:
                workers = min(workers, first.options.max_in_flight_batches)
        return workers * (first.batch.max_size if first.batch is not None else 1)

    def check_inline(self) -> None:
        """Do nothing, or raise UnsupportedMediaType where an input must come from a URL."""
        if self.takes_file:
            raise UnsupportedMediaType(f"service {self.service.name!r} takes a file: submit the job with an input_url")

    def formats(self, content_type: str, accept: str) -> JobFormats:
        """The formats for an input of `content_type` whose result is to be one of `accept`.

        Raises:
            UnsupportedMediaType: the service does not take the one.
            NotAcceptable: it cannot give the other.
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
            raise UnsupportedMediaType(
                f"service {self.service.name!r} does not accept the content type {shown!r}; it accepts "
                f"{media_names(self._accepts)}"
            )
        offered = self._preferred(codec)
        answer = None if too_long(wanted) else answer_codec(wanted, offered)
        if answer is None:
            raise NotAcceptable(
                f"service {self.service.name!r} cannot produce {cut_middle(accept, _SHOWN_BYTES)!r}; it "
                f"produces {media_names(offered)}"
            )
        return JobFormats(codec, answer[0], answer[1].decode())

    def _preferred(self, codec_in: Codec) -> list[Codec]:
        """What to answer with where the submitter leaves the choice to us, best first, as over HTTP."""
        converted = [codec for codec in self.crossing.converted_out if codec not in self._offers]
        found = [*self._offers, *converted]
        if self._offers[0] in (Codec.JSON, Codec.MSGPACK):
            first = codec_in if codec_in in (Codec.JSON, Codec.MSGPACK) else Codec.JSON
            found.sort(key=lambda codec: codec is not first)
        return found
