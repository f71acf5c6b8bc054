"""Read and write objects in S3, and in what speaks its protocol.

Contract
--------
* Credentials, the region and the endpoint are those that obstore finds in the environment: ``AWS_ACCESS_KEY_ID``,
  ``AWS_REGION``, ``AWS_ENDPOINT_URL`` and so on, with ``AWS_ALLOW_HTTP=true`` for an endpoint without TLS.
* TransferRejected is what is not there, is too large, or may not be touched (401, 403, 404); TransferFailed the rest.
* Nothing is tried again here.  After TransferFailed the next request looks the endpoint's name up again.
* Who stops a transfer is heard between two pieces; one that waits for the server ends after `STALL_SECONDS`.

An object appears whole or not.  What was uploaded of one that did not is given up; where that fails as well, the bucket
keeps it until its own rule for incomplete uploads removes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from penstock.config import MIB
from penstock.errors import TransferFailed, TransferRejected
from penstock.transfer.outgoing import Outgoing
from penstock.transfer.places import ObjectPlace
from penstock.transfer.time_limit import TimeLimit

NOT_FOUND = (NotFoundError, FileNotFoundError)
"""The library says it by Python's own error, and documents its own."""
STALL_SECONDS = 20.0
"""How long a server may be silent."""
PIECE_BYTES = MIB
PART_BYTES = 8 * MIB
"""What is larger is uploaded in parts of this size.  S3 takes 10 000 parts, so at most 78 GiB."""
UPLOADS_AT_ONCE = 4
"""Parts of one object that are on their way at once, and in memory."""
LONGEST_REASON = 300
"""Characters of what the library says; of longer texts the rest is left out."""


class ObjectStorage:
    """The buckets that the environment's credentials open.  Safe to use from several threads at once.

    `timeout` is the seconds that one request may take.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._stores: dict[str, S3Store] = {}

    def read(self, place: ObjectPlace, write: Callable[[bytes], object], *, most_bytes: int, limit: TimeLimit) -> str:
        """Give an object's bytes to `write`, piece by piece, and return its content type, or "".

        Raises TransferRejected, TransferFailed and TransferCancelled.
        """
        with self._told(place) as store:
            found = obstore.get(store, place.key)
            nbytes = found.meta["size"]
            if nbytes > most_bytes:
                raise TransferRejected(
                    f"{place} has {nbytes} bytes, which is more than {most_bytes} (max_input_bytes, or max_bytes of a "
                    "stage)"
                )
            taken = 0
            pieces = iter(found.stream(min_chunk_size=PIECE_BYTES))
        while True:
            limit.left()
            with self._told(place, store):
                piece = next(pieces, None)
            if piece is None:
                break
            taken += len(piece)
            write(bytes(piece))
        if taken != nbytes:
            raise TransferFailed(f"{place}: the download was cut off: {nbytes - taken} of {nbytes} bytes are missing")
        return str(found.attributes.get("Content-Type", ""))

    def write(self, place: ObjectPlace, outgoing: Outgoing, *, limit: TimeLimit) -> None:
        """Write an object, whatever is there.  Raises as `read` does."""
        in_parts = outgoing.nbytes > PART_BYTES
        chunks = _watched(outgoing, limit)  # what it raises comes out of `put` as it is
        with self._told(place) as store:
            obstore.put(
                store,
                place.key,
                chunks if in_parts else b"".join(chunks),
                attributes={"Content-Type": outgoing.content_type},
                use_multipart=in_parts,
                chunk_size=PART_BYTES,
                max_concurrency=UPLOADS_AT_ONCE,
            )

    def move(self, part: ObjectPlace, place: ObjectPlace) -> None:
        """Move an object to its place in the same bucket; nothing where that was done before.

        S3 copies at most 5 GiB in one go.  Raises TransferFailed, and TransferRejected where there is neither.
        """
        with self._told(place) as store:
            try:
                obstore.copy(store, part.key, place.key)
            except NOT_FOUND:
                obstore.head(store, place.key)
                return
        self.remove(part)

    def remove(self, place: ObjectPlace) -> None:
        """Remove an object; nothing where there is none.  Raises TransferRejected and TransferFailed."""
        with self._told(place) as store, suppress(*NOT_FOUND):
            obstore.delete(store, place.key)

    @contextmanager
    def _told(self, place: ObjectPlace, store: S3Store | None = None) -> Iterator[S3Store]:
        """Give the store, or that of the place's bucket, and turn what the library says into what a caller acts on."""
        try:
            if store is None:
                store = self._store(place)
            yield store
        except NOT_FOUND:
            raise TransferRejected(f"{place}: the object or the bucket does not exist") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise TransferRejected(f"{place}: permission denied") from None
        except BaseError as error:
            # It keeps connections, and their address may not be the endpoint's any more: the next store looks it up.
            if self._stores.get(place.bucket) is store:  # not one that another thread has made since
                self._stores.pop(place.bucket, None)
            reason = " ".join(str(error).partition("Debug source:")[0].split())[:LONGEST_REASON]
            raise TransferFailed(f"{place}: {reason}") from None

    def _store(self, place: ObjectPlace) -> S3Store:
        """The store of the place's bucket.  Two threads may make one at the same time: one of them is kept."""
        store = self._stores.get(place.bucket)
        if store is None:
            store = S3Store(
                place.bucket,
                client_options={
                    # These options stand for all that the library would find in the environment for its client.
                    "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on"),
                    "timeout": timedelta(seconds=self._timeout),
                    "read_timeout": timedelta(seconds=min(STALL_SECONDS, self._timeout)),
                    "connect_timeout": timedelta(seconds=min(10.0, self._timeout)),
                },
                retry_config={"max_retries": 0},
            )
            store = self._stores.setdefault(place.bucket, store)
        return store


def _watched(outgoing: Outgoing, limit: TimeLimit) -> Iterator[bytes]:
    """The bytes of an output, until its time is over."""
    for chunk in outgoing.chunks():
        limit.left()
        yield bytes(chunk)
